"""The commands `python -m embed run|exclude|fit-transform|import-reference|plot`."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from embed.transform_options import TransformOptions
from pretrain.cli.command import INTERRUPTED
from pretrain.cli.device import usual_device
from pretrain.cli.output import default_directory, refuse_existing


@dataclass(frozen=True, kw_only=True)
class Run:
    """Embed an image set; an interrupted run goes on when the same command is given again."""

    data: str
    """An npz file, a folder, cifar10:DIR, cifar100:DIR, emnist:DIR or fed-emnist:PATH."""
    encoder: str = "simclr-small"
    """timm:NAME, simclrv2:NAME, a checkpoint's path, or the encoder shipped here."""
    weights: str | None = None
    """For timm: a file, "package" or "hub". For simclrv2: a converted file."""
    out: Path | None = None
    """Directory to write."""
    splits: tuple[str, ...] = ()
    """Of train, test, val, evaluation; all that are there by default."""
    limit: int | None = None
    """Only so many images, from the start."""
    image_size: int | None = None
    """Pixels of the encoder's square input; as stored by default."""
    crop: float = 1.0
    """Share of the shorter side kept (SimCLRv2: 0.875)."""
    num_classes: int | None = None
    """K, where the data names no classes: labels 0 to K - 1. It is public, so it is declared;
    counted from the labels that occur it serves simulations only."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in the order of their labels, instead of num_classes; of class folders
    those that there may be, present or not."""
    invert: bool = False
    """Embed 1 - x, as the paper does for EMNIST."""
    resize: int | None = None
    """Shorter side to which an image folder's pictures are brought."""
    download: bool = False
    """Let torchvision fetch a missing data set."""
    dtype: Literal["float32", "float16"] = "float32"
    """Of the stored rows."""
    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the network."""
    batch_size: int | None = None
    """Images per forward pass; what suits the device by default."""
    shard_rows: int = 2048
    """Rows between two points of resumption."""
    shard: str | None = None
    """i/n: compute only every n-th shard, starting with the i-th; torchrun sets it itself."""
    device: str | None = None
    """Where to compute; cuda where there is one, or cpu, if left out."""
    compiled: bool | None = None
    """Whether to use torch.compile; on a GPU for large sets by default."""
    overwrite: bool = False
    """Replace a finished directory of another extraction."""

    def run(self) -> int:
        """Embeds, or this process's share; prints where the rows are."""
        from embed.extract import ExtractOptions, extract
        from pretrain import build_encoder
        from pretrain.datasets import declared_classes
        from pretrain.preprocess import Preprocess
        from pretrain.sources import open_images

        out = self.out or default_directory("embed")
        options = ExtractOptions(
            dtype=self.dtype,
            compute=self.compute,
            batch_size=self.batch_size,
            shard_rows=self.shard_rows,
            shard=_share(self.shard),
            device=usual_device(self.device),
            compiled=self.compiled,
            overwrite=self.overwrite,
        )
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be >= 1, got {self.limit}")
        preprocess = Preprocess(image_size=self.image_size, crop=self.crop, invert=self.invert)
        images = open_images(
            self.data,
            splits=self.splits,
            download=self.download,
            resize=self.resize,
            classes=declared_classes(self.num_classes, self.class_names),
        ).take(slice(0, self.limit))
        weights = {} if self.weights is None else {"weights": self.weights}
        encoder = build_encoder(self.encoder, **weights)
        try:
            done = extract(
                images,
                encoder,
                out,
                encoder_name=self.encoder,
                preprocess=preprocess,
                options=options,
            )
        except KeyboardInterrupt:
            print(f"interrupted; finished shards are kept in {out}.partial", file=sys.stderr)
            return INTERRUPTED
        if done is None:
            print(f"this share is done; other shards are missing in {out}.partial")
        else:
            print(f"{len(done)} embeddings of dimension {done.dim} in {out}")
        return 0


def _share(given: str | None) -> tuple[int, int]:
    """This process's (i, n), from i/n or from torchrun's environment."""
    if given is None:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    index, slash, count = given.partition("/")
    if not (slash and index.isdigit() and count.isdigit()):
        raise ValueError(f"shard must be i/n, got {given}")
    return int(index), int(count)


@dataclass(frozen=True, kw_only=True)
class ImportReference:
    """Read the reference implementation's `code_space_*.npy`, `labels_*.npy`, `userid_*.npy`."""

    source: Path
    """Directory that holds the files."""
    out: Path | None = None
    """Directory to write."""
    num_classes: int | None = None
    """K: labels are 0 to K - 1. Counted from the labels that occur it serves simulations only."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> None:
        """Writes one embedding set of all of them."""
        from embed.reference import import_reference

        out = self.out or default_directory("import-reference")
        refuse_existing(out, overwrite=self.overwrite)
        done = import_reference(
            self.source, out, num_classes=self.num_classes, overwrite=self.overwrite
        )
        print(f"{len(done)} embeddings of dimension {done.dim} in {out}")


@dataclass(frozen=True, kw_only=True)
class FitTransform(TransformOptions):
    """Fit centre, principal directions, whitening and clip bound to public embeddings."""

    public: Path
    """Embedding set that is nobody's secret."""
    apply_to: Path | None = None
    """Embedding set whose transformed rows to write as well."""
    out: Path | None = None
    """Directory to write: transform.safetensors, report.json, embeddings/."""
    components: int | None = 128
    """Principal directions to keep; fewer mean less noise."""
    shrinkage: float = 0.01
    """Share of the mean variance mixed into every direction's."""
    clip_norm: float = 2**0.5
    """Norm c of a row, the constant included."""
    constant: float = 1.0
    """First entry a of every row."""
    i_know_this_leaks: bool = False
    """Fit on rows that the transform is applied to; no release of those rows will take it."""
    overwrite: bool = False
    """Replace an existing directory."""

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `PublicTransform.fit`, with the clip norm as given."""
        names = ("components", "whiten", "shrinkage", "clip_quantile", "clip_norm", "constant")
        return {name: getattr(self, name) for name in names}

    def run(self) -> None:
        """Fits, checks that public and private differ, writes."""
        from embed.fit import fit_and_apply

        out = self.out or default_directory("fit-transform")
        refuse_existing(out, overwrite=self.overwrite)
        report = fit_and_apply(
            self.public,
            self.apply_to,
            out,
            self.arguments(),
            leak=self.i_know_this_leaks,
            overwrite=self.overwrite,
        )
        print(json.dumps(report, indent=2))


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """Write a public set without the rows that are private ones too, before anything is fitted.

    What is missing then shows which public rows are among the private ones; no epsilon covers that.
    """

    public: Path
    """Embedding set that is nobody's secret."""
    private: tuple[Path, ...]
    """Embedding sets whose rows, training and test, are to go."""
    out: Path | None = None
    """Directory to write."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> None:
        """Writes the rest; prints how many rows were in both."""
        from embed.fit import exclude

        out = self.out or default_directory("exclude")
        refuse_existing(out, overwrite=self.overwrite)
        kept, dropped = exclude(self.public, self.private, out, overwrite=self.overwrite)
        print(f"{len(kept)} rows in {out}, {dropped} dropped")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw embeddings in two dimensions, coloured by class."""

    embeddings: Path
    """Embedding set to look at."""
    out: Path | None = None
    """Directory to write."""
    method: Literal["pca", "tsne"] = "tsne"
    """Projection; t-SNE takes minutes beyond 10,000 rows."""
    rows: int = 3000
    """Random rows to draw."""
    seed: int = 0
    """Chooses the rows and starts t-SNE."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> None:
        """Writes projection.png, its points and report.json."""
        from embed.plot import plot_embeddings

        out = self.out or default_directory("plot")
        refuse_existing(out, overwrite=self.overwrite)
        plot_embeddings(
            self.embeddings,
            out,
            method=self.method,
            rows=self.rows,
            seed=self.seed,
            overwrite=self.overwrite,
        )
        print(f"projection in {out}")
