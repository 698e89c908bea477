"""Charter's figure."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = ("charter", "charter_secure_sum", "dp_sgd", "not_private")


def draw(
    path: Path, risks: pd.DataFrame, cuts: pd.DataFrame, theory: Mapping[str, Mapping[str, float]]
) -> None:
    """Mean excess risk and its standard error along every sweep, theory's slopes, and cuts.

    Args:
        path: of the PNG.
        risks: rows with "sweep", what it varies, and every method's risk and bits.
        cuts: rows with "dimension", "digits" and "cuts".
        theory: of every sweep the exponents of the theorem's terms, by name.
    """
    figure = Figure(figsize=(17, 7), layout="constrained")
    axes = figure.subplots(2, 4).flatten()
    for axis, (sweep, exponents) in zip(axes[:5], theory.items(), strict=True):
        _sweep(axis, risks, sweep, exponents)
    _traffic(axes[5], risks)
    _cuts(axes[6], cuts)
    axes[7].set_axis_off()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def by_seed(risks: pd.DataFrame, sweep: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) finite values that a sweep varies, and (n, seeds) risks of a method at them."""
    rows = risks[(risks["sweep"] == sweep) & np.isfinite(risks[sweep].astype(float))]
    table: pd.DataFrame = rows.pivot(index=sweep, columns="seed", values=method)
    return table.index.to_numpy(), np.ascontiguousarray(table.to_numpy())


def _sweep(axis: Axes, risks: pd.DataFrame, sweep: str, exponents: Mapping[str, float]) -> None:
    for name in NAMES[:1] if sweep == "bits" else NAMES:
        x, y = by_seed(risks, sweep, name)
        error = y.std(1, ddof=1) / math.sqrt(y.shape[1])
        axis.errorbar(x, y.mean(1), error, fmt="o-", label=name.replace("_", " "))
    x, y = by_seed(risks, sweep, "charter")
    top = y[0].mean()
    for (term, exponent), style in zip(exponents.items(), (":", "--"), strict=False):
        line = top * (x / x[0]) ** exponent
        axis.plot(x, line, f"k{style}", label=f"theory, {term}: slope {exponent:g}")
    label = {"clients": "clients M", "rows": "rows N", "epsilon": "ε", "bits": "bits per number"}
    axis.set(xlabel=label.get(sweep, sweep), ylabel="excess risk", xscale="log", yscale="log")
    axis.set_xticks(x, [f"{at:g}" for at in x])
    axis.minorticks_off()
    axis.legend(fontsize=6)


def _traffic(axis: Axes, risks: pd.DataFrame) -> None:
    rows = risks[risks["sweep"] == "rounds"]
    for name in NAMES[:3]:
        axis.plot(rows[f"{name}_bits"], rows[name], ".", label=name.replace("_", " "))
    axis.set(xlabel="payload bits per client", ylabel="excess risk", xscale="log", yscale="log")
    axis.legend(fontsize=7)


def _cuts(axis: Axes, cuts: pd.DataFrame) -> None:
    for dimension, rows in cuts.groupby("dimension"):
        axis.plot(rows["digits"], rows["cuts"], "o-", label=f"d = {dimension}")
    axis.set(xlabel="-log10 error", ylabel="cuts", title="max-affine problems, no noise")
    axis.legend(fontsize=7)
