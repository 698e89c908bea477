"""`python -m train_distributed predict`: a released model's classes of new pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json

if TYPE_CHECKING:  # what works is imported by the command that runs
    import numpy as np

    from train_distributed.one_shot.model import Release
    from train_distributed.released.predictions import Rows


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Classify pictures, or embeddings of them, with a released model.

    Writes predictions.csv: path, then the three most probable classes with their probabilities.

    Example: blind-averaging predict --model runs/mine --data PICTURES --out predicted
    """

    model: Path
    """Released model: the directory that `run` or a federation wrote."""
    data: str | None = None
    """Pictures in any format of `embed run --data`: a folder, an npz file, csv:FILE, ..."""
    embeddings: Path | None = None
    """Embedding set of the pictures, instead of --data."""
    encoder: str | None = None
    """Encoder of the training rows, as for `embed run` (default: the one in --model, or by the name
    that the model keeps). Any other encoder is refused."""
    weights: str | None = None
    """Weights file for --encoder (default: the weights it ships with)."""
    resize: int | None = None
    """Pixels to which the shorter side of pictures is scaled (default: size of the training
    pictures)."""
    splits: tuple[str, ...] = ()
    """Splits to classify, of train, test and val (default: all that the data has)."""
    evaluate: bool = False
    """Compare predictions with the labels of the data; writes metrics.json and confusion.png."""
    batch_size: int | None = None
    """Pictures per forward pass (default: by device)."""
    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the network; auto: as `embed run` chooses."""
    device: str | None = None
    """Device to compute on: cpu, cuda or cuda:N (default: cuda if there is one, else cpu)."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Writes predictions.csv, and the metrics if asked for; prints how many of each class.

        Raises:
            ValueError: a setting out of range, or pictures or an encoder that do not fit the model.
            FileExistsError: the directory exists.
        """
        check.exactly_one(data=self.data, embeddings=self.embeddings)
        check.at_least(1, **check.present(batch_size=self.batch_size))
        given = (self.model, self.embeddings, self.data, self.encoder, self.weights)
        out = output_directory(self.out, "predict", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._into(partial)
        print(f"{'written':26} {out}")
        return out

    def _into(self, partial: Path) -> None:
        from pretrain.cli.progress import Progress
        from train_distributed.one_shot.model import Release
        from train_distributed.released.predictions import write_predictions

        released = Release.load(self.model)
        rows = self._rows_of_set(released) if self.data is None else self._rows_of_data(released)
        with Progress(rows.count, "classified") as progress:
            counts, metrics = write_predictions(
                released, rows, partial / "predictions.csv", progress.update
            )
        print(f"{'rows':26} {rows.count}")
        most = sorted(counts.items(), key=lambda item: -item[1])
        for name, count in most[:20]:
            print(f"{'predicted ' + name:26} {count}")
        if len(most) > 20:
            print(f"{'predicted others':26} {sum(count for _, count in most[20:])}")
        if metrics is not None:
            self._measured(released, metrics, partial)

    def _rows_of_set(self, released: "Release") -> "Rows":
        import numpy as np

        from embed import EmbeddingSet
        from embed.encoding import refuse_other
        from train_distributed.released.predictions import Rows, own_labels

        unused = {name: getattr(self, name) for name in ("encoder", "weights", "resize")}
        check.left_out("with embeddings", **unused)
        assert self.embeddings is not None
        found = EmbeddingSet.open(self.embeddings)
        found.check_finite()
        refuse_other(released.encoding, found.encoding, ("release", "embeddings"))
        chosen = np.flatnonzero(self._chosen(found.split))
        if not len(chosen):
            raise ValueError(f"splits must hold rows, got none in {', '.join(self.splits)}")
        labels = None
        if self.evaluate:
            labels = own_labels(released, found.declared_classes, found.labels[chosen])
        return Rows.of(found, chosen, labels)

    def _chosen(self, split: "np.ndarray") -> "np.ndarray":
        """(N,) bool, true for the rows of the splits asked for."""
        import numpy as np

        from pretrain.datasets import SPLITS

        if unknown := set(self.splits) - SPLITS.keys():
            raise ValueError(f"splits must be of {list(SPLITS)}, got {sorted(unknown)}")
        wanted = [SPLITS[name] for name in self.splits]
        return np.isin(split, wanted) if wanted else np.ones(len(split), bool)

    def _rows_of_data(self, released: "Release") -> "Rows":
        from pretrain.cli.device import usual_device
        from train_distributed.released.encoder import released_encoder
        from train_distributed.released.pictures import (
            Computing,
            open_pictures,
            picture_rows,
        )
        from train_distributed.released.predictions import own_labels

        assert self.data is not None
        encoder = released_encoder(released, self.model, name=self.encoder, weights=self.weights)
        images = open_pictures(released, self.data, splits=self.splits, resize=self.resize)
        labels = None
        if self.evaluate:
            names = () if images.inferred else images.class_names
            labels = own_labels(released, names, images.labels)
        computing = Computing(
            device=usual_device(self.device), compute=self.compute, batch_size=self.batch_size
        )
        return picture_rows(released, images, encoder, computing, labels)

    def _measured(self, released: "Release", metrics: dict[str, Any], partial: Path) -> None:
        from train_distributed.one_shot.figure import draw_confusion
        from train_distributed.one_shot.metrics import brief
        from train_distributed.one_shot.probabilities import UNKNOWN

        read = released.report.probabilities or UNKNOWN
        facts = {"model": self.model.name, "probabilities": read}
        write_json(partial / "metrics.json", facts | metrics)
        if "confusion" in metrics:
            draw_confusion(metrics["confusion"], released.class_names, partial / "confusion.png")
        print(f"{'accuracy':26} {metrics['accuracy']:.4f}")
        print(f"{'majority_baseline':26} {metrics['majority_baseline']:.4f}")
        for name, value in brief(metrics):
            print(f"{name:26} {value}")
