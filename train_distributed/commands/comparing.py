"""Commands for comparisons: `rival` runs another method, `sweep` and `plot` experiments."""

import gzip
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tyro

from pretrain import check
from pretrain.cli.json_text import parsed
from pretrain.cli.menu import part_of
from pretrain.cli.output import default_directory, new_directory, refuse_inputs
from pretrain.cli.provenance import provenance
from pretrain.public import function
from train_distributed.commands.options import Noise, RunConfig
from train_distributed.commands.releasing import Simulating
from train_distributed.one_shot.registry import MANY_ROUNDS, NOT_PRIVATE, RIVALS, given
from train_distributed.research.experiments.conditions import Conditions, ExperimentName
from train_distributed.research.rivals.options import OPTIONS

if TYPE_CHECKING:  # what works is imported by the command that runs
    from matplotlib.axes import Axes

    from embed import EmbeddingSet
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.report_file import Report
    from train_distributed.one_shot.request import ReleaseRequest
    from train_distributed.research.experiments.checkpoint import Cells, Checkpoint, Work

WORDS = RIVALS | MANY_ROUNDS | NOT_PRIVATE
EXAMPLE = "blind-averaging rival {} --embeddings mine --public public --epsilon {}"


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Settings of the method."""

    components: int | None = None
    """Most directions of the rows that are used (default: by a public rule)."""


@dataclass(frozen=True, kw_only=True)
class Rival(Directions, Simulating):
    """Base of the commands `rival NAME`: options and steps that all of them share."""

    rival: ClassVar[str]  # its name

    @classmethod
    def groups(cls, typed: Sequence[str]) -> Mapping[str, tuple[type, ...]]:
        """Options as they are grouped in the help."""
        common = dict(super().groups(typed))
        output = common.pop("output")
        return {**common, "method": (Directions, OPTIONS[cls.rival]), "output": output}

    def _chosen(self) -> RunConfig:
        directions = {} if self.components is None else {"components": self.components}
        options = given(getattr(self, "options"))  # noqa: B009
        return RunConfig(self.rival, options | directions, self.privacy)

    def _noise(self) -> Noise | None:
        """Kind of noise; None: the only one that a method of many rounds has."""
        return self.noise if self.rival in MANY_ROUNDS else self.noise or "float"

    def _panel(self) -> Any:
        return draw_rounds if self.rival in MANY_ROUNDS else None

    def _released(self, request: "ReleaseRequest") -> "Release":
        """By as many rounds as the method has; research is loaded here."""
        from train_distributed.research.rivals.learn import run_rival

        return run_rival(request)


@cache
def command_of(rival: str) -> type[Rival]:
    """Command of a rival: what all have, and options of its own.

    Raises ValueError for another name.
    """
    check.one_of(WORDS, rival=rival)
    kind: Any = OPTIONS[rival]
    epsilon = "inf" if rival in NOT_PRIVATE else "1"
    about = f"Compare: {WORDS[rival]}.\n\n{EXAMPLE.format(rival, epsilon)}"
    return make_dataclass(
        f"Rival_{rival.replace('-', '_')}",
        [("options", kind, field(default_factory=kind))],
        bases=(Rival,),
        frozen=True,
        kw_only=True,
        namespace={
            **{"__doc__": about, "__module__": __name__},
            **{"rival": rival, "command": f"rival {rival}"},
        },
    )


def rival(name: str, **options: Any) -> Path:
    """Runs a method that ours are compared with, such as "dp-fl"; returns what it wrote.

    Args:
        name: of the rival.
        **options: those of `rival NAME --help`, `embeddings` and `public` at least.

    Raises:
        TypeError: an option that is missing or unknown.
        ValueError: another name, or a setting out of range.
    """
    return function("rival", command_of(name))(**options)


def __getattr__(name: str) -> Any:
    """The command of a rival as a function, for the menu."""
    if name not in WORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function("rival", command_of(name))


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


NOTE = (
    "a simulation with float noise; settings of what is published are chosen per cell on the test "
    "rows, and that choice costs privacy that is not accounted for; cells of one seed share their "
    "noise (common random numbers)"
)


@dataclass(frozen=True)
class Experiment:
    """An experiment and its rows; a base of its own, so that the help names them first."""

    experiment: tyro.conf.Positional[ExperimentName]
    """frontier: accuracy against epsilon, the defaults of `run` and blind averaging as published.
    users: the same against the number of users, with federated DP-SGD. non-iid: for several
    partitions. rivals: one sum, ADMM and Charter. convergence: averaged and global models of two
    users, and of many."""
    embeddings: Path | None = None
    """Embedding set: split 0 is spread over users, split 1 tests. Not for convergence."""
    public: Path | None = None
    """Public embedding set, from which the transforms are fitted. Not for convergence."""


@dataclass(frozen=True)
class Sweep(Conditions, Experiment):
    """Compare methods in one of the experiments; a killed sweep continues where it stopped."""

    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Writes results.json, table.txt and figure.png; prints the table.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        out = default_directory(f"sweep-{self.experiment}") if self.out is None else self.out
        refuse_inputs(out, (self.embeddings, self.public))
        with new_directory(out, overwrite=self.overwrite) as partial:  # nobody else's meanwhile
            text, journal = self._into(partial, out)
        journal.path.unlink(missing_ok=True)
        print(f"{text}\n\nwritten: {out}")
        return out

    def _into(self, partial: Path, out: Path) -> tuple[str, "Checkpoint"]:
        from train_distributed.research.experiments.catalogue import EXPERIMENTS, draw, tell
        from train_distributed.research.experiments.checkpoint import Checkpoint

        part_of(self, Conditions).validate()
        private, public = self._sets()
        work = EXPERIMENTS[self.experiment].work(part_of(self, Conditions), private, public)
        identity = self._identity(private, public)
        journal = Checkpoint.beside(out, identity)
        # A hash of private rows stays in the journal: who knows all but one could try that one.
        configuration = {name: value for name, value in identity.items() if name != "embeddings"}
        result = {
            **provenance(),
            "experiment": self.experiment,
            "configuration": configuration,
            "embeddings": _described_rows(private),
            "public": _described_rows(public),
            "num_classes": private and len(private.meta["class_names"]),
            "simulation": True,
            "suitable_for_release": False,
            "note": NOTE,
            "cells": _finish(work, journal),
        }
        text = tell(result)
        (partial / "results.json").write_text(_dump(result))
        (partial / "table.txt").write_text(text + "\n", "utf-8")
        draw(result, partial / "figure.png")
        return text, journal

    def _sets(self) -> tuple["EmbeddingSet | None", "EmbeddingSet | None"]:
        from embed import EmbeddingSet
        from embed.identity import refuse_leak
        from pretrain.datasets import TEST

        needed = self.experiment != "convergence"
        for name in ("embeddings", "public"):
            given = getattr(self, name)
            if needed != (given is not None):
                rule = "given" if needed else "left out"
                raise ValueError(f"{name} must be {rule} for {self.experiment}, got {given}")
        if self.embeddings is None or self.public is None:
            return None, None
        private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
        private.need_labels()
        private.check_finite()
        public.check_finite("public")
        if self.folds is None and not (private.split == TEST).any():
            raise ValueError(
                f"embeddings must hold test rows (split 1), or folds be given, "
                f"got {self.embeddings} without any"
            )
        if not private.meta.get("class_names"):
            raise ValueError("embeddings must name their classes (meta.json, class_names)")
        if public.dim != private.dim:
            raise ValueError(
                f"public must have {private.dim} columns as embeddings, got {public.dim}"
            )
        refuse_leak(public, private)
        return private, public

    def _identity(
        self, private: "EmbeddingSet | None", public: "EmbeddingSet | None"
    ) -> dict[str, Any]:
        """Values that two runs of one sweep share."""
        return {
            "experiment": self.experiment,
            "embeddings": private and private.content_hash(),
            "public": public and public.content_hash(),
            **asdict(part_of(self, Conditions)),
        }


sweep = function("sweep", Sweep)


@dataclass(frozen=True)
class Plot:
    """Draw the figure of a sweep again from its results.json."""

    results: tyro.conf.Positional[Path]
    """The results.json of a sweep, or the directory that holds it; also as results.json.gz."""
    out: Path | None = None
    """PNG file to write (default: figure.png next to the results)."""

    def run(self) -> Path:
        """Draws, prints the table.

        Raises:
            ValueError: not the result of a sweep.
        """
        from train_distributed.research.experiments.catalogue import EXPERIMENTS, draw, tell

        path = self.results / "results.json" if self.results.is_dir() else self.results
        if not path.exists():
            path = path.with_name(path.name + ".gz")
        try:
            content = path.read_bytes()
            result = parsed(gzip.decompress(content) if path.suffix == ".gz" else content)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise ValueError(f"results must be the JSON of a sweep, got: {error}") from error
        if not isinstance(result, dict) or str(result.get("experiment")) not in EXPERIMENTS:
            raise ValueError(f"results must be the JSON of a sweep, got another file: {path}")
        out = path.with_name("figure.png") if self.out is None else self.out
        try:
            text = tell(result)
            draw(result, out)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"results must be whole, got {path} without: {error}") from error
        print(f"{text}\n\nwritten: {out}")
        return out


plot = function("plot", Plot)


def _finish(work: "Work", journal: "Checkpoint") -> "Cells":
    """All rows of the work, in its order; jobs in the journal are not done again."""
    from tqdm import tqdm

    done = journal.read()
    if done:
        print(f"continues: {_kept(done, work)}", file=sys.stderr)
    for path in journal.others():
        of = "other options, or of another version"
        print(f"kept: an unfinished sweep with {of}, {path}", file=sys.stderr)
    bar = {"total": len(work.keys), "initial": len(done), "unit": "job", "disable": None}
    try:
        for key, rows in tqdm(work.jobs(done), **bar):
            journal.append(key, rows)
            done[key] = json.loads(json.dumps(rows))
    except KeyboardInterrupt as stop:
        where = f" in {journal.path}: the same command continues" if done else ""
        raise KeyboardInterrupt(f"{_kept(done, work)}{where}") from stop
    return [row for key in work.keys for row in done[key]]


def _kept(done: dict[str, "Cells"], work: "Work") -> str:
    rows = sum(map(len, done.values()))
    return f"{rows} rows of {len(done)} of {len(work.keys)} jobs are kept"


def _described_rows(embeddings: "EmbeddingSet | None") -> dict[str, Any]:
    if embeddings is None:
        return {}
    names = ("data", "encoder", "preprocess", "classes", "dropped_rows")
    return {name: embeddings.meta[name] for name in names if name in embeddings.meta}


def _dump(result: dict[str, Any]) -> str:
    """JSON with a line per cell."""
    head = {name: value for name, value in result.items() if name != "cells"}
    cells = ",\n".join("  " + json.dumps(cell) for cell in result["cells"])
    return json.dumps(head, indent=1)[:-2] + f',\n "cells": [\n{cells}\n ]\n}}\n'
