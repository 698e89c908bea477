"""`python -m train_distributed evaluate`: how good a released model is, privately."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check
from pretrain.cli.command import after
from pretrain.cli.output import new_directory, output_directory, reserved, write_json
from train_distributed.commands.choices import Noise
from train_distributed.commands.configuration import jsonable
from train_distributed.commands.model_pictures import ModelPictures
from train_distributed.commands.simulated_users import simulated_partition
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.ledger.reservation import LedgerReservation

REPORT = "evaluation.json"
SPARE = 1 << 22  # bytes of the report


@dataclass(frozen=True, kw_only=True)
class Evaluate(ModelPictures):
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
    privacy: Privacy = field(default_factory=lambda: Privacy(1.0, 1e-5))
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
    """Rows that were trained on: `refuse` them, or `add` them, and both promises add up."""
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
        check.within("[0, 2^63)", **check.present(seed=self.seed))
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
        digest = hashlib.sha256((self.model / MODEL).read_bytes()).hexdigest()
        configuration = jsonable(asdict(self))
        with counted.explained():
            found = evaluate(
                release,
                embeddings,
                self.privacy,
                prior=with_shares({"prior": self.prior}, release.class_names)["prior"],
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


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    """A report of an evaluation, for people."""
    shown = ("epsilon", "delta", "neighbouring", "noise", "suitable_for_release")
    for name in (*shown, "unsuitable_because", "large_delta", "users", "rows", "with_the_training"):
        if name in report:
            yield f"{name:28} {report[name]}"
    yield f"{'intervals':28} at {100 * report['confidence_level']:g} % each"
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
