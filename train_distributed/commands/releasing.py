"""One private model: `run`, `simulate`, and `rival` for what ours is compared with."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import (
    KW_ONLY,
    asdict,
    dataclass,
    fields,
    is_dataclass,
    replace,
)
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from embed.options import Knowledge
from pretrain import check
from pretrain.cli.command import after
from pretrain.cli.menu import part_of
from pretrain.cli.output import new_directory, output_directory, reserved
from pretrain.public import function
from train_distributed.commands.options import (
    MethodName,
    Noise,
    Promise,
    PublicRows,
    PublicSide,
    RunConfig,
    SimulatedUsers,
    jsonable,
    simulated_partition,
)
from train_distributed.one_shot.registry import (
    DEFAULT,
    METHODS,
    HeadOptions,
    SettledOptions,
    SumOptions,
    given,
)

if TYPE_CHECKING:  # what works is imported by the command that runs
    import torch

    from embed import EmbeddingSet, PublicTransform
    from train_distributed.ledger.reservation import LedgerReservation
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.report_file import Report
    from train_distributed.one_shot.request import ReleaseRequest
    from train_distributed.partition import Partition

MANY_BYTES = 500_000  # that a user sends: said on the console
SPARE = 1 << 22  # bytes of report and pictures
NONE = "none"  # of --ledger: nothing is counted
BY_LABEL = ("one-class", "dirichlet")  # a replaced record moves others from user to user

# A flag that may be followed by a file.
EncoderFlag = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="[WEIGHTS]",
    instance_from_str=lambda words: "+".join(words) or True,
    is_instance=lambda value: isinstance(value, bool | str),
    str_from_instance=lambda value: [str(value)],
)


@dataclass(frozen=True)
class Data:
    """Private rows; those of split `test` only test the model."""

    embeddings: Path
    """Embedding set of the private rows, by `embed run`."""
    _: KW_ONLY
    num_classes: int | None = None
    """Number of classes, where the set does not say it."""


@dataclass(frozen=True, kw_only=True)
class Counting:
    """The ledger that counts epsilon, and whether a large delta is allowed."""

    allow_delta: bool = False
    """Accept a delta >= 1/rows, which protects no row."""
    ledger: Path | None = None
    """File NAME.ledger that counts the epsilon spent on these
    rows, or `none` (default: one next to the set)."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options for the output directory, which holds the model, its report and figures."""

    with_encoder: Annotated[bool | str, EncoderFlag, tyro.conf.arg(help_behavior_hint="")] = False
    """Put the encoder in, so that `predict` needs nothing
    else; with its weights if its name is not enough."""
    seed: int | None = None
    """Seed of a simulation, which is not for release."""
    show_settings: bool = False
    """Print all settings as JSON and end; sum nothing."""
    out: Path | None = None
    """Directory to write (default: one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""


@dataclass(frozen=True, kw_only=True)
class MethodChoice:
    """How the model is made (docs/methods.md)."""

    method: MethodName | None = None
    """Default: discriminant, or findings. The others train a
    layer at each user; options: `--method softmax --help`."""
    config: Path | None = None
    """Method and options that `rehearse` wrote."""


@dataclass(frozen=True, kw_only=True)
class Releasing(Output, Counting, Promise, PublicSide, Data):
    """Base of the commands `run`, `simulate` and `rival`."""

    command: ClassVar[str]  # its name

    @classmethod
    def groups(cls, typed: Sequence[str]) -> Mapping[str, tuple[type, ...]]:
        """Options as they are grouped in the help, after these words."""
        del typed
        return {
            "data": (Data,),
            "privacy": (Promise, Counting),
            "public": (PublicRows, Knowledge),
            "output": (Output,),
        }

    def run(self) -> Path:
        """Trains, writes the model's directory, prints the report.

        With `show_settings` nothing is written.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        self.privacy.validate()
        check.within("[0, 2^63)", **check.drop_none(seed=self.seed))
        if self.show_settings:
            request = self._request(*self._partitions())
            print(json.dumps(jsonable(request.described()), indent=1))
            return self.out or Path()
        typed = options_of(self).items()
        read = [each for name, each in typed if isinstance(each, Path) and name != "out"]
        named = [each for each in (self.with_encoder, self.text_encoder) if isinstance(each, str)]
        out = output_directory(self.out, "run", *read, *named, overwrite=self.overwrite)
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
        from train_distributed.ledger.ledger import Ledger
        from train_distributed.ledger.reservation import LedgerReservation

        private, simulated = self._partitions()
        method = self._chosen().method
        if self.with_encoder:  # before any noise is drawn: it may be the wrong one
            from train_distributed.released.pictures import carry_encoder

            weights = None if self.with_encoder is True else self.with_encoder
            carry_encoder(private.encoding, partial, weights)
        counted = LedgerReservation(
            Ledger.chosen(self._ledger(), self.embeddings),
            private,
            "train",
            self.privacy,
            method=method,
            result=out,
            partition=simulated,
        )
        request = self._request(
            private, simulated, reserve=counted.reserve, found=counted.keep_centre
        )
        transform, options = request.settings
        with counted.explained():
            if method in METHODS:
                if request.noise is None:  # which is no simulation
                    facts = {"options": options, "privacy": asdict(self.privacy)}
                    facts |= {"transform": transform.identifier}
                    if (centre := counted.kept_centre(jsonable(facts))) is not None:
                        request = replace(request, centre=centre)
                counted.afford(request.spends())
            with reserved(partial, _size(transform, private)):
                released = self._released(request)
            for reason in self._simulated():
                released = replace(released, report=released.report.with_reason(reason))
            used = {"command": self.command, "transform_options": transform.options}
            settled = request.resolved
            used |= {name: settled.pop(name) for name in ("method", "options")}
            settled.pop("privacy")  # which the options have
            configuration = jsonable(self._typed() | used | {"settings": settled})
            released = released.with_report(ledger=counted.report(), configuration=configuration)
            self._write(released, partial)
        return released, counted

    def _request(
        self, private: "EmbeddingSet", simulated: "Partition | None", **counting: Any
    ) -> "ReleaseRequest":
        """All that the release is made of."""
        from train_distributed.one_shot.request import ReleaseRequest
        from train_distributed.one_shot.source import own_partition

        chosen = self._chosen()
        partition = own_partition(private) if simulated is None else simulated
        if partition.counts.numel() == 1:
            check.not_set("for a single user", user_clip=chosen.options.get("user_clip"))
        names = private.declared_classes or tuple(map(str, range(self.num_classes or 0)))
        return ReleaseRequest(
            embeddings=private,
            method=chosen.method,
            privacy=self.privacy,
            transform=self.transform(private, chosen, names),
            num_classes=self.num_classes,
            partition=partition,
            noise=self._noise(),
            generator=self._generator(),
            allow_delta=self.allow_delta,
            options=chosen.options,
            **counting,
        )

    def _partitions(self) -> "tuple[EmbeddingSet, Partition | None]":
        """The private set, and users that are simulated; None: its own."""
        from embed.store import EmbeddingSet

        private = EmbeddingSet.open(self.embeddings)
        private.need_labels()
        if private.users is None:
            raise ValueError(
                "users must be named by the embedding set, or all rows be one owner's (embed "
                "run --one-user), or be made up (simulate --users N), "
                f"got none for {self.embeddings}"
            )
        return private, None

    def _chosen(self) -> RunConfig:
        """Method and options as given."""
        raise NotImplementedError

    def _noise(self) -> Noise | None:
        """Kind of noise; None: discrete, as it is released."""
        return None if self.seed is None else "float"

    def _generator(self) -> "torch.Generator | None":
        import torch

        return None if self.seed is None else torch.Generator().manual_seed(self.seed)

    def _ledger(self) -> Path | None:
        return self.ledger

    def _simulated(self) -> Sequence[str]:
        """Reasons why the model is a simulation, beside those that its report has anyway."""
        return ()

    def _typed(self) -> dict[str, Any]:
        """Options as typed, but for those of the method: a report has the settled ones."""
        settled = {each.name for each in fields(SettledOptions)}
        return {name: value for name, value in options_of(self).items() if name not in settled}

    def _released(self, request: "ReleaseRequest") -> "Release":
        """By one secure sum or two."""
        from train_distributed.one_shot.release import release_of, with_seconds

        started = time.perf_counter()
        return with_seconds(release_of(request), started)

    def _panel(self) -> Any:
        """Function that draws the figure's privacy panel; None: the usual one."""
        return None

    def _write(self, released: "Release", partial: Path) -> None:
        from train_distributed.one_shot.figure import draw_confusion, draw_release

        released.write(partial)
        draw_release(released.report, partial / "privacy.png", self._panel())
        metrics = released.report.test_metrics
        if metrics is not None and metrics.confusion is not None:  # of up to 100 classes
            draw_confusion(metrics.confusion, released.class_names, partial / "confusion.png")


@dataclass(frozen=True, kw_only=True)
class Run(HeadOptions, SumOptions, MethodChoice, Releasing):
    """Train one differentially private classifier from all users' embeddings.

    The example writes model/model.safetensors and model/report.json, and counts epsilon 1 in
    mine.ledger:

    blind-averaging run --embeddings mine --public public --epsilon 1 --delta 1e-5 --out model
    """

    command: ClassVar[str] = "run"

    @classmethod
    def groups(cls, typed: Sequence[str]) -> Mapping[str, tuple[type, ...]]:
        """Options as they are grouped in the help; those of heads where such a method is typed."""
        common = dict(super().groups(typed))
        output = common.pop("output")
        groups = {**common, "method": (MethodChoice, SumOptions)}
        trained = [name for name, entry in METHODS.items() if entry.rule.l2_reg is not None]
        words = [word.removeprefix("--method=") for word in typed]
        if any(name in words for name in trained):
            groups["head"] = (HeadOptions,)
        return {**groups, "output": output}

    def _chosen(self) -> RunConfig:
        """Method and options as given, or from a configuration file and nowhere else.

        Raises:
            ValueError: both, or a file that was made for another promise.
        """
        options = given(part_of(self, SumOptions)) | given(part_of(self, HeadOptions))
        if self.config is None:
            return RunConfig(self.method or DEFAULT, options, self.privacy)
        chosen = RunConfig.read(self.config)
        check.not_set("with config", method=self.method)
        if options:
            raise ValueError("options of the method must be left out with config")
        if self.public.is_file():
            raise ValueError(f"public must be a set with config, got the file {self.public}")
        if chosen.privacy != self.privacy:
            raise ValueError(
                f"privacy must be what config was chosen for, {chosen.privacy}, got {self.privacy}"
            )
        return chosen


run = function("run", Run)


@dataclass(frozen=True, kw_only=True)
class Simulating(SimulatedUsers, Releasing):
    """Base of `simulate` and `rival`, where users may be made up and noise be floating-point."""

    @classmethod
    def groups(cls, typed: Sequence[str]) -> Mapping[str, tuple[type, ...]]:
        """Options as they are grouped in the help."""
        return {**super().groups(typed), "simulation": (SimulatedUsers,)}

    def _partitions(self) -> "tuple[EmbeddingSet, Partition | None]":
        from embed.store import EmbeddingSet
        from pretrain.datasets import TRAIN

        private = EmbeddingSet.open(self.embeddings)
        private.need_labels()
        scheme = self.scheme or ("own" if self.users is None else "iid")
        given = (scheme, self.users, self._generator())
        return private, simulated_partition(
            private, TRAIN, *given, concentration=self.concentration
        )

    def _simulated(self) -> Sequence[str]:
        if self.scheme not in BY_LABEL:
            return ()
        return ("a simulation: users were given rows by their labels, which no promise covers",)


@dataclass(frozen=True, kw_only=True)
class Simulate(Simulating, Run):
    """Play a run: users may be made up, the noise is seeded, and nothing is counted.

    The model is not for release, as its report says. An example of 100 users:

    blind-averaging simulate --embeddings mine --public public --epsilon 1 --users 100
    """

    command: ClassVar[str] = "simulate"

    def _noise(self) -> Noise | None:
        return self.noise or "float"

    def _generator(self) -> "torch.Generator | None":
        import torch

        if self.noise == "discrete" and self.seed is None:
            return None
        return torch.Generator().manual_seed(self.seed or 0)

    def _ledger(self) -> Path | None:
        return Path(NONE) if self.ledger is None else self.ledger

    def _simulated(self) -> Sequence[str]:
        return ("a simulation, by the command simulate", *super()._simulated())


simulate = function("simulate", Simulate)


def options_of(command: Any) -> dict[str, Any]:
    """Options of a command by name, those of its groups among them."""
    found: dict[str, Any] = {}
    for each in fields(command):
        value: Any = getattr(command, each.name)
        found |= (
            asdict(value)
            if is_dataclass(value) and not isinstance(value, type)
            else {each.name: value}
        )
    return found


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
    if report.test_findings is not None:
        from train_distributed.one_shot.finding_metrics import brief_findings

        for name, value in brief_findings(report["test_findings"]):
            yield f"{name:22} {value}"


def _size(transform: "PublicTransform", private: "EmbeddingSet") -> int:
    """Bytes that a release needs on the disk, and some to spare."""
    classes = max(2, len(private.meta.get("class_names", ())))
    tensors = sum(t.numel() * t.element_size() for t in transform.tensors().values())
    return tensors + 8 * transform.dim * classes + SPARE
