"""Rivals on the private test rows against what a rehearsal on public data chooses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from embed import EmbeddingSet, PublicTransform
from train_distributed.choice import ranking
from train_distributed.conditions import Conditions
from train_distributed.experiment import Cell, Plan, Setting
from train_distributed.journal import Rows
from train_distributed.rehearsal import Candidates, Federation, rehearse
from train_distributed.stages import Jobs, Sets, Stage, Work
from train_distributed.world import World

CHOSEN = "ours, chosen by select"
REHEARSAL = "rehearsal: "
REHEARSED = 2  # partitions and noises per public task


def against_choice(
    conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet, rivals: Sequence[Setting]
) -> Work:
    """Rivals in every world, and what a rehearsal of that world chooses for each ε.

    Rivals name the paper's raw transform, or transforms of the candidates.
    """
    candidates = Candidates.default(public.dim)
    sets = Sets(private, public)
    ours, transforms = sets.compressed(candidates.transforms)
    train = int((private.split == 0).sum())
    sizes = [(users, conditions.rows_per_user or train // users) for users in conditions.users]
    contest = Contest(conditions, public, candidates, ours, transforms, sizes)
    shared = {"promises": conditions.promises, "worlds": list(contest.worlds.values())}
    if all(setting.transform in transforms for setting in rivals):
        plan = contest.plan(settings=rivals, **shared)
        stages = [Stage(plan, ours, transforms)]
    else:
        more = {"seeds": conditions.all_seeds, "folds": conditions.folds}
        stages = sets.stages(rivals, {}, **shared, **more)
    return contest.work(stages)


@dataclass(frozen=True)
class Contest:
    """One federation per number of users and scheme, each with choices of its own."""

    conditions: Conditions
    public: EmbeddingSet
    candidates: Candidates
    ours: EmbeddingSet  # private rows by their coordinates
    transforms: Mapping[str, PublicTransform]  # of those
    sizes: Sequence[tuple[int, int]]  # (users, rows each)

    @property
    def classes(self) -> int:
        """K."""
        return len(self.ours.meta["class_names"])

    @property
    def worlds(self) -> dict[Federation, World]:
        """What is rehearsed, and what is then run."""
        return {
            Federation(users=w, rows_per_user=n, num_classes=self.classes, scheme=scheme): World(
                users=w, scheme=scheme, rows_per_user=n
            )
            for w, n in self.sizes
            for scheme in self.conditions.schemes
        }

    def plan(self, **fields: object) -> Plan:
        """A plan with this contest's seeds and folds."""
        common = {"seeds": self.conditions.all_seeds, "folds": self.conditions.folds}
        plan = Plan(num_classes=self.classes, **common, **fields)  # pyright: ignore[reportArgumentType]
        plan.validate()
        return plan

    def followers(self, done: Mapping[str, Rows]) -> list[Stage]:
        """A stage per world and ε: the choice alone."""
        keys = [key for key in done if key.startswith(REHEARSAL)]
        cells = [Cell(**row) for key in keys for row in done[key]]
        stages = []
        for federation, world in self.worlds.items():
            best = ranking(cell for cell in cells if cell.scheme == federation.name)
            for promise in self.conditions.promises:
                epsilon = None if math.isinf(promise.epsilon) else promise.epsilon
                chosen = replace(best[epsilon][0].setting, label=CHOSEN)
                plan = self.plan(settings=(chosen,), worlds=[world], promises=[promise])
                stages.append(Stage(plan, self.ours, self.transforms, f"chosen for eps {epsilon}"))
        return stages

    def work(self, stages: Sequence[Stage]) -> Work:
        """The rehearsals, the rivals' stages, the choices."""

        def jobs(done: Mapping[str, Rows]) -> Jobs:
            finished = {k.removeprefix(REHEARSAL) for k in done if k.startswith(REHEARSAL)}
            for key, cells in rehearse(
                self.public,
                list(self.worlds),
                self.conditions.promises,
                self.candidates,
                tasks=self.conditions.tasks,
                seeds=REHEARSED,
                finished=finished,
            ):
                yield REHEARSAL + key, [cell.as_dict() for cell in cells]
            for stage in (*stages, *self.followers(done)):
                yield from stage.jobs(done)

        def collect(done: Mapping[str, Rows]) -> Rows:
            every = (*stages, *self.followers(done))
            return [row for stage in every for row in stage.rows(done)]

        families = len({setting.training for setting in self.candidates.settings})
        epsilons, seeds = len(self.conditions.promises), len(self.conditions.all_seeds)
        chosen = len(self.worlds) * (
            families * self.conditions.tasks * REHEARSED + epsilons * seeds
        )
        return Work(chosen + sum(len(stage.plan.jobs()) for stage in stages), jobs, collect)
