"""`python -m train_distributed predict`: a released model's classes of new pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from train_distributed.commands.model_pictures import ModelPictures

if TYPE_CHECKING:  # what works is imported by the command that runs
    import numpy as np

    from train_distributed.one_shot.model import Release
    from train_distributed.released.predictions import Rows


@dataclass(frozen=True, kw_only=True)
class Predict(ModelPictures):
    """Classify pictures, or embeddings of them, with a released model.

    Writes predictions.csv: path, then the three most probable classes with their probabilities;
    with --skip-unreadable a last column says why a picture has none.

    Example: blind-averaging predict --model runs/mine --data PICTURES --out predicted
    """

    prior: Literal["equal", "private"] | Path | None = None
    """Class frequencies where the pictures are from: equal, as in the private rows, or a JSON file
    of class and share (default: those that the model was released for). Not for softmax, svm and
    logistic, whose users' rows carry theirs inside."""
    splits: tuple[str, ...] = ()
    """Splits to classify, of train, test, val and evaluation (default: all that the data has)."""
    evaluate: bool = False
    """Compare predictions with the labels of the data; writes metrics.json and confusion.png."""
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
        self.check_source("splits")
        given = (self.model, self.embeddings, self.data, self.encoder, self.weights)
        out = output_directory(self.out, "predict", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._into(partial)
        print(f"{'written':26} {out}")
        return out

    def _into(self, partial: Path) -> None:
        from pretrain.cli.waiting import Progress
        from train_distributed.one_shot.class_prior import with_shares
        from train_distributed.one_shot.model import Release
        from train_distributed.released.predictions import write_predictions

        released = Release.load(self.model)
        if self.prior is not None:
            given = with_shares({"prior": self.prior}, released.class_names)
            released = released.with_prior(given["prior"])
        if self.data is None:
            rows = self._rows_of_set(released)
        else:
            _, rows = self.rows_of_data(released, labelled=self.evaluate)
        with Progress(rows.count, "classified") as progress:
            counts, metrics = write_predictions(
                released, rows, partial / "predictions.csv", progress.update
            )
        print(f"{'rows':26} {rows.count}")
        if rows.skipped:
            print(f"{'unreadable':26} {len(rows.skipped)}")
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

    def _measured(self, released: "Release", metrics: dict[str, Any], partial: Path) -> None:
        from train_distributed.one_shot.figure import draw_confusion
        from train_distributed.one_shot.metrics import brief
        from train_distributed.one_shot.model import UNKNOWN

        read = released.report.probabilities or UNKNOWN
        facts = {"model": self.model.name, "probabilities": read}
        facts |= check.drop_none(prior=released.report.prior)
        write_json(partial / "metrics.json", facts | metrics)
        if "confusion" in metrics:
            draw_confusion(metrics["confusion"], released.class_names, partial / "confusion.png")
        print(f"{'accuracy':26} {metrics['accuracy']:.4f}")
        print(f"{'majority_baseline':26} {metrics['majority_baseline']:.4f}")
        for name, value in brief(metrics):
            print(f"{name:26} {value}")
