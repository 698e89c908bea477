"""Does averaging find the global model? Two clouds (Fig. 4), and the rate of Theorem 6.2.

Both of Kirschte et al. 2024, without noise: what is looked at is averaging itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from embed.clip import add_constant_and_clip
from heads import HuberSVMHead, fit_sgd
from train_distributed.research.experiments.checkpoint import Cells, Work
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.figures import text_table
from train_distributed.research.rivals.averages import fit_dual

CLIP_NORM = 5.0
CLOUDS = ((-1.5, 1.0), (1.0, -1.0))  # centres of the two classes
SPREAD = 0.7
EACH = 250  # rows of a cloud
USERS, ROWS = 20, 50  # of the rate experiment; a user holds one class
LARGE = CLIP_NORM**2  # from here on every row lies inside every margin: |w·x| <= c²/Λ
L2_REGS = (2 * LARGE, LARGE, LARGE / 2, LARGE / 5, LARGE / 25, LARGE / 125)
STEPS = tuple(2**k for k in range(4, 15))
REPEATS = 10  # orders of the records that are averaged over, per seed
STYLES: dict[str, dict[str, Any]] = {
    "user 1": {"color": "C0", "linewidth": 2.5, "zorder": 3},
    "user 2": {"color": "C1", "linewidth": 2.5, "zorder": 3},
    "global": {"color": "black", "linewidth": 2.5, "zorder": 3},
    "average": {"color": "C2", "linewidth": 2.5, "zorder": 5, "linestyle": "--"},
}
Matrix = NDArray[np.float64]


def work(conditions: Conditions, private: None, public: None) -> Work:
    """Averaged and global models: two clouds (Fig. 4), and many users (Thm 6.2)."""
    found: dict[str, Callable[[], Cells]] = {"clouds": two_clouds}
    for l2_reg in L2_REGS:
        for seed in conditions.all_seeds:
            found[f"rate, l2_reg {l2_reg:g}, seed {seed}"] = partial(rate, l2_reg, seed)
    return Work.of(found)


def clouds(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, rows, 3) clipped rows with a constant 1, a class each, with (2, rows) labels."""
    points = torch.randn(2, rows, 2, generator=generator, dtype=torch.float64) * SPREAD
    points += torch.tensor(CLOUDS, dtype=torch.float64)[:, None]
    x = torch.stack([add_constant_and_clip(part, CLIP_NORM) for part in points])
    return x, torch.arange(2)[:, None].expand(2, rows).contiguous()


def two_clouds() -> Cells:
    """Normal vectors of two local SVMs, their average and the global one, with the points.

    The paper's settings: Λ 20, R 1, c 5, 250 rows each, batches of 25, 500 epochs.
    """
    x, y = clouds(EACH, torch.Generator().manual_seed(0))
    head = HuberSVMHead(num_classes=2, l2_reg=20.0, clip_norm=CLIP_NORM, radius=1.0)
    local = fit_sgd(head, x, y, epochs=500, batch_size=25)[..., 1]
    order = torch.randperm(2 * EACH, generator=torch.Generator().manual_seed(1))
    rows, labels = x.flatten(0, 1)[order], y.flatten()[order]
    whole = fit_sgd(head, rows, labels, epochs=500, batch_size=25)[..., 1]
    average = local.mean(0)
    distance = ((average - whole).norm() / whole.norm()).item()
    models = {"user 1": local[0], "user 2": local[1], "average": average, "global": whole}
    found: Cells = [
        {"kind": "model", "model": name, "weights": weights.tolist(), "distance": distance}
        for name, weights in models.items()
    ]
    points = [
        {"kind": "points", "label": k, "x": x[k, :, 1].tolist(), "y": x[k, :, 2].tolist()}
        for k in range(2)
    ]
    return found + points


@dataclass(frozen=True)
class Hinge:
    """J(w) = Λ/2 ‖w‖² + mean max(0, 1 − z·w), with z = y x, rows of one or of all users."""

    z: Matrix  # (n, d)
    l2_reg: float

    def objective(self, w: Matrix) -> Matrix:
        """(..., d) weights -> (...) values of J."""
        losses = np.maximum(0.0, 1.0 - w @ self.z.T).mean(-1)
        return self.l2_reg / 2 * (w**2).sum(-1) + losses

    def minimum(self) -> tuple[Matrix, float]:
        """w and J(w), to liblinear's last bits.

        Raises:
            ArithmeticError: not converged.
        """
        weights, converged = fit_dual(self.z, np.ones(len(self.z), np.int64), 2, self.l2_reg)
        if not converged:
            raise ArithmeticError("liblinear must converge to the least objective")
        return weights[:, 1], float(self.objective(weights[:, 1]))


def averaged_subgradient(
    z: Matrix, l2_reg: float, radius: float, rng: np.random.Generator
) -> Matrix:
    """Weighted averages of projected stochastic subgradient descent, after each of `STEPS`.

    Lacoste-Julien, Schmidt and Bach 2012: γ_t = 2/(Λ(t + 1)), w̄_T ∝ Σ (t + 1) w_t, t from 0; one
    record a step, drawn with replacement by every user on its own.

    Args:
        z: (users, n, d).
        l2_reg: Λ.
        radius: of the projection.
        rng: of the draws.

    Returns:
        (len(STEPS), REPEATS, users, d).
    """
    users, n, d = z.shape
    w, total = np.zeros((REPEATS, users, d)), np.zeros((REPEATS, users, d))
    kept, who = [], np.arange(users)
    for t in range(STEPS[-1] + 1):
        total += (t + 1) * w
        if t in STEPS:
            kept.append(total * (2 / ((t + 1) * (t + 2))))
        drawn = z[who, rng.integers(n, size=(REPEATS, users))]
        active = (drawn * w).sum(-1, keepdims=True) < 1
        w = w - 2 / (l2_reg * (t + 1)) * (l2_reg * w - drawn * active)
        norm = np.linalg.norm(w, axis=-1, keepdims=True)
        w = np.where(norm > radius, w * (radius / np.maximum(norm, radius)), w)
    return np.stack(kept)


def rate(l2_reg: float, seed: int) -> Cells:
    """Excess global objective of the average of users, one class each, against local steps M."""
    x, _ = clouds(USERS * ROWS // 2, torch.Generator().manual_seed(seed))
    signed = (x * torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None, None]).numpy()
    z = signed.reshape(USERS, ROWS, 3)
    union = Hinge(z.reshape(-1, 3), l2_reg)
    w, best = union.minimum()
    local = np.stack([Hinge(rows, l2_reg).minimum()[0] for rows in z])
    scores = [float((rows @ v).max()) for rows, v in zip(z, local, strict=True)]
    inside = max(float((union.z @ w).max()), *scores)
    floor = float(union.objective(local.mean(0))) - best
    radius = CLIP_NORM / l2_reg
    found = averaged_subgradient(z, l2_reg, radius, np.random.default_rng(seed))
    excess = (union.objective(found.mean(2)) - best).mean(1)
    return [
        {
            "kind": "rate",
            "l2_reg": l2_reg,
            "seed": seed,
            "iterations": steps,
            "excess": float(value),
            "floor": floor,
            "all_inside_margin": inside <= 1,
        }
        for steps, value in zip(STEPS, excess, strict=True)
    ]


@dataclass(frozen=True)
class Rate:
    """Excess of the average against local steps, of all seeds of one Λ."""

    steps: list[int]  # M, rising
    excess: Matrix  # (steps, seeds)
    floor: float  # of exact heads, mean over seeds
    inside: bool  # whether all rows lie inside the margin, with every seed

    @property
    def slope(self) -> float:
        """Least-squares slope of log mean excess against log M, over the last five M."""
        mean = self.excess[-5:].mean(1)
        return float(np.polyfit(np.log(self.steps[-5:]), np.log(mean), 1)[0])


def rates(cells: Sequence[dict[str, Any]]) -> dict[float, Rate]:
    """Λ, the largest first -> what was found."""
    found = {}
    measured = [row for row in cells if row["kind"] == "rate"]
    for l2_reg in sorted({row["l2_reg"] for row in measured}, reverse=True):
        mine = [row for row in measured if row["l2_reg"] == l2_reg]
        steps = sorted({row["iterations"] for row in mine})
        excess = [[row["excess"] for row in mine if row["iterations"] == m] for m in steps]
        floor = float(np.mean([row["floor"] for row in mine]))
        inside = all(row["all_inside_margin"] for row in mine)
        found[l2_reg] = Rate(steps, np.array(excess), floor, inside)
    return found


def draw(result: Mapping[str, Any], file: IO[bytes]) -> None:
    """Left the clouds, in the middle the normal vectors, right the rates."""
    rows = result["cells"]
    figure = Figure(figsize=(16, 4.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _clouds(rows, left)
    _normals(rows, middle)
    _rates(rows, right)
    figure.savefig(file, dpi=150)


def _clouds(rows: Sequence[dict[str, Any]], axis: Axes) -> None:
    for row in (row for row in rows if row["kind"] == "points"):
        axis.scatter(row["x"], row["y"], s=6, alpha=0.4, color=f"C{row['label']}")
    span = np.linspace(-5, 5, 2)
    for row in (row for row in rows if row["kind"] == "model"):
        a, b, c = row["weights"]
        line = -(a + b * span) / c
        axis.plot(span, line, label=f"{row['model']} hyperplane", **STYLES[row["model"]])
    axis.set(xlim=(-4, 4), ylim=(-4, 4), xlabel="first feature", ylabel="second feature")
    axis.set_title("two users, one class each: Λ = 20, R = 1, c = 5")
    axis.legend(fontsize=8)


def _normals(rows: Sequence[dict[str, Any]], axis: Axes) -> None:
    models = [row for row in rows if row["kind"] == "model"]
    distance = models[0]["distance"]
    for row in models:
        _, b, c = row["weights"]
        axis.plot([0, b], [0, c], marker="o", label=row["model"], **STYLES[row["model"]])
    axis.set(xlabel="first weight", ylabel="second weight")
    axis.set_title(f"normal vectors: ‖average − global‖ = {distance:.1e} ‖global‖")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _rates(rows: Sequence[dict[str, Any]], axis: Axes) -> None:
    for l2_reg, each in rates(rows).items():
        where = "all rows inside the margin" if each.inside else "rows outside the margin"
        label = f"Λ = {l2_reg:g}, {where}: slope {each.slope:.2f}"
        low, mean, high = each.excess.min(1), each.excess.mean(1), each.excess.max(1)
        (line,) = axis.plot(each.steps, mean, "o-", markersize=3, label=label)
        axis.fill_between(each.steps, low, high, alpha=0.2, color=line.get_color())
    axis.set(xscale="log", yscale="log", xlabel="local steps M of every user")
    axis.set_ylabel("J(average) − min J on the union (band: seeds)")
    axis.set_title("20 users, one class each, hinge loss (Thm 6.2)")
    axis.legend(fontsize=7)
    axis.grid(alpha=0.3)


def tell(result: Mapping[str, Any]) -> str:
    """Distance of the two-cloud models, then slope and last excess by Λ."""
    rows = result["cells"]
    distance = next(row["distance"] for row in rows if row["kind"] == "model")
    shown = [
        {"Λ": f"{l2_reg:g}", "slope": f"{each.slope:.2f}"}
        | {"excess at last M": f"{each.excess[-1].mean():.2e}"}
        | {"of exact heads": f"{each.floor:.2e}"}
        | {"margin": "all rows inside" if each.inside else "rows outside"}
        for l2_reg, each in rates(rows).items()
    ]
    head = f"two clouds: ‖average − global‖ / ‖global‖ = {distance:.2e}"
    return f"{head}\n\n{text_table(shown)}"
