"""`select` on small imbalanced two-class tasks, and the best setting found by looking.

python tests/benchmarks/bench_balance.py --public DIR --private DIR

100 users hold 40 rows each of two groups of private classes, 1:2 and 1:9. `select` sees public rows
alone and does not know the shares; "best" is the setting, of its candidates and of others, with the
best mean balanced accuracy over all groupings and seeds on the private test rows.
"""

import argparse
from itertools import product

import numpy as np

from embed import EmbeddingSet
from embed.store import TEST, TRAIN
from embed.transform_options import TransformOptions
from train_distributed import Privacy
from train_distributed.research.experiments.work import Sets
from train_distributed.simulation.plan import Grid, MethodConfig, Result, ranking
from train_distributed.simulation.rehearsal import Candidates, Sizes, rehearse
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.scenario import Scenario

SIZES = Sizes(users=100, rows_per_user=40, num_classes=2)
PROMISES = [Privacy(epsilon, 1e-5) for epsilon in (1.0, 3.0)]
EQUAL = {"prior": "equal"}
METHODS, WIDTHS = ("discriminant", "class-sums", "least-squares"), (16, 32, 64, 128, 256)


def main() -> None:
    """Prints, for every balance and ε, what `select` takes and what is best."""
    parser = argparse.ArgumentParser(description="select on imbalanced two-class tasks")
    parser.add_argument("--public", required=True)
    parser.add_argument("--private", required=True)
    parser.add_argument("--rows", type=int, default=20_000, help="of the public set, at most")
    parser.add_argument("--groupings", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    public, private = EmbeddingSet.open(arguments.public), EmbeddingSet.open(arguments.private)
    kept = np.random.default_rng(0).permutation(len(public))[: arguments.rows]
    public = public.subset(np.sort(kept))
    candidates = Candidates.default(public.dim).for_equal_classes()
    rehearsed = rehearse(public, [SIZES], PROMISES, candidates, tasks=6, seeds=2, balance=())
    chosen = ranking(cell for _, cells in rehearsed for cell in cells)
    grid = {f"q={q} principal": TransformOptions(components=q) for q in WIDTHS}
    grid |= candidates.transforms
    others = [MethodConfig(m, m, f"q={q} principal", EQUAL) for m, q in product(METHODS, WIDTHS)]
    own = [name_of(setting) for setting in candidates.settings]
    settings = [*candidates.settings, *(s for s in others if name_of(s) not in own)]
    private, transforms = Sets(private, public).compressed(grid)
    print("1:n  eps  setting: mean balanced accuracy of select's | best candidate | best of all")
    for many in (2, 9):
        cells: list[Result] = []
        for grouping, seed in product(range(arguments.groupings), range(arguments.seeds)):
            plan = Grid(
                settings=settings,
                scenarios=[Scenario(users=SIZES.users)],
                promises=PROMISES,
                seeds=[seed],
                num_classes=2,
            )
            rows = task(private, many, grouping, seed)
            cells += [cell for _, some in run_trials(rows, transforms, plan) for cell in some]
        for epsilon, found in ranking(cells).items():
            accuracy = {name_of(choice.setting): 100 * choice.accuracy for choice in found}
            taken = name_of(chosen[epsilon][0].setting)
            best = [max(some, key=accuracy.__getitem__) for some in (own, accuracy)]
            lowest = min(
                100 * (cell.balanced or 0)
                for cell in cells
                if cell.epsilon == epsilon and name_of(cell) == taken
            )
            words = " | ".join(f"{name}: {accuracy[name]:.1f}" for name in (taken, *best))
            print(f"1:{many} {epsilon:4g}  {words}; lowest of select's {lowest:.1f}", flush=True)


def name_of(setting: MethodConfig | Result) -> str:
    """Short name of a setting."""
    heavy = " heavy" if setting.options.get("alpha") else ""
    return f"{setting.method} {setting.transform}{heavy}"


def task(private: EmbeddingSet, many: int, grouping: int, seed: int) -> EmbeddingSet:
    """Training rows of two random groups of classes, 1:many, and all test rows of these classes."""
    classes = np.random.default_rng(grouping).permutation(np.unique(private.labels))
    each = 1 + grouping % (len(classes) // 2)
    group = np.full(classes.max() + 1, -1)
    group[classes[:each]], group[classes[each : 2 * each]] = 0, 1
    labels = group[private.labels]
    rng = np.random.default_rng(seed)
    smaller = SIZES.users * SIZES.rows_per_user // (1 + many)
    wanted = (SIZES.users * SIZES.rows_per_user - smaller, smaller)
    rows = [np.flatnonzero((labels >= 0) & (private.split == TEST))]
    for label, number in enumerate(wanted):
        held = np.flatnonzero((labels == label) & (private.split == TRAIN))
        rows.append(rng.choice(held, number, replace=False))
    kept = np.sort(np.concatenate(rows))
    return EmbeddingSet(
        embeddings=private.embeddings[kept],
        labels=labels[kept],
        split=private.split[kept],
    )


if __name__ == "__main__":
    main()
