"""Charter's figure."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = ("charter", "charter_secure_sum", "dp_sgd", "not_private")
Rows = list[dict[str, Any]]


def draw(path: Path, risks: Rows, cuts: Rows, theory: Mapping[str, Mapping[str, float]]) -> None:
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
        _sweep(axis, [row for row in risks if row["sweep"] == sweep], sweep, exponents)
    _traffic(axes[5], risks)
    _cuts(axes[6], cuts)
    axes[7].set_axis_off()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _sweep(axis: Axes, rows: Rows, sweep: str, exponents: Mapping[str, float]) -> None:
    rows = [row for row in rows if math.isfinite(row[sweep])]
    x = np.array(sorted({row[sweep] for row in rows}))
    for name in NAMES[:1] if sweep == "bits" else NAMES:
        y = np.array([[row[name] for row in rows if row[sweep] == at] for at in x])
        error = y.std(1, ddof=1) / math.sqrt(y.shape[1])
        axis.errorbar(x, y.mean(1), error, fmt="o-", label=name.replace("_", " "))
    top = np.mean([row["charter"] for row in rows if row[sweep] == x[0]])
    for (term, exponent), style in zip(exponents.items(), (":", "--"), strict=False):
        line = top * (x / x[0]) ** exponent
        axis.plot(x, line, f"k{style}", label=f"theory, {term}: slope {exponent:g}")
    label = {"clients": "clients M", "rows": "rows N", "epsilon": "ε", "bits": "bits per number"}
    axis.set(xlabel=label.get(sweep, sweep), ylabel="excess risk", xscale="log", yscale="log")
    axis.set_xticks(x, [f"{at:g}" for at in x])
    axis.minorticks_off()
    axis.legend(fontsize=6)


def _traffic(axis: Axes, risks: Rows) -> None:
    rows = [row for row in risks if row["sweep"] == "rounds"]
    for name in NAMES[:3]:
        bits = [row[f"{name}_bits"] for row in rows]
        axis.plot(bits, [row[name] for row in rows], ".", label=name.replace("_", " "))
    axis.set(xlabel="payload bits per client", ylabel="excess risk", xscale="log", yscale="log")
    axis.legend(fontsize=7)


def _cuts(axis: Axes, cuts: Rows) -> None:
    for dimension in sorted({row["dimension"] for row in cuts}):
        rows = [row for row in cuts if row["dimension"] == dimension]
        digits = [row["digits"] for row in rows]
        axis.plot(digits, [row["cuts"] for row in rows], "o-", label=f"d = {dimension}")
    axis.set(xlabel="-log10 error", ylabel="cuts", title="max-affine problems, no noise")
    axis.legend(fontsize=7)
