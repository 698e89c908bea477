"""Rivals on the private test rows against what a rehearsal on public data chooses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embed import EmbeddingSet, PublicTransform
from train_distributed.research.experiments.checkpoint import Rows
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.work import Jobs, Sets, Stage, Work
from train_distributed.simulation.plan import Cell, Plan, Setting
from train_distributed.simulation.rehearsal import Candidates, Sizes, ranking, rehearse
from train_distributed.simulation.scenario import Scenario

CHOSEN = "ours, chosen by select"
REHEARSAL = "rehearsal: "
REHEARSED = 2  # partitions and noises per public task


def against_choice(
    conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet, rivals: Sequence[Setting]
) -> Work:
    """All candidates and rivals in every scenario, and what its rehearsal chooses for each ε.

    Rivals name the paper's raw transform.
    """
    candidates = Candidates.default(public.dim)
    sets = Sets(private, public)
    ours, transforms = sets.compressed(candidates.transforms)
    train = int((private.split == 0).sum())
    sizes = [(users, conditions.rows_per_user or train // users) for users in conditions.users]
    contest = Contest(conditions, public, candidates, ours, transforms, sizes)
    shared = {"promises": conditions.promises, "scenarios": list(contest.scenarios.values())}
    grid = Stage(contest.plan(settings=candidates.settings, **shared), ours, transforms)
    more = {"seeds": conditions.all_seeds, "folds": conditions.folds}
    return contest.work(sets.stages(rivals, {}, **shared, **more), grid)


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
        """Number of classes K."""
        return len(self.ours.meta["class_names"])

    @property
    def scenarios(self) -> dict[Sizes, Scenario]:
        """What is rehearsed, and what is then run."""
        return {
            Sizes(users=w, rows_per_user=n, num_classes=self.classes, scheme=scheme): Scenario(
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

    def choices(self, done: Mapping[str, Rows], grid: Stage) -> Rows:
        """The grid's rows of the setting that is chosen for each scenario and ε, labelled so."""
        keys = [key for key in done if key.startswith(REHEARSAL)]
        cells = [Cell(**row) for key in keys for row in done[key]]
        found = grid.rows(done)
        rows = []
        for federation, scenario in self.scenarios.items():
            best = ranking(cell for cell in cells if cell.scheme == federation.name)
            for promise in self.conditions.promises:
                epsilon = None if math.isinf(promise.epsilon) else promise.epsilon
                setting = best[epsilon][0].setting
                same = {
                    "method": setting.method,
                    "transform": setting.transform,
                    "options": dict(setting.options),
                    "scheme": scenario.name,
                    "users": scenario.users,
                    "epsilon": epsilon,
                }
                rows += [
                    row | {"label": CHOSEN}
                    for row in found
                    if all(row[name] == value for name, value in same.items())
                ]
        return rows

    def work(self, stages: Sequence[Stage], grid: Stage) -> Work:
        """The rehearsals, then the rivals; among the grid's rows are the chosen ones."""

        def jobs(done: Mapping[str, Rows]) -> Jobs:
            finished = {k.removeprefix(REHEARSAL) for k in done if k.startswith(REHEARSAL)}
            for key, cells in rehearse(
                self.public,
                list(self.scenarios),
                self.conditions.promises,
                self.candidates,
                tasks=self.conditions.tasks,
                seeds=REHEARSED,
                finished=finished,
            ):
                yield REHEARSAL + key, [cell.as_dict() for cell in cells]
            for stage in (*stages, grid):
                yield from stage.jobs(done)

        def collect(done: Mapping[str, Rows]) -> Rows:
            rivals = [row for stage in (*stages, grid) for row in stage.rows(done)]
            return rivals + self.choices(done, grid)

        families = len({setting.training for setting in self.candidates.settings})
        rehearsals = len(self.scenarios) * families * self.conditions.tasks * REHEARSED
        jobs_left = sum(len(stage.plan.jobs()) for stage in (*stages, grid))
        return Work(rehearsals + jobs_left, jobs, collect)
