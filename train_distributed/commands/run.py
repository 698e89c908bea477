"""`python -m train_distributed run`: one private model from a directory of embeddings."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from embed.knowledge import Knowledge
from pretrain import check
from pretrain.cli.interrupts import after
from pretrain.cli.output import new_directory, output_directory, reserved
from train_distributed.commands.choices import MethodGroup, MethodName, Noise, Scheme
from train_distributed.commands.configuration import RunConfig, jsonable
from train_distributed.commands.public_side import PublicSide
from train_distributed.commands.simulated_users import simulated_partition
from train_distributed.one_shot.method_options import MethodOptions
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    from matplotlib.axes import Axes

    from embed import EmbeddingSet, PublicTransform
    from train_distributed.ledger.reservation import LedgerReservation
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.release import ReleaseRequest
    from train_distributed.one_shot.report_file import Report

MANY_BYTES = 500_000  # that a user sends: said on the console
SPARE = 1 << 22  # bytes of report and pictures
BY_LABEL = ("one-class", "dirichlet")  # a replaced record moves others from user to user


@dataclass(frozen=True)
class Run:
    """Train one differentially private classifier from all users' embeddings.

    The example writes model/model.safetensors and model/report.json, and counts epsilon 1 in
    mine.ledger:

    blind-averaging run --embeddings mine --public public --epsilon 1 --delta 1e-5 --out model
    """

    embeddings: Path
    """Embedding set: rows of split 0 are private, rows of split 1 test the model."""
    config: Path | None = None
    """configuration.json of `rehearse`: its method and options, valid for the same promise only."""
    method: MethodName | None = None
    """Training method; docs/methods.md describes each (default: discriminant)."""
    privacy: Privacy = field(default_factory=lambda: Privacy(1.0, 1e-5))
    public: Path | None = None
    """Public embedding set: the transform is fitted on all its rows."""
    transform: Path | None = None
    """Transform of `embed fit-transform`, instead of --public."""
    vouch_for_transform: bool = False
    """Accept a --transform without hashes of its rows: you vouch that none of them is private, and
    the report says so."""
    allow_delta: bool = False
    """Accept a delta of 1/rows or more, which protects no single row; the report says so."""
    knowledge: Knowledge = field(default_factory=Knowledge)
    options: MethodGroup = field(default_factory=MethodOptions)
    num_classes: int | None = None
    """Number of classes K (default: as the set declares); needed if the set declares none."""
    scheme: Scheme = "own"
    """Which user holds which rows: `own` as the set says, otherwise a simulated partition."""
    users: int | None = None
    """Number of simulated users. 1 declares that a set without users belongs to one user."""
    concentration: float | None = None
    """Concentration of the dirichlet partition: small values give users few classes."""
    noise: Noise | None = None
    """`discrete` for release (default), `float` for simulations."""
    seed: int | None = None
    """Seed of a reproducible simulation: noise is float, the model unsuitable for release."""
    min_survivors: int | None = None
    """Fewest users whose sum is opened (default: all)."""
    with_encoder: bool = False
    """Put the encoder into the directory, so that `predict` and `export` need nothing else."""
    encoder_weights: str | None = None
    """Weights file or checkpoint for --with-encoder, if the encoder's name is not enough."""
    ledger: Path | None = None
    """Ledger that counts the epsilon spent on these rows (default: NAME.ledger next to the set).
    `none`: nothing is counted, and the report says so."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Trains, writes the model's directory, prints the report.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        self.privacy.validate()
        if not self.with_encoder:
            check.left_out("without with_encoder", encoder_weights=self.encoder_weights)
        check.within("[0, 2^63)", **check.present(seed=self.seed))
        given = (self.embeddings, self.public, self.transform, self.config, self.ledger)
        given += (self.knowledge.examples,)
        files = [each for each in self.options.given().values() if isinstance(each, Path)]
        out = output_directory(self.out, "run", *given, *files, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:  # before any noise is drawn
            released, counted = self._into(partial, out)
        with after(f"{out} was written"):
            counted.spend()
            for line in lines_of(released.report):  # now: an output that is full costs no model
                print(line)
            print(f"{'ledger':22} {counted.summary()}")
            print(f"{'written':22} {out}")
        return out

    def _into(self, partial: Path, out: Path) -> "tuple[Release, LedgerReservation]":
        import torch

        from embed.store import EmbeddingSet
        from pretrain.datasets import TRAIN
        from train_distributed.ledger.ledger import Ledger
        from train_distributed.ledger.reservation import LedgerReservation
        from train_distributed.one_shot.defaults import PublicFacts
        from train_distributed.one_shot.release import ReleaseRequest
        from train_distributed.one_shot.users import own_partition
        from train_distributed.one_shot.validation import known_classes

        settings = self._settings()
        private = EmbeddingSet.open(self.embeddings)
        private.need_labels()
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        simulated = simulated_partition(
            private, TRAIN, self.scheme, self.users, generator, concentration=self.concentration
        )
        partition = simulated or own_partition(private, single=self.users == 1)
        if partition.counts.numel() == 1:
            check.left_out("for a single user", user_clip=settings.options.get("user_clip"))
        classes = known_classes(private, self.num_classes)
        known = PublicFacts(
            sizes=partition.counts,
            num_classes=classes,
            privacy=self.privacy,
            min_survivors=self.min_survivors,
        )
        side = PublicSide(self.public, self.transform, self.knowledge)
        settings, transform = side.prepared(private, settings, known, counted=self.num_classes)
        if self.with_encoder:  # before any noise is drawn: it may be the wrong one
            from train_distributed.released.encoder import carry_encoder

            carry_encoder(private.encoding, partial, self.encoder_weights)
        ledger = Ledger.chosen(self.ledger, self.embeddings)
        counted = LedgerReservation(
            ledger,
            private,
            "train",
            self.privacy,
            method=settings.method,
            result=out,
            partition=simulated,
        )
        noise, centre = self._noise(settings.method), None
        if noise is None and settings.method in METHODS:  # which is no simulation
            facts = {"options": settings.options, "privacy": asdict(self.privacy)}
            facts |= {"transform": transform.identifier, "min_survivors": self.min_survivors}
            centre = counted.kept_centre(jsonable(facts))
        with counted.explained():
            request = ReleaseRequest(
                embeddings=private,
                method=settings.method,
                privacy=self.privacy,
                transform=transform,
                num_classes=self.num_classes,
                partition=partition,
                noise=noise,
                generator=generator,
                min_survivors=self.min_survivors,
                vouch_for_transform=self.vouch_for_transform,
                allow_delta=self.allow_delta,
                reserve=counted.reserve,
                centre=centre,
                found=counted.keep_centre,
                options=settings.options,
            )
            if settings.method in METHODS:
                counted.afford(request.spends())
            with reserved(partial, _size(transform, private)):
                released = self._released(request, settings.method)
            if self.scheme in BY_LABEL:
                why = "a simulation: users were given rows by their labels, which no promise covers"
                released = replace(released, report=released.report.with_reason(why))
            used = {"method": settings.method, "transform_options": transform.options}
            configuration = jsonable(asdict(self) | used | {"options": settings.options})
            released = released.with_report(ledger=counted.report(), configuration=configuration)
            self._write(released, partial, settings.method)
        return released, counted

    def _settings(self) -> RunConfig:
        """Method, transform and options: as given, or from a configuration file and nowhere else.

        Raises:
            ValueError: both, or a file that was made for another promise.
        """
        if self.config is None:
            method = self.method or "discriminant"
            return RunConfig(method, self.options.given(), self.privacy)
        chosen = RunConfig.read(self.config)
        check.left_out("with config", method=self.method, transform=self.transform)
        if self.options.given():
            raise ValueError("options of the method must be left out with config")
        if chosen.privacy != self.privacy:
            raise ValueError(
                f"privacy must be what config was chosen for, {chosen.privacy}, got {self.privacy}"
            )
        return chosen

    def _noise(self, method: str) -> Noise | None:
        """Kind of noise; None: discrete, or the only kind that a method of many rounds has."""
        if self.noise is not None or method in MANY_ROUNDS:
            return self.noise
        return None if method in METHODS and self.seed is None else "float"

    @staticmethod
    def _released(request: "ReleaseRequest", method: str) -> "Release":
        """By one secure sum; research is loaded for the methods that we compare with."""
        from train_distributed.one_shot.release import with_seconds

        started = time.perf_counter()
        if method in METHODS:
            return with_seconds(request.release(), started)
        from train_distributed.research.baselines.learn import run_rival

        return run_rival(request)

    def _write(self, released: "Release", partial: Path, method: str) -> None:
        from train_distributed.one_shot.figure import draw_confusion, draw_release

        released.write(partial)
        promise = draw_rounds if method in MANY_ROUNDS else None
        draw_release(released.report, partial / "privacy.png", promise)
        metrics = released.report.test_metrics
        if metrics is not None and metrics.confusion is not None:  # of up to 100 classes
            draw_confusion(metrics.confusion, released.class_names, partial / "confusion.png")


def lines_of(report: "Report") -> Iterator[str]:
    """A report of a release, for people."""
    from train_distributed.one_shot.metrics import brief

    shown = ("epsilon", "delta", "neighbouring", "noise", "suitable_for_release")
    shown += ("unsuitable_because", "large_delta", "users", "rows")
    accuracies = ("test_accuracy", "majority_baseline")  # brief() has the balanced one next
    costs = ("epsilon_per_iteration", "rounds", "bits_per_user", "bits_per_edge")
    for name in (*shown, *costs, *accuracies):
        if name in report:
            yield f"{name:22} {report[name]}"
    if (sent := report.bytes_per_user or 0) > MANY_BYTES:
        yield f"{'bytes_per_user':22} {sent:,.0f} (--components bounds them)"
    if report.other_priors is not None:
        yield f"{'other_priors':22} {report.other_priors}"
    if report.test_metrics is not None:
        for name, value in brief(report["test_metrics"]):
            yield f"{name:22} {value}"


def _size(transform: "PublicTransform", private: "EmbeddingSet") -> int:
    """Bytes that a release needs on the disk, and some to spare."""
    classes = max(2, len(private.meta.get("class_names", ())))
    tensors = sum(t.numel() * t.element_size() for t in transform.tensors().values())
    return tensors + 8 * transform.dim * classes + SPARE


def draw_rounds(report: "Report", panel: "Axes") -> None:
    """Draws ε of one round and of all rounds, as a panel of the figure of a run."""
    losses = {
        "one iteration": report.epsilon_per_iteration,
        f"all {report.rounds} rounds": report.epsilon_composed,
        "all rounds, δ = 0": report.epsilon_composed_pure,
    }
    shown = {label: epsilon for label, epsilon in losses.items() if epsilon is not None}
    bars = panel.bar(list(shown), list(shown.values()))
    panel.bar_label(bars, fmt="%.3g")
    panel.set(ylabel=f"ε at δ = {report.delta:g}", yscale="log")
