"""Accuracy against further rounds, at several ε, and DP-SGD with all rows in one place."""

from collections.abc import Sequence
from typing import IO, Any

from matplotlib.figure import Figure

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.summary import (
    Summary,
    explained,
    mean_of,
    summarise,
    text_table,
)
from train_distributed.research.experiments.work import Sets, Work
from train_distributed.simulation.plan import MethodConfig, Result
from train_distributed.simulation.scenario import Scenario

ROUNDS = (0, 1, 2, 4, 8, 16)
COMPONENTS = 256
CENTRAL = "DP-SGD, one user"


def rounds_work(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """The discriminant of many users after so many rounds, and DP-SGD as the paper runs it."""
    name = f"pca-{min(COMPONENTS, public.dim)}"
    grid = {name: TransformOptions(components=min(COMPONENTS, public.dim))}
    ours = [MethodConfig(str(t), "discriminant", name, {"rounds": t}) for t in ROUNDS]
    users = [Scenario(users=conditions.most, rows_per_user=conditions.rows_per_user)]
    alone = [MethodConfig(CENTRAL, "dp-fl", name)]
    shared = {"promises": conditions.promises, "seeds": conditions.all_seeds}
    sets = Sets(private, public)
    stages = [
        *sets.stages(ours, grid, scenarios=users, folds=conditions.folds, **shared),
        *sets.stages(alone, grid, scenarios=[Scenario(users=1)], folds=conditions.folds, **shared),
    ]
    return Work.joined(stage.work for stage in stages)


def draw(rows: Sequence[dict[str, Any]], file: IO[bytes]) -> None:
    """A curve per ε with its deviation over seeds, and dotted what DP-SGD reaches."""
    figure = Figure(figsize=(6, 4.4), layout="constrained")
    axis = figure.subplots()
    places = range(len(ROUNDS))
    for index, (epsilon, curve, central) in enumerate(_curves(rows)):
        mean, std = ([100 * getattr(s, name) for s in curve] for name in ("mean", "std"))
        axis.errorbar(
            places, mean, std, marker="o", color=f"C{index}", capsize=2, label=f"ε = {epsilon:g}"
        )
        axis.axhline(100 * central.mean, color=f"C{index}", linestyle=":")
        if all(each.balanced is not None for each in curve):
            balanced = [100 * (each.balanced or 0) for each in curve]
            axis.plot(places, balanced, color=f"C{index}", linestyle="--", linewidth=1)
    if (majority := mean_of([Result(**row) for row in rows], "majority")) is not None:
        axis.axhline(100 * majority, color="grey", label="always the largest class")
    axis.set_xticks(list(places), list(map(str, ROUNDS)))
    axis.set(
        xlabel="further rounds",
        ylabel="test accuracy / %   (dotted: DP-SGD, one user; dashed: balanced)",
    )
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(file, dpi=150)


def tell(rows: Sequence[dict[str, Any]]) -> str:
    """Mean ± deviation over seeds in per cent: a line per ε."""
    heads = [*(f"T = {t}" for t in ROUNDS), CENTRAL]
    shown = [
        {"eps": f"{epsilon:g}"}
        | {head: s.to(2) for head, s in zip(heads, (*curve, central), strict=True)}
        for epsilon, curve, central in _curves(rows)
    ]
    return f"{text_table(shown)}\n{explained([Result(**row) for row in rows])}"


def _curves(rows: Sequence[dict[str, Any]]) -> list[tuple[float, list[Summary], Summary]]:
    """ε, what is reached after each number of rounds, and by DP-SGD."""
    cells = [Result(**row) for row in rows]
    found = summarise(cells, ("label", "epsilon"))
    epsilons = dict.fromkeys(cell.epsilon for cell in cells if cell.epsilon is not None)
    return [(e, [found[str(t), e] for t in ROUNDS], found[CENTRAL, e]) for e in sorted(epsilons)]
