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
from train_distributed.simulation.rehearsal import Sizes
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.scenario import Scenario
from train_distributed.simulation.tournament import Tournament, candidates_of

SIZES = Sizes(users=100, rows_per_user=40, num_classes=2)
PROMISES = [Privacy(epsilon, 1e-5) for epsilon in (1.0, 3.0)]
EQUAL = {"prior": "equal"}
METHODS, WIDTHS = ("discriminant",), (16, 32, 64, 128, 256)


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
    print("1:n  eps  setting: mean balanced accuracy of select's | best candidate | best of all")
    for promise in PROMISES:
        candidates = candidates_of(SIZES, promise, public.dim, centre="private")
        known = {"public": public, "sizes": SIZES, "privacy": promise, "candidates": candidates}
        tournament = Tournament(tasks=6, seeds=2, **known)
        taken = name_of(tournament.ranked(dict(tournament.simulations({})))[0].setting)
        grid = {f"q={q} principal": TransformOptions(components=q) for q in WIDTHS}
        grid |= candidates.transforms
        others = [
            MethodConfig(m, m, f"q={q} principal", EQUAL) for m, q in product(METHODS, WIDTHS)
        ]
        coordinates, transforms = Sets(private, public).compressed(grid)
        for many in (2, 9):
            cells: list[Result] = []
            for grouping, seed in product(range(arguments.groupings), range(arguments.seeds)):
                plan = Grid(
                    settings=[*candidates.settings, *others],
                    scenarios=[Scenario(users=SIZES.users)],
                    promises=[promise],
                    seeds=[seed],
                    num_classes=2,
                )
                rows = task(coordinates, many, grouping, seed)
                cells += [cell for _, some in run_trials(rows, transforms, plan) for cell in some]
            (found,) = ranking(cells).values()
            accuracy = {name_of(choice.setting): 100 * choice.accuracy for choice in found}
            own = [name_of(setting) for setting in candidates.settings]
            best = [max(some, key=accuracy.__getitem__) for some in (own, accuracy)]
            lowest = min(100 * (cell.balanced or 0) for cell in cells if name_of(cell) == taken)
            words = " | ".join(f"{name}: {accuracy[name]:.1f}" for name in (taken, *best))
            print(f"1:{many} {promise.epsilon:4g}  {words}; lowest of select's {lowest:.1f}")


def name_of(setting: MethodConfig | Result) -> str:
    """Short name of a setting."""
    options = {k: v for k, v in setting.options.items() if k in ("alpha", "keep", "centre")}
    return f"{setting.method} {setting.transform} {options or ''}".strip()


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
