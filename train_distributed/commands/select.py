"""`python -m train_distributed select`: choose the settings of a run on public data alone."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embed.knowledge import NONE, Knowledge
from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import provenance
from train_distributed.commands.configuration import RunConfig
from train_distributed.privacy.promise import Privacy

if TYPE_CHECKING:  # what works is imported by the command that runs
    from embed import EmbeddingSet
    from train_distributed.research.experiments.checkpoint import Checkpoint, Rows
    from train_distributed.simulation.plan import Choice
    from train_distributed.simulation.rehearsal import Sizes
    from train_distributed.simulation.tournament import Tournament

SHOWN = 10


@dataclass(frozen=True)
class Select:
    """Choose the settings of `run` on public data: public directions, their number, sums to send.

    It simulates the run on tasks made of public classes and reads no private rows, so the choice
    costs no privacy. With `--unit user` the length that users' vectors are clipped to is chosen
    too. `run --config` takes the result.
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
    centre: Literal["private", "public"] | None = None
    """Mean that `run` will subtract from all rows; `public` where users take part in one sum only
    (default: `private`, but `public` with `--unit user` or knowledge of the classes)."""
    rounds: int = 0
    """Also try this number of further rounds, each one more secure sum; 0: do not."""
    balance: Path | None = None
    """JSON file of class number and expected share (default: in every second public task half of
    the classes have twice the rows of the others). The choice maximises balanced accuracy."""
    new_classes: bool = False
    """Declare that no private class is a public one. With few public classes, tasks are then
    smaller, so that transforms do not see the classes of their task."""
    like: Path | None = None
    """Labelled public embedding set of pictures like the private ones, of the same encoder: tasks
    are made of it (default: of --public, which says little about pictures of another kind)."""
    shifted: tuple[Path, ...] = ()
    """Labelled public embedding sets of other kinds, of the same encoder, such as letters: tasks
    are made of each of them and of the public set, and the candidate with the least largest regret
    is chosen: how far it is behind the best one, on the kind where that is most."""
    tasks: int = 6
    """Number of public tasks to simulate."""
    seeds: int = 2
    """Simulations per task, each with its own partition and noise."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/). The same command with the same directory
    continues where it was interrupted."""
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
            self.like,
            *self.shifted,
        )
        out = output_directory(self.out, "select", *given, overwrite=self.overwrite)
        with new_directory(out, overwrite=self.overwrite) as partial:
            journal = self._into(partial, out, sizes)
        journal.path.unlink(missing_ok=True)
        print(f"written: {out}")
        return out

    def _into(self, partial: Path, out: Path, sizes: "Sizes") -> "Checkpoint":
        import numpy as np

        from embed import EmbeddingSet
        from train_distributed.one_shot.class_prior import read_shares
        from train_distributed.research.experiments.checkpoint import Checkpoint
        from train_distributed.simulation.clip_candidates import clipped
        from train_distributed.simulation.known_before import KnownBefore
        from train_distributed.simulation.tournament import (
            LIKE,
            PUBLIC,
            Tournament,
            candidates_of,
        )

        public = EmbeddingSet.open(self.public)
        known = KnownBefore.of(self.knowledge, public)
        apart = self.privacy.unit == "user" or self.knowledge.guesses
        candidates = candidates_of(
            sizes,
            self.privacy,
            public.dim,
            centre=self.centre or ("public" if apart else "private"),
            rounds=self.rounds,
            known=known is not None,
        )
        numbers = [str(number) for number in range(self.num_classes)]
        balance = () if self.balance is None else read_shares(self.balance, numbers)
        if self.privacy.unit == "user":
            candidates = clipped(candidates, public, sizes)
        if self.new_classes and self.like is None:
            sizes = sizes.of_new_classes(len(np.unique(public.labels)))
            if self.balance is not None and sizes.num_classes < self.num_classes:
                raise ValueError(
                    "balance must be left out where new_classes leaves too few of the public "
                    f"classes for tasks of {self.num_classes}, got {self.balance}"
                )
        kinds: dict[str, EmbeddingSet | None] = {PUBLIC: None}
        if self.like is not None:
            kinds = {LIKE: _opened("like", self.like, public)}
        kinds |= {f"shifted {path}": _opened("shifted", path, public) for path in self.shifted}
        hashes = {
            name: None if each is None else each.content_hash() for name, each in kinds.items()
        }
        settings = {k: v for k, v in asdict(self).items() if k not in ("out", "overwrite")}
        shown = self.knowledge.examples
        identity = {
            "select": str(settings),
            "public": public.content_hash(),
            "played": hashes,
            "examples": None if shown in (None, NONE) else EmbeddingSet.open(shown).content_hash(),
            "balance": list(balance),
        }
        journal = Checkpoint.beside(out, identity)
        tournament = Tournament(
            public=public,
            sizes=sizes,
            privacy=self.privacy,
            candidates=candidates,
            tasks=self.tasks,
            seeds=self.seeds,
            kinds=kinds,
            balance=balance,
            before=known,
        )
        best = tournament.ranked(_finished(tournament, journal))
        setting = best[0].setting
        chosen = RunConfig(
            setting.method,
            candidates.transforms[setting.transform],
            {"centre": "public", "rounds": 0, **setting.options},  # no default of `run` instead
            self.privacy,
            public.content_hash(),
            public.encoding,
        )
        (partial / "configuration.json").write_text(chosen.text())
        report = {
            **provenance(),
            "federation": asdict(sizes),
            "public_hash": public.content_hash(),
            "private_data_read": False,
            "played_on": list(kinds),
            "played_hashes": hashes,
            "criterion": "largest regret" if self.shifted else "mean balanced accuracy",
            "given_up": len(candidates.settings) - len(best),
            "known_before": {
                "names": known is not None and known.sources.encoder is not None,
                "examples_of_each_class": 0 if known is None else known.examples,
            },
            "candidates": [_described(choice) for choice in best],
        }
        write_json(partial / "report.json", report)
        names = [f"the public set {self.public}" if n == PUBLIC else n for n in kinds]
        print(f"balanced accuracy of the best candidates on tasks of {', '.join(names)}:")
        if kinds.keys() == {PUBLIC}:
            print("for pictures of another kind than the public ones, give --like or --shifted")
        for choice in best[:SHOWN]:
            setting = choice.setting
            options = ", ".join(f"{k} {v}" for k, v in setting.options.items())
            regret = f", at most {100 * choice.regret:.2f} below the best" if self.shifted else ""
            print(
                f"{100 * choice.accuracy:6.2f} %{regret}  {setting.method}, {setting.transform}, "
                f"{options}"
            )
        return journal

    def _checked(self) -> "Sizes":
        from train_distributed.one_shot.further_rounds import MOST_ROUNDS
        from train_distributed.simulation.rehearsal import Sizes

        self.privacy.validate()
        if self.like is not None and self.knowledge != Knowledge():
            raise ValueError(f"like must be left out where classes are known, got {self.like}")
        if self.shifted and (self.like is not None or self.knowledge != Knowledge()):
            raise ValueError(
                "shifted must be left out beside like, and where classes are known, "
                f"got {', '.join(map(str, self.shifted))}"
            )
        check.at_least(1, tasks=self.tasks, seeds=self.seeds)
        check.within(f"[0, {MOST_ROUNDS}]", rounds=self.rounds)
        if self.centre == "private" and (self.privacy.unit == "user" or self.knowledge.guesses):
            raise ValueError("centre must be 'public' with unit user or knowledge, got 'private'")
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


def _finished(tournament: "Tournament", journal: "Checkpoint") -> "dict[str, Rows]":
    """All simulations of a tournament; those in the journal are not played again."""
    from tqdm import tqdm

    done = journal.read()
    if done:
        print(f"continues: {len(done)} simulations are kept", file=sys.stderr)
    played = tournament.simulations(done)
    known = {"total": tournament.most, "initial": len(done), "unit": "simulation"}
    for key, rows in tqdm(played, **known, disable=None, leave=False):
        journal.append(key, rows)
        done[key] = rows
    return done


def _opened(name: str, path: Path, public: "EmbeddingSet") -> "EmbeddingSet":
    """A set to make tasks of; ValueError without labels, or for other embeddings than public."""
    from embed import EmbeddingSet
    from embed.encoding import refuse_other

    found = EmbeddingSet.open(path)
    found.need_labels(name)
    refuse_other(public.encoding, found.encoding, ("public", name))
    if found.dim != public.dim:
        raise ValueError(
            f"{name} must have {public.dim} columns as public, got {found.dim} in {path}"
        )
    return found


def _described(choice: "Choice") -> dict[str, Any]:
    setting = choice.setting
    return {
        "accuracy": choice.accuracy,
        "regret": choice.regret,
        "method": setting.method,
        "transform": setting.transform,
        "options": dict(setting.options),
    }
