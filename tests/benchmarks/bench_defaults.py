"""The public rule for settings that are left out: its fit, and what it loses on digits.

python tests/benchmarks/bench_defaults.py fit --public DIR --method softmax
python tests/benchmarks/bench_defaults.py digits --methods softmax class-sums

`fit` plays runs through on public classes (`simulation.rehearsal`) over components and Λ, and
prints the mean and largest loss of every rule against the best setting of each run. `digits` trains
all methods of `run` on the digits that a dependency ships, through simclr-small, with nothing but
ε: against the best setting of a search that looks at the test rows, as the rule may not.
"""

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy
from train_distributed.one_shot.defaults import PublicFacts, rule_of
from train_distributed.one_shot.registry import Rule
from train_distributed.partition import split
from train_distributed.research.baselines.learn import ALL_METHODS
from train_distributed.simulation.digits import load_digits, split_digits
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.rehearsal import Candidates, Sizes, rehearse

DELTA, USERS = 1e-5, 100
WIDTHS = (16, 32, 64, 128, 256)
L2_REGS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
QUANTILES = (0.02, 0.1, 0.3)
FEDERATIONS = {  # w, n
    "heads": ((100, 10), (100, 40), (20, 40), (1000, 10)),
    "sums": ((100, 10), (100, 40), (1000, 10), (1000, 50)),
}
Run = tuple[int, int, int, float]  # K, w, n, ε
Grid = dict[tuple[int, float], float]  # (q, Λ) -> accuracy


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The rule for settings that are left out")
    commands = parser.add_subparsers(dest="command", required=True)
    fitting = commands.add_parser("fit")
    fitting.add_argument("--public", required=True)
    fitting.add_argument("--method", default="softmax")
    fitting.add_argument("--rows", type=int, default=20_000)
    digits = commands.add_parser("digits")
    digits.add_argument("--methods", nargs="+", default=ALL_METHODS)
    digits.add_argument("--epsilon", type=float, default=3.0)
    digits.add_argument("--seeds", type=int, default=3)
    arguments = vars(parser.parse_args())
    {"fit": fit, "digits": on_digits}[arguments.pop("command")](**arguments)


def fit(public: str, method: str, rows: int) -> None:
    """Prints the rules that lose least over all runs."""
    data = EmbeddingSet.open(public)
    kept = np.random.default_rng(0).permutation(len(data))[:rows]
    found = rehearsed(data.subset(np.sort(kept)), method)
    many = rule_of(method).one_vs_rest
    exponents = (1.0, 0.75, 0.5)
    regularisers = (4, 8, 16, 32, 64) if rule_of(method).l2_reg else (None,)
    table = []
    for exponent, width, l2_reg in product(exponents, (10, 15, 20, 25, 30, 40, 50), regularisers):
        b = width * 0.01**exponent  # so many directions at t = .01
        rule = Rule(b, exponent, l2_reg, many)
        losses = [max(grid.values()) - reached(rule, run, grid) for run, grid in found.items()]
        table.append((np.mean(losses), np.max(losses), b, exponent, l2_reg))
    print("mean loss  largest    b       e     a      points of accuracy, over", len(found), "runs")
    for mean, largest, *values in sorted(table, key=lambda row: row[0])[:5]:
        print(f"{mean:9.2f}  {largest:7.2f}  ", "  ".join(f"{v or 0:5.3g}" for v in values))
    rule = rule_of(method)
    losses = [max(grid.values()) - reached(rule, run, grid) for run, grid in found.items()]
    print(f"{np.mean(losses):9.2f}  {np.max(losses):7.2f}   the rule that is built in")


def rehearsed(public: EmbeddingSet, method: str) -> dict[Run, Grid]:
    """Accuracy in per cent of every setting in every run, two tasks each."""
    transforms = {f"q={q}": TransformOptions(components=q) for q in WIDTHS}
    options = [{"l2_reg": l2_reg} for l2_reg in L2_REGS] if rule_of(method).l2_reg else [{}]
    settings = [MethodConfig(method, method, name, each) for name in transforms for each in options]
    promises = [Privacy(epsilon, DELTA) for epsilon in (0.3, 1.0, 3.0, 10.0)]
    found: dict[Run, dict[tuple[int, float], list[float]]] = defaultdict(lambda: defaultdict(list))
    for classes in (2, 5, 10, 20):
        federations = FEDERATIONS["heads" if rule_of(method).l2_reg else "sums"]
        sizes = [Sizes(users=w, rows_per_user=n, num_classes=classes) for w, n in federations]
        candidates = Candidates(tuple(settings), transforms)
        for _, cells in rehearse(public, sizes, promises, candidates, tasks=2, seeds=1):
            for cell in cells:
                numbers = re.search(r"for (\d+) x (\d+)", cell.scheme)
                assert numbers is not None
                run = (classes, int(numbers[1]), int(numbers[2]), float(cell.epsilon or math.inf))
                place = (int(cell.transform[2:]), float(cell.options.get("l2_reg", 0.0)))
                found[run][place].append(100 * cell.accuracy)
    means = {run: {k: float(np.mean(v)) for k, v in grid.items()} for run, grid in found.items()}
    return means


def reached(rule: Rule, run: Run, grid: Grid) -> float:
    """The accuracy of a rule, between the settings of the grid by their logarithms."""
    classes, users, rows, epsilon = run
    sizes = torch.full((users,), rows)
    known = PublicFacts(sizes=sizes, num_classes=classes, privacy=Privacy(epsilon, DELTA))
    noise = known.noise(rule)
    regularisers = sorted({l2_reg for _, l2_reg in grid})
    wanted = math.log(rule.components / noise**rule.exponent)
    columns = [
        np.interp(wanted, np.log(WIDTHS), [grid[q, r] for q in WIDTHS]) for r in regularisers
    ]
    if rule.l2_reg is None:
        return float(columns[0])
    return float(np.interp(math.log(rule.l2_reg * noise), np.log(regularisers), columns))


def on_digits(methods: Sequence[str], epsilon: float, seeds: int) -> None:
    """Prints accuracy by the rule and by search, and the settings of both."""
    public, private = embedded_digits()
    labels = torch.from_numpy(private.labels[private.split == 0])
    print(f"{USERS} users x {len(labels) // USERS} digits, epsilon {epsilon:g}, {seeds} seeds")
    print(f"{'method':22}{'left out':>9}{'best':>7}   settings left out; best")
    for method in methods:
        promise = Privacy(math.inf if method.startswith("non-private") else epsilon, DELTA)
        sizes = torch.full((USERS,), len(labels) // USERS)
        known = PublicFacts(sizes=sizes, num_classes=10, privacy=promise)

        def accuracy(
            q: int,
            quantile: float,
            l2_reg: float | None,
            method: str = method,
            promise: Privacy = promise,
        ) -> float:
            transform = TransformOptions(components=q, clip_quantile=quantile).fit(public)
            options: dict[str, Any] = {} if l2_reg is None else {"l2_reg": l2_reg}
            values = []
            for seed in range(seeds):
                draw = torch.Generator().manual_seed(seed)
                made = learn(
                    private,
                    method,
                    promise,
                    transform=transform,
                    partition=split(labels, USERS, "iid", generator=draw),
                    noise="float",
                    generator=draw,
                    **options,
                )
                values.append(100 * made.report["test_accuracy"])
            return float(np.mean(values))

        default = known.components(method, public.dim), 0.1, None
        left_out = accuracy(*default)
        best, setting = searched(accuracy, rule_of(method).l2_reg is not None)
        regulariser = known.options(method, {}).get("l2_reg")
        print(
            f"{method:22}{left_out:9.1f}{max(best, left_out):7.1f}   q {default[0]}"
            f"{'' if regulariser is None else f', l2_reg {regulariser:.3g}'};  {setting}",
            flush=True,
        )


def searched(accuracy: Callable[..., float], regularised: bool) -> tuple[float, str]:
    """The best over components x Λ, then over clips at those."""
    l2_regs = L2_REGS if regularised else (None,)
    first = {(q, 0.1, r): accuracy(q, 0.1, r) for q, r in product((8, *WIDTHS), l2_regs)}
    q, _, r = max(first, key=lambda place: first[place])
    found = first | {(q, c, r): accuracy(q, c, r) for c in QUANTILES if c != 0.1}
    q, c, r = place = max(found, key=lambda place: found[place])
    return found[place], f"q {q}, clip {c:g}" + ("" if r is None else f", l2_reg {r:g}")


def embedded_digits() -> tuple[EmbeddingSet, EmbeddingSet]:
    """The public digits, unlabelled, and the private ones with their test rows."""
    from pretrain.encoder import build_encoder
    from pretrain.probe import embed_all

    images, labels = load_digits()
    colour = torch.nn.functional.pad(images, (2, 2, 2, 2)).expand(-1, 3, -1, -1)
    return split_digits(embed_all(build_encoder("simclr-small"), colour).numpy(), labels)


if __name__ == "__main__":
    main()
