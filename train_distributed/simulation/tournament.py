"""Settings chosen on public pictures: candidates play tasks; after each the worse half leaves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embed import EmbeddingSet
from train_distributed.one_shot.registry import Centre
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.fits import Fits
from train_distributed.simulation.known_before import KnownBefore
from train_distributed.simulation.plan import Choice, Result, by_regret, place, safest_first
from train_distributed.simulation.rehearsal import Candidates, Sizes, rehearse

Rows = list[dict[str, Any]]
PUBLIC, LIKE = "public", "like"  # kinds that need no other name


def candidates_of(
    sizes: Sizes,
    privacy: Privacy,
    dim: int,
    *,
    centre: Centre,
    rounds: int = 0,
    known: bool = False,
) -> Candidates:
    """Candidates of a run on (p,) embeddings, all classes equally probable.

    `known`: something is known of the classes before.
    """
    return Candidates.default(
        dim,
        rounds=rounds,
        centre=centre,
        others=sizes.kept_of_others(privacy, dim),
        discriminants=sizes.discriminants(privacy, dim),
        leading=sizes.leading(privacy, dim) if known else None,
        moment_weight=None if known else sizes.moment_weight(privacy),
    ).for_equal_classes()


@dataclass(frozen=True, kw_only=True)
class Tournament:
    """Candidates for one run, on `tasks` of every kind of public pictures, `seeds` times each."""

    public: EmbeddingSet  # that transforms are fitted on
    sizes: Sizes
    privacy: Privacy
    candidates: Candidates
    tasks: int
    seeds: int
    kinds: Mapping[str, EmbeddingSet | None] = field(default_factory=lambda: {PUBLIC: None})
    balance: Sequence[float] = ()  # as of `rehearse`
    before: KnownBefore | None = None

    @property
    def most(self) -> int:
        """Number of simulations at most: candidates may share one."""
        left, total = self.candidates.settings, 0
        for _ in range(self.tasks):
            total += len(left) * self.seeds * len(self.kinds)
            left = left[: Candidates.half(len(left))]
        return total

    def simulations(self, done: Mapping[str, Rows]) -> Iterator[tuple[str, Rows]]:
        """Key and results of each simulation that is not `done`."""
        done = dict(done)
        whole = Fits(self.public, self.candidates.transforms)
        for task in range(self.tasks):
            left, _ = self._after(task, done)
            for name, like in self.kinds.items():
                sizes, balance = self.sizes, self.balance
                if like is not None and name != LIKE:
                    sizes = sizes.of_classes(len(np.unique(like.labels)))
                if sizes.num_classes < self.sizes.num_classes:
                    balance = ()
                own = f"{name}: "
                for key, found in rehearse(
                    self.public,
                    [sizes],
                    [self.privacy],
                    left,
                    tasks=[task],
                    seeds=self.seeds,
                    balance=balance,
                    before=self.before,
                    like=like,
                    whole=whole,
                    finished={key.removeprefix(own) for key in done if key.startswith(own)},
                ):
                    done[own + key] = [cell.as_dict() for cell in found]
                    yield own + key, done[own + key]

    def ranked(self, done: Mapping[str, Rows]) -> list[Choice]:
        """Candidates that came to the last task, best first, when all simulations are done.

        On several kinds by largest regret, on one by mean accuracy; on public classes alone first
        one that suits other kinds of pictures, if it is nearly as good.
        """
        best = self._after(self.tasks, done)[1]
        return safest_first(best) if self.kinds.keys() == {PUBLIC} else best

    def _after(self, tasks: int, done: Mapping[str, Rows]) -> tuple[Candidates, list[Choice]]:
        """Candidates that are left after so many tasks, and the ranking of who played the last."""
        left, best = self.candidates, list[Choice]()
        played = {
            name: [
                Result(**row)
                for key in sorted(done)
                if key.startswith(f"{name}: ")
                for row in done[key]
            ]
            for name in self.kinds
        }
        for task in range(tasks):
            places, seeds = set(map(place, left.settings)), (task + 1) * self.seeds
            best = by_regret(
                {
                    name: [c for c in cells if c.seed < seeds and place(c) in places]
                    for name, cells in played.items()
                }
            )
            left = left.better_half(best)
        return left, best
