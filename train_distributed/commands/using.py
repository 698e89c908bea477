"""A released model on new rows: `predict`, `evaluate`."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check
from pretrain.cli.command import after
from pretrain.cli.output import new_directory, output_directory, reserved, write_json
from pretrain.intake.reading import PictureOptions, without_column
from pretrain.public import function
from train_distributed.commands.options import Noise, Promise, jsonable, simulated_partition

if TYPE_CHECKING:  # what works is imported by the command that runs
    import numpy as np

    from pretrain.datasets import ImageSet
    from train_distributed.ledger.reservation import LedgerReservation
    from train_distributed.one_shot.model import Release
    from train_distributed.released.predictions import Rows

OF_DATA = ("encoder", "weights", "batch_size", "device", *(f.name for f in fields(PictureOptions)))


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Model and the rows for it; a base of its own, so that the help names them first."""

    model: Path
    """Released model: the directory that `run` or a federation wrote."""
    data: str | None = None
    """Pictures in any format of `embed run --data`: a folder, an npz file, csv:FILE, ..."""
    embeddings: Path | None = None
    """Embedding set of the pictures, instead of --data."""


@dataclass(frozen=True, kw_only=True)
class ModelPictures(PictureOptions, ModelSource):
    """Model and pictures, which are read in any layout and embedded as the model's were."""

    encoder: str | None = None
    """Encoder of the training rows, as for `embed run` (default: the one in --model, or by the name
    that the model keeps). Any other encoder is refused."""
    weights: str | None = None
    """Weights file for --encoder (default: the weights shipped with it)."""
    resize: int | None = None
    """Pixels to which the shorter side of pictures is scaled, for a model of an earlier version
    (default: the size of the training pictures, which no other may replace)."""
    batch_size: int | None = None
    """Pictures per forward pass (default: by device)."""
    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the network; auto: as `embed run` chooses."""
    device: str | None = None
    """Device to compute on: cpu, cuda or cuda:N (default: cuda if there is one, else cpu)."""

    def check_source(self, *kept: str) -> None:
        """Raises ValueError for two sources or none, or pictures' options for embeddings.

        Options in `kept` mean something for embeddings too.
        """
        check.exactly_one(data=self.data, embeddings=self.embeddings)
        check.at_least(1, **check.drop_none(batch_size=self.batch_size, resize=self.resize))
        usual = {each.name: each.default for each in fields(self)}
        for name in OF_DATA if self.data is None else ():
            value = getattr(self, name)
            if name not in kept and value != usual[name]:
                check.not_set("with embeddings", **{name: value})

    def rows_of_data(self, released: "Release", *, labelled: bool) -> "tuple[ImageSet, Rows]":
        """Pictures, and their rows as they are computed, with the model's labels if asked for."""
        from embed.store import numbered
        from pretrain.cli.provenance import usual_device
        from train_distributed.released.pictures import (
            Computing,
            open_pictures,
            picture_rows,
            released_encoder,
        )
        from train_distributed.released.predictions import own_targets

        assert self.data is not None
        encoder = released_encoder(released, self.model, name=self.encoder, weights=self.weights)
        unread = not labelled and self.label_is is None
        columns = without_column(self.columns, "label") if unread else self.columns
        asked = {"findings": False, "unknown": None} if unread else {}
        options = replace(self, columns=columns, **asked)
        images = open_pictures(released, self.data, options)
        labels: np.ndarray | None = None
        if labelled:
            by_number = images.inferred and numbered(images.class_names, released.class_names)
            names = () if by_number else images.class_names
            labels = own_targets(released, names, images.labels, images.findings)
        computing = Computing(
            device=usual_device(self.device), compute=self.compute, batch_size=self.batch_size
        )
        rows = picture_rows(
            released, images, encoder, computing, labels, skip_unreadable=self.skip_unreadable
        )
        return images, rows


@dataclass(frozen=True, kw_only=True)
class Predict(ModelPictures):
    """Classify pictures, or embeddings of them, with a released model.

    Writes predictions.csv: path, then the three most probable classes with their probabilities;
    with --skip-unreadable a last column says why a picture has none.

    Example: blind-averaging predict --model runs/mine --data PICTURES --out predicted
    """

    prior: Literal["equal", "private"] | Path | None = None
    """Class frequencies to assume for the pictures: equal, as in the private rows, or a JSON file
    of class and share (default: those that the model was released for). Not for softmax, svm and
    logistic, whose frequencies are fixed in training."""
    splits: tuple[str, ...] = ()
    """Splits to classify, of train, test, val and evaluation (default: all that the data has)."""
    threshold: float | Literal["prevalence"] | None = None
    """Probability from which a finding is called present, or `prevalence`: that of each finding in
    the private rows (default: 0.5)."""
    evaluate: bool = False
    """Compare predictions with the labels of the data; writes metrics.json and confusion.png, of
    findings roc.png."""
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
            names, several = released.class_names, released.findings
            given = with_shares({"prior": self.prior}, names, findings=several)
            released = released.with_prior(given["prior"])
        if self.data is None:
            rows = self._rows_of_set(released)
        else:
            _, rows = self.rows_of_data(released, labelled=self.evaluate)
        with Progress(rows.count, "classified") as progress:
            counts, metrics = write_predictions(
                released, rows, partial / "predictions.csv", progress.update, self.threshold
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
            (self._findings if released.findings else self._measured)(released, metrics, partial)

    def _rows_of_set(self, released: "Release") -> "Rows":
        import numpy as np

        from embed.encoding import refuse_other
        from embed.store import EmbeddingSet, numbered
        from train_distributed.released.predictions import Rows, own_targets

        assert self.embeddings is not None
        found = EmbeddingSet.open(self.embeddings)
        found.check_finite()
        refuse_other(released.encoding, found.encoding, ("release", "embeddings"))
        chosen = np.flatnonzero(self._chosen(found.split))
        if not len(chosen):
            raise ValueError(f"splits must hold rows, got none in {', '.join(self.splits)}")
        labels = None
        if self.evaluate:
            findings = None if found.findings is None else found.findings[chosen]
            names = tuple(map(str, found.meta.get("class_names", ())))
            by_number = not found.declared_classes and numbered(names, released.class_names)
            names = () if by_number and findings is None else names
            labels = own_targets(released, names, found.labels[chosen], findings)
        return Rows.of(found, chosen, labels)

    def _chosen(self, split: "np.ndarray") -> "np.ndarray":
        """(N,) bool, true for the rows of the splits asked for."""
        import numpy as np

        from pretrain.datasets import SPLITS

        if unknown := set(self.splits) - SPLITS.keys():
            raise ValueError(f"splits must be of {list(SPLITS)}, got {sorted(unknown)}")
        wanted = [SPLITS[name] for name in self.splits]
        return np.isin(split, wanted) if wanted else np.ones(len(split), bool)

    def _findings(self, released: "Release", metrics: dict[str, Any], partial: Path) -> None:
        from train_distributed.one_shot.figure import roc_figure
        from train_distributed.one_shot.finding_metrics import brief_findings

        facts = {"model": self.model.name, "threshold": self.threshold or 0.5}
        facts |= check.drop_none(prior=released.report.prior)
        write_json(partial / "metrics.json", facts | metrics)
        roc_figure(metrics).savefig(partial / "roc.png", dpi=150)
        for name, value in brief_findings(metrics):
            print(f"{name:26} {value}")

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


predict = function("predict", Predict)


REPORT = "evaluation.json"
SPARE = 1 << 22  # bytes of the report


@dataclass(frozen=True, kw_only=True)
class Evaluate(Promise, ModelPictures):
    """Evaluate a released model on held-out rows, with differential privacy.

    Every user sends its confusion matrix and confidences with its share of the noise. The rows are
    those of split `evaluation`, which were held out from training:

    blind-averaging embed hold-out --embeddings mine --share 0.2 --out held

    blind-averaging run --embeddings held --public public --epsilon 1 --out model

    blind-averaging evaluate --model model --embeddings held --epsilon 0.5
    """

    data: str | None = None
    """Held-out pictures in any format of `embed run --data`. Those of split `evaluation` are
    evaluated; where there are none, all."""
    embeddings: Path | None = None
    """Embedding set with held-out rows, not transformed, instead of --data."""
    prior: Literal["equal", "private", "both"] | Path | None = None
    """Class frequencies for which the model is evaluated: equal, as in the private rows, or a JSON
    file of class and share; `both`: equal and private by one sum, at the same epsilon, with 1.4
    times the noise (default: those that the model was released for)."""
    bins: int = 10
    """Number of confidence bins for the calibration error; 0: no calibration error."""
    confidence: float = 0.95
    """Coverage of each interval, in (0, 1)."""
    sampling: Literal["rows", "users"] = "rows"
    """Unit that is drawn independently from the population: rows, or users, if the rows of one user
    are alike. `users` gives wider intervals."""
    training: tuple[Path, ...] = ()
    """Further embedding sets that the model was trained on; their rows may not be evaluated."""
    overlap: Literal["refuse", "add"] = "refuse"
    """Rows that were trained on as well: `refuse` them, or take them and `add` up both promises."""
    scheme: Literal["own", "iid"] = "own"
    """Which user holds which rows: `own` as the set says, otherwise a simulated partition."""
    users: int | None = None
    """Number of simulated users. 1 declares that a set without users belongs to one user."""
    noise: Noise = "discrete"
    """`discrete` for release, `float` for simulations."""
    seed: int | None = None
    """Seed of a reproducible simulation: noise is float, the result unsuitable for release."""
    allow_delta: bool = False
    """Accept a delta of 1/rows or more, which protects no single row; the report says so."""
    min_survivors: int | None = None
    """Fewest users whose sum is opened (default: all)."""
    ledger: Path | None = None
    """Ledger that counts the epsilon spent on these rows (default: NAME.ledger next to the set;
    with --data it must be given). `none`: nothing is counted, and the report says so."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Sums once, writes evaluation.json, prints every share with its interval.

        Raises:
            ValueError: a setting out of range, or rows that no evaluation may look at.
            FileExistsError: the directory exists.
        """
        self.check_source()
        if self.embeddings is None:
            check.given(ledger=self.ledger)
        self.privacy.validate()
        check.within("[0, 2^63)", **check.drop_none(seed=self.seed))
        given = (self.model, self.embeddings, self.data, self.ledger, *self.training)
        out = output_directory(self.out, "evaluate", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:  # before any noise is drawn
            with reserved(partial, SPARE):
                report, counted = self._evaluated(out)
            write_json(partial / REPORT, report)
        with after(f"{out} was written"):
            counted.spend()
            for line in lines_of(report):
                print(line)
            print(f"{'written':28} {out}")
        return out

    def _evaluated(self, out: Path) -> "tuple[dict[str, Any], LedgerReservation]":
        import torch

        from embed.store import EmbeddingSet
        from pretrain.datasets import EVALUATION
        from train_distributed.ledger.ledger import Ledger
        from train_distributed.ledger.reservation import LedgerReservation
        from train_distributed.one_shot.class_prior import with_shares
        from train_distributed.one_shot.model import MODEL, Release
        from train_distributed.one_shot.source import own_partition
        from train_distributed.released.evaluate import evaluate

        release = Release.load(self.model)
        if self.embeddings is None:
            from train_distributed.released.pictures import held_out_pictures

            embeddings = held_out_pictures(release, *self.rows_of_data(release, labelled=True))
        else:
            embeddings = EmbeddingSet.open(self.embeddings)
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        simulated = partition = None
        if (embeddings.split == EVALUATION).any():  # a set without is refused below
            apart = None if generator is None else generator.clone_state()
            simulated = simulated_partition(embeddings, EVALUATION, self.scheme, self.users, apart)
            partition = simulated or own_partition(embeddings, EVALUATION, single=self.users == 1)
        counted = LedgerReservation(
            Ledger.chosen(self.ledger, self.embeddings or Path(str(self.data))),
            embeddings,
            "evaluation" if self.overlap == "refuse" else "",  # a part that shares no row
            self.privacy,
            method="confusion-matrix",
            result=out,
            kind="evaluation",
            partition=simulated,
        )
        names, several = release.class_names, release.findings
        given = with_shares({"prior": self.prior}, names, findings=several)
        digest = hashlib.sha256((self.model / MODEL).read_bytes()).hexdigest()
        configuration = jsonable(asdict(self))
        with counted.explained():
            found = evaluate(
                release,
                embeddings,
                self.privacy,
                prior=given["prior"],
                bins=self.bins,
                confidence=self.confidence,
                sampling=self.sampling,
                overlap=self.overlap,
                training=[EmbeddingSet.open(path) for path in self.training],
                partition=partition,
                noise="float" if self.seed is not None else self.noise,
                generator=generator,
                min_survivors=self.min_survivors,
                allow_delta=self.allow_delta,
                reserve=counted.reserve,
            )
            told = {"model": digest, "ledger": counted.report(), "configuration": configuration}
        return found.report | told, counted


evaluate = function("evaluate", Evaluate)


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """A report of an evaluation, for people."""
    shown = ("epsilon", "delta", "neighbouring", "noise", "suitable_for_release")
    for name in (*shown, "unsuitable_because", "large_delta", "users", "rows", "with_the_training"):
        if name in report:
            yield f"{name:28} {report[name]}"
    yield f"{'intervals':28} at {100 * report['confidence_level']:g} % each"
    if "per_finding" in report:
        yield f"{'one_sum':28} {report['one_sum']}"
        yield f"{'balanced_accuracy':28} {_share(report['balanced_accuracy'])}"
        for name, of in report["per_finding"].items():
            kinds = {"sensitivity": of["recall"]["present"], "specificity": of["recall"]["absent"]}
            kinds |= {"balanced accuracy": of["balanced_accuracy"]}
            kinds |= {"calibration error": of["expected_calibration_error"]}
            for what, share in kinds.items():
                if share is not None:
                    yield f"{name + ', ' + what:28} {_share(share)}"
        return
    shares = ("accuracy", "majority_baseline", "balanced_accuracy", "expected_calibration_error")
    for name in shares:
        if report[name] is not None:
            yield f"{name:28} {_share(report[name])}"
    for name, share in report["recall"].items():
        label = f"recall of {name}"
        yield f"{label:28} {_share(share)}, of about {max(0, share['rows']):.0f} rows"
    for prior, under in report.get("by_prior", {}).items():
        for name in ("accuracy", "balanced_accuracy"):
            yield f"{name + ', ' + prior:28} {_share(under[name])}"
    for words in report["warnings"]:
        yield f"{'warning':28} {words}"


def _share(share: dict[str, Any]) -> str:
    between = f"{100 * share['low']:.1f} to {100 * share['high']:.1f} %"
    if share["estimate"] is None:
        few = "too few rows to say"
        return few if (share["low"], share["high"]) == (0, 1) else f"{between} ({few} more)"
    return f"{100 * share['estimate']:.1f} % ({between})"
