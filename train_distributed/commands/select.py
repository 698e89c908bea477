"""`python -m train_distributed select`: choose the settings of a run on public data alone."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embed.knowledge import Knowledge
from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.configuration import RunConfig
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.simulation.plan import Choice
    from train_distributed.simulation.rehearsal import Sizes

SHOWN = 10


@dataclass(frozen=True)
class Select:
    """Choose the settings of `run` on public data: directions, their number, weight of moments.

    It simulates the run on tasks made of public classes and reads no private rows, so the choice
    costs no privacy. With `--unit user` a users' clip is chosen too. `run --config` takes the
    result.
    """

    public: Path
    """Labelled public embedding set of the same encoder, with at least as many classes as the
    private task, better twice as many."""
    users: int
    """Number of users that will take part."""
    rows_per_user: int
    """Mean number of rows of a user."""
    num_classes: int
    """Number of classes K of the private task."""
    privacy: Privacy = field(default_factory=lambda: Privacy(1.0, 1e-5))
    knowledge: Knowledge = field(default_factory=Knowledge)
    scheme: Literal["iid", "one-class", "dirichlet"] = "iid"
    """Expected partition of the rows among users."""
    concentration: float | None = None
    """Concentration of the dirichlet partition: small values give users few classes."""
    moments: Literal["all", "none"] = "all"
    """`all`: also try methods that send second moments; `none`: class sums alone, fewer bytes."""
    rounds: int = 0
    """Also try this number of further rounds, each one more secure sum (default: none)."""
    balance: Path | None = None
    """JSON file of class number and expected share (default: public tasks are balanced and 1:2 in
    turns). The choice maximises balanced accuracy in any case."""
    new_classes: bool = False
    """Declare that no private class is a public one. With few public classes, tasks are then
    smaller, so that transforms do not see the classes of their task."""
    like: Path | None = None
    """Labelled public embedding set of the private kind, of the same encoder: tasks are made of it
    (default: of the public set, which says little about pictures of another kind)."""
    tasks: int = 6
    """Number of public tasks to simulate."""
    seeds: int = 2
    """Simulations per task, each with its own partition and noise."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> Path:
        """Writes configuration.json, which `run --config` takes, and report.json; prints the best.

        Raises:
            ValueError: a setting out of range, or too few public classes.
            FileExistsError: the directory exists.
        """
        sizes = self._checked()
        given = (
            self.public,
            self.balance,
            self.knowledge.examples,
            self.knowledge.alike,
            self.like,
        )
        out = output_directory(self.out, "select", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            self._into(partial, sizes)
        print(f"written: {out}")
        return out

    def _into(self, partial: Path, sizes: "Sizes") -> None:
        import numpy as np
        from tqdm import tqdm

        from embed import EmbeddingSet
        from train_distributed.one_shot.class_prior import read_shares
        from train_distributed.simulation.clip_candidates import clipped
        from train_distributed.simulation.known_before import KnownBefore
        from train_distributed.simulation.plan import ranking
        from train_distributed.simulation.rehearsal import Candidates, rehearse

        public = EmbeddingSet.open(self.public)
        candidates = Candidates.default(public.dim, moments=self.moments, rounds=self.rounds)
        candidates = candidates.for_equal_classes()
        numbers = [str(number) for number in range(self.num_classes)]
        balance = () if self.balance is None else read_shares(self.balance, numbers)
        if self.privacy.unit == "user":
            candidates = clipped(candidates, public, sizes)
        known = KnownBefore.of(self.knowledge, public)
        if self.new_classes and self.like is None:
            sizes = sizes.of_new_classes(len(np.unique(public.labels)))
            if self.balance is not None and sizes.num_classes < self.num_classes:
                raise ValueError(
                    "balance must be left out where new_classes leaves too few of the public "
                    f"classes for tasks of {self.num_classes}, got {self.balance}"
                )
        like = None if self.like is None else EmbeddingSet.open(self.like)
        cells, kept = [], candidates
        for task in tqdm(range(self.tasks), unit="task", disable=None, leave=False):
            for _, found in rehearse(
                public,
                [sizes],
                [self.privacy],
                kept,
                tasks=[task],
                seeds=self.seeds,
                balance=balance,
                before=known,
                like=like,
            ):
                cells += found
            kept = kept.still_close(cells)
        names = {(setting.transform, str(setting.options)) for setting in kept.settings}
        ended = [cell for cell in cells if (cell.transform, str(cell.options)) in names]
        (best,) = ranking(ended).values()
        setting = best[0].setting
        chosen = RunConfig(
            setting.method,
            candidates.transforms[setting.transform],
            dict(setting.options),
            self.privacy,
            public.content_hash(),
        )
        (partial / "configuration.json").write_text(chosen.text())
        report = {
            **provenance(),
            "federation": asdict(sizes),
            "public_hash": public.content_hash(),
            "private_data_read": False,
            "played_on": "public" if like is None else "like",
            "like_hash": None if like is None else like.content_hash(),
            "given_up": len(candidates.settings) - len(kept.settings),
            "known_before": {
                "names": known is not None and known.sources.encoder is not None,
                "examples_of_each_class": 0 if known is None else known.examples,
            },
            "candidates": [_described(choice) for choice in best],
        }
        write_json(partial / "report.json", report)
        played = "the public set" if like is None else f"{self.like}, not {self.public}"
        print(f"balanced accuracy of the best candidates on tasks of {played}:")
        for choice in best[:SHOWN]:
            setting = choice.setting
            options = ", ".join(f"{k} {v}" for k, v in setting.options.items())
            print(
                f"{100 * choice.accuracy:6.2f} %  {setting.method}, {setting.transform}, {options}"
            )

    def _checked(self) -> "Sizes":
        from train_distributed.one_shot.further_rounds import MOST_ROUNDS
        from train_distributed.simulation.rehearsal import Sizes

        self.privacy.validate()
        if self.like is not None and self.knowledge != Knowledge():
            raise ValueError(f"like must be left out where classes are known, got {self.like}")
        check.at_least(1, tasks=self.tasks, seeds=self.seeds)
        check.within(f"[0, {MOST_ROUNDS}]", rounds=self.rounds)
        if self.rounds and self.privacy.unit == "user":
            raise ValueError(f"rounds must be 0 where users are clipped, got {self.rounds}")
        sizes = Sizes(
            users=self.users,
            rows_per_user=self.rows_per_user,
            num_classes=self.num_classes,
            scheme=self.scheme,
            concentration=self.concentration,
        )
        sizes.validate()
        return sizes


def _described(choice: "Choice") -> dict[str, Any]:
    setting = choice.setting
    return {
        "accuracy": choice.accuracy,
        "method": setting.method,
        "transform": setting.transform,
        "options": dict(setting.options),
    }
