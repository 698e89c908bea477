"""The commands `python -m embed run|exclude|fit-transform`."""

import json
import sys
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from embed.encoding import refuse_other
from embed.options import ExtractOptions, ImageOptions, Knowledge, StoreOptions
from embed.store import EmbeddingSet, columns, select_rows, write_companions, write_rows
from pretrain.cli.output import (
    default_directory,
    new_directory,
    output_directory,
    refuse_inputs,
    write_json,
)
from pretrain.cli.provenance import usual_batch, usual_device
from pretrain.public import function


def _added_encoders(default: str) -> str:
    """Default, and kinds of encoders that a program has added to the project's own."""
    own = "pretrain.encoder"  # loaded by now if a program has added some
    builders = getattr(sys.modules.get(own), "BUILDERS", {})
    added = [f"{kind}:" for kind, build in builders.items() if build.__module__ != own]
    also = f"; {', '.join(added)} has been added" if added else ""
    return f"(default: {default}{also})"


@dataclass(frozen=True, kw_only=True)
class Run(StoreOptions, ImageOptions):
    """Embed an image set; the same command continues an interrupted run.

    An npz file holds x_train (N, h, w) or (N, h, w, 3) uint8, y_train (N,) labels or nothing, and
    writer_train (N,) users if they are known, the same with _test, _val and _evaluation, and
    `names` of the classes. docs/data.md has all formats. For example:

    embed run --data csv:xrays/table.csv --columns path=file,label=finding,user=hospital
    --class-names normal pneumonia --resize 224 --test-share user:0.2 --out xrays
    """

    encoder: Annotated[str, tyro.conf.arg(help_behavior_hint=_added_encoders)] = "simclr-small"
    """timm:NAME, hf:NAME, hf:DIR, simclrv2:NAME, resnet50-v1, the path of a checkpoint, or the
    encoder that is shipped here. NAME@224 scales pictures to 224 pixels (default: as the encoder's
    own configuration says), NAME@224,crop=0.875 keeps that share of the shorter side,
    NAME@invert embeds 1 - x. `mirrored:NAME` averages over a picture and its mirror image;
    `concat:A@128+B@144` puts embeddings side by side."""
    weights: str | None = None
    """Weights for an --encoder that is named by its architecture: a file (`FILE#KEY` takes the
    network below a key or prefix of one that holds several), "random" for an untrained network,
    "hub", or for timm "package". Checkpoints, hf models and the shipped encoder have their own. For
    `concat:` one for all parts that need some, or one for each, joined by +."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""

    @property
    def computing(self) -> ExtractOptions:
        """How rows are computed and stored; what is not an option is chosen by a rule."""
        return ExtractOptions(
            **{each.name: getattr(self, each.name) for each in fields(StoreOptions)}
        )

    def run(self) -> Path:
        """Embeds the images, or this process's share; prints and returns where the rows are."""
        from embed.extract import extract, summary
        from pretrain.datasets import UnreadableImage
        from pretrain.encoder import (
            build_encoder,
            origin,
            refuse_large_inputs,
            without_directory,
        )

        out = self.out or default_directory("embed")
        partial = out.with_name(f"{out.name}.partial")
        refuse_inputs(out, (self.data, self.encoder, self.weights))
        options = self.computing
        batch_size = self.batch_size or usual_batch(usual_device(self.device))
        refuse_large_inputs(self.encoder, batch_size)
        images = self.images()
        encoder = build_encoder(self.encoder, weights=self.weights)
        try:
            done = extract(
                images,
                encoder,
                out,
                encoder_name=without_directory(self.encoder),
                preprocess=encoder.preprocess.of_pictures(self.resize),
                options=options,
                weights=origin(self.encoder, self.weights),
                test_share=self.image_share,
            )
        except UnreadableImage as error:
            raise ValueError(f"{error} (or pass --skip-unreadable)") from error
        except KeyboardInterrupt as stop:
            if partial.exists():
                raise KeyboardInterrupt(f"finished shards are kept in {partial}") from stop
            raise
        if done is None:
            print(f"this share is done; other shards are missing in {partial}")
            return partial
        print(f"{len(done)} embeddings of dimension {done.dim} in {out}")
        print("\n".join(summary(done, images, out)))
        if self.one_user:
            print("users      all rows are one owner's, as --one-user says")
        return out


run = function("run", Run)
embed_images = function("embed_images", Run)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The public rows that a transform is fitted to; a base class, so that help lists it first."""

    public: Path
    """Public embedding set."""
    out: Path | None = None
    """Directory to write: transform.safetensors, report.json (default: a new one under runs/)."""
    components: int | None = None
    """Number of leading principal directions to keep (default: 512, or as many as there are); a
    release chooses among them."""
    clip_quantile: float = 0.1
    """Divide features by this quantile of the public norms, then clip them to length 1."""
    constant: float = 0.5
    """Value of the constant column; the clip norm of a row is sqrt(1 + constant²)."""


@dataclass(frozen=True, kw_only=True)
class FitTransform(Knowledge, Fitted):
    """Fit centre, principal directions, clip bound and class scatter to public embeddings."""

    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Fits and writes."""
        from embed.guesses import added_to
        from embed.transform import PublicTransform

        inputs = (self.public, self.examples)
        out = output_directory(self.out, "fit-transform", *inputs, overwrite=self.overwrite)
        public = EmbeddingSet.open(self.public)
        options = {
            "components": self.components,
            "clip_quantile": self.clip_quantile,
            "constant": self.constant,
        }
        transform = PublicTransform.fit(public, **options)
        transform = added_to(self, transform, public, ())
        report = {
            "public": public.meta.get("data"),
            "public_rows": len(public),
            "public_hash": transform.fitted_on,
            "options": options,
            "dim": transform.dim,
            "known_before": transform.known.words if transform.known else [],
            "versions": {name: version(name) for name in ("torch", "numpy")},
        }
        with new_directory(out, overwrite=self.overwrite) as partial:
            transform.save(partial / "transform.safetensors")
            write_json(partial / "report.json", report)
        print(json.dumps(report, indent=2))
        return out


fit_transform = function("fit_transform", FitTransform)


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """Write a private set without the rows that are public too, such as a blank picture in both.

    blind-averaging embed exclude --embeddings mine --public public --out mine-only

    The number of remaining rows is public. The public set stays whole: rows missing from it would
    reveal private rows.
    """

    public: tuple[Path, ...]
    """Public embedding sets."""
    embeddings: Path
    """Private embedding set to write without public rows."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Writes the remaining rows, streamed; prints the number of rows in both sets.

        Whether a row stays depends on that row and on public rows alone. The public sets stay
        whole: if private rows removed some of theirs, each record would change the transform fitted
        on them.

        Raises:
            ValueError: sets of another encoder, preprocessing or width, or no row is left.
        """
        from embed.identity import in_both

        inputs = (self.embeddings, *self.public)
        out = output_directory(self.out, "exclude", *inputs, overwrite=self.overwrite)
        private = EmbeddingSet.open(self.embeddings)
        kept = np.ones(len(private), bool)
        for place in self.public:
            other = EmbeddingSet.open(place)
            refuse_other(private.encoding, other.encoding, ("embeddings", "public"))
            if other.dim != private.dim:
                raise ValueError(
                    f"public must have {private.dim} columns as embeddings, got {other.dim} in "
                    f"{place}"
                )
            kept &= ~in_both(private, other)
        count = int(kept.sum())
        if not count:
            raise ValueError("embeddings must hold rows that are not public, got 0 such rows")
        with new_directory(out, overwrite=self.overwrite) as partial:
            rows = select_rows(private.blocks(), kept)
            write_rows(partial / "embeddings.npy", rows, (count, private.dim))
            write_companions(partial, **columns(private, kept), meta=private.meta_of_rows)
        print(f"{count} rows in {out}, {len(private) - count} left out")
        return out


exclude = function("exclude", Exclude)
