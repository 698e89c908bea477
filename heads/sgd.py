"""Projected SGD (Algorithms 1 and 2), all users at once, on the weights or in the Gram matrix."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heads.head import Head, check_precision
from heads.projection import ball_scale, project_ball_, sum_over
from heads.rounding import Method, gram_knows_norm, gram_step_error, prefers_gram
from heads.rows import check_counts, check_rows, row_norms

Rows = slice | Tensor  # of a batch: a view in the given order, or (users, b) indices


@dataclass(frozen=True)
class Step:
    """One batch of every user."""

    rows: Rows
    shrink: float | Tensor  # 1 − α_m Λ, per user (users, 1, 1) if padded; 1 where no batch is left
    rate: float | Tensor  # α_m / b, nominal b; 0 where no batch is left
    first: bool  # of an epoch


class Schedule:
    """Rows that every user visits, and learning rates."""

    def __init__(
        self,
        beta: float,
        l2_reg: float,
        epochs: int,
        batch_size: int,
        shape: torch.Size,
        counts: Tensor | None,
        like: Tensor,
        generator: torch.Generator | None,
    ) -> None:
        self.beta, self.l2_reg, self.epochs = beta, l2_reg, epochs
        self.users, self.n = shape
        self.batch_size = min(batch_size, self.n)
        self.counts, self.like, self.generator = counts, like, generator
        place = torch.arange(self.n, device=like.device)
        self.mask = None if counts is None else (place < counts[:, None]).to(like.dtype)[..., None]

    def __iter__(self) -> Iterator[Step]:
        batches = math.ceil(self.n / self.batch_size)
        for epoch in range(self.epochs):
            order = self._order()
            for batch in range(batches):
                start = batch * self.batch_size
                stop = min(start + self.batch_size, self.n)
                rows = slice(start, stop) if order is None else order[:, start:stop]
                shrink, rate = self._rates(epoch, batch, batches)
                yield Step(rows, shrink, rate, first=batch == 0)

    def may_leave(self, head: Head, norm2: Tensor, first: Step, dim: int) -> Tensor:
        """Marks models that may leave their ball in this epoch, a step moving W by αL; (...) bool.

        Rounding is counted (`heads.rounding`): ‖W‖² computed afresh is off by less than 2NuS², a
        step by NuS. Every model is marked where users are padded.
        """
        if head.radius is None or isinstance(first.rate, Tensor):
            return torch.ones_like(norm2, dtype=torch.bool)
        steps = math.ceil(self.n / self.batch_size)
        lost = gram_step_error(head, self.n, dim, norm2.dtype)
        reach = steps * (first.rate * self.batch_size * head.lipschitz + lost)
        largest = (norm2 + 2 * lost * head.lipschitz / head.l2_reg).sqrt()
        return ~(largest + reach <= head.radius)

    def _order(self) -> Tensor | None:
        """(users, n): a permutation of each user's own rows, padding left at the end."""
        if self.generator is None:
            return None
        keys = torch.rand(
            self.users, self.n, generator=self.generator, device=self.generator.device
        ).to(self.like.device)
        if self.mask is not None:
            keys = keys.where(self.mask.squeeze(-1) > 0, 2.0)
        return keys.argsort(1)

    def _rates(self, epoch: int, batch: int, batches: int) -> tuple[float | Tensor, float | Tensor]:
        if self.counts is None:
            alpha = min(1 / self.beta, 1 / (self.l2_reg * (epoch * batches + batch + 1)))
            return max(0.0, 1 - alpha * self.l2_reg), alpha / self.batch_size
        nominal = self.counts.clamp(max=self.batch_size)
        own_batches = -(-self.counts // nominal)
        own_step = (epoch * own_batches + batch + 1).to(self.like.dtype)
        alpha = (1 / (self.l2_reg * own_step)).clamp(max=1 / self.beta)
        alpha = alpha.where(batch < own_batches, 0.0)[:, None, None]
        return (1 - alpha * self.l2_reg).clamp(min=0), alpha / nominal[:, None, None]


def take(values: Tensor, rows: Rows) -> Tensor:
    """values[:, rows]: (users, n, k) -> (users, b, k)."""
    if isinstance(rows, slice):
        return values[:, rows]
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[2]))


def columns(values: Tensor, rows: Rows) -> Tensor:
    """values[..., rows]: (users, k, n) -> (users, k, b)."""
    if isinstance(rows, slice):
        return values[..., rows]
    return values.gather(2, rows[:, None].expand(-1, values.shape[1], -1))


def subtract(values: Tensor, rows: Rows, change: Tensor) -> None:
    """values[..., rows] −= change."""
    if isinstance(rows, slice):
        values[..., rows].sub_(change)
    else:
        values.scatter_add_(2, rows[:, None].expand_as(change), -change)


REFRESH = 8  # epochs between two evaluations of GA from scratch
FOLD = 2.0**-16  # scale below which it goes into the coefficients


def fit_sgd(
    head: Head,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    smoothness: float | None = None,
    generator: torch.Generator | None = None,
    counts: Tensor | None = None,
    method: Method = "auto",
) -> Tensor:
    """Trains every user's head by projected SGD from zero; `sgd_sensitivity` holds.

    Step m of a user: W ← Π_R(W − α_m (ΛW + 1/b Σ_batch ∇loss)), α_m = min(1/β, 1/(Λm)). Every
    epoch visits every record once. A short last batch is divided by the nominal batch size b like
    any other, m counts a user's own batches from 1, and only whole epochs are run: the bound needs
    all three. A user with n < b rows has b = n. The bound is `head.sensitivity(n)` in exact
    arithmetic, and `sgd_rounding` is what floating point adds. ‖W‖ ≤ R holds exactly, rounding
    included.

    The stated sensitivity also needs β ≥ `head.smoothness`. A `smoothness` below what the given
    rows themselves need is refused here; the lower one that lies between the two (rows shorter
    than the clip norm) serves reproduction, not release.

    Args:
        head: loss, Λ, c, and R if the iterates are projected.
        x: (users, n, d) or (n, d) float, rows ‖x‖ ≤ head.clip_norm, constant column first.
        y: (users, n) or (n,) int64 in [0, K).
        epochs: whole passes, at least 1.
        batch_size: nominal b, at least 1.
        smoothness: β of the step size; None: head.smoothness.
        generator: draws a new order for every user and epoch; None: the given order, which must
            not depend on what is in the rows, as an order by label does.
        counts: (users,) true rows of each user where `x` is padded at the end.
        method: "gram" keeps coefficients A (n, K) with W = XᵀA; "primal" keeps W; "auto" takes
            the smaller, unless the radius is so far below L/Λ or the steps are so many that the
            Gram form is not precise enough. The iterates are the same up to rounding.

    Returns:
        (users, d, K) or (d, K) weights, of x's type and device.

    Raises:
        ValueError: an argument out of its range, rows longer than the clip norm, constants that
            rows of this type cannot carry, "gram" where it cannot tell whether ‖W‖ > R.
    """
    check_rows(x, y, head.num_classes, head.clip_norm)
    check_precision(head, x.dtype)
    counts = check_counts(counts, x)
    if epochs < 1:
        raise ValueError(f"epochs must be >= 1, got {epochs}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    beta = _step_smoothness(head, x, smoothness)
    batched = x.ndim == 3
    x, y = (x, y) if batched else (x.unsqueeze(0), y.unsqueeze(0))
    _, n, d = x.shape
    if method == "auto":
        gram = prefers_gram(head, n, d, epochs, batch_size)
        method = "gram" if gram else "primal"
    schedule = Schedule(beta, head.l2_reg, epochs, batch_size, x.shape[:2], counts, x, generator)
    if method == "gram":
        if not gram_knows_norm(head, n, d, torch.float64):
            raise ValueError(
                "radius must be larger beside lipschitz / l2_reg = "
                f"{head.lipschitz / head.l2_reg:.3g} for method 'gram', got {head.radius}"
            )
        weights = _fit_gram(head, x, y, schedule)
    elif method == "primal":
        weights = _fit_primal(head, x, y, schedule)
    else:
        raise ValueError(f"method must be 'auto', 'gram' or 'primal', got {method!r}")
    return weights if batched else weights.squeeze(0)


def _fit_primal(head: Head, x: Tensor, y: Tensor, schedule: Schedule) -> Tensor:
    weights = x.new_zeros(x.shape[0], x.shape[2], head.num_classes)
    targets = head.targets(y, x.dtype)
    for step in schedule:
        batch = take(x, step.rows)
        residual = _residual(head, batch @ weights, targets, step.rows, schedule.mask)
        weights = weights * step.shrink - batch.mT @ (residual * step.rate)
        if head.radius is not None:
            project_ball_(weights, head.radius, head.norm_dims)
    return weights


def _fit_gram(head: Head, x: Tensor, y: Tensor, schedule: Schedule) -> Tensor:
    """SGD's iterates through G = XXᵀ and W = s XᵀA, so that shrinking W changes only s > 0.

    P = GA is carried along: a batch's scores S are rows of sP, and one product with the batch's
    rows of G moves P. ‖W‖² follows from the scores before and after the step W' = s'W − αXᵀD:
    ‖W'‖² = s'²‖W‖² − α⟨s'S + S', D⟩, in epochs in which somebody might leave its ball. A and P are
    kept transposed, (users, K, n): that is how small products are fast. `sgd_rounding` says how far
    the norm may be off, and all that is n x n or n x K is float64 where float32 would not do; W
    itself is projected once more.
    """
    narrow = gram_knows_norm(head, x.shape[1], x.shape[2], x.dtype)
    dtype = x.dtype if narrow else torch.float64
    gram = _gram_matrix(x, dtype)
    targets = head.targets(y, dtype).mT.contiguous()
    mask = None if schedule.mask is None else schedule.mask.mT
    dims = tuple(-3 - dim for dim in head.norm_dims)  # of (n, K), seen from (K, n)
    scale = _Scale(torch.zeros_like(targets), torch.zeros_like(targets))
    radius = math.inf if head.radius is None else head.radius
    norm2, near, watched, epoch = targets.new_zeros(()), torch.tensor(False), False, 0
    for step in schedule:
        if step.first:  # afresh, so that rounding does not pile up
            epoch += 1
            if epoch % REFRESH == 0:
                scale.products = scale.coefficients @ gram
            if radius < math.inf:
                norm2 = scale.of(scale.of(sum_over(scale.coefficients * scale.products, dims)))
                near = schedule.may_leave(head, norm2, step, x.shape[2])
                watched = bool(near.any())
        scores = scale.of(columns(scale.products, step.rows))
        residual = head.residual(scores, columns(targets, step.rows), dim=-2)
        if mask is not None:
            residual *= columns(mask, step.rows)
        scale.shrink(step.shrink)
        change = scale.undo(residual, step.rate)
        subtract(scale.coefficients, step.rows, change)
        scale.products.baddbmm_(change, take(gram, step.rows), alpha=-1)
        if watched:
            both = scores.mul_(step.shrink).add_(scale.of(columns(scale.products, step.rows)))
            slope = scale.of(sum_over(both.mul_(change), dims))
            norm2 = (step.shrink**2 * norm2 - slope).clamp(min=0)
            ball = ball_scale(norm2.sqrt(), radius).where(near, 1.0)
            if (ball < 1).any():
                scale.project(ball)
                norm2 = norm2 * ball**2
    weights = _span(scale.of(scale.coefficients), x)
    if radius < math.inf:
        project_ball_(weights, radius, dims)
    return weights.mT


class _Scale:
    """s of W = s XᵀA and P = XXᵀA: what shrinking has left, alike for all, times what balls have.

    A user that never left its ball is multiplied by 1: what it gets depends on its rows alone, to
    the last bit. Both factors are kept above `FOLD`, lest they underflow within an epoch: powers
    of two go into A and P, exactly.
    """

    def __init__(self, coefficients: Tensor, products: Tensor) -> None:
        self.coefficients, self.products = coefficients, products
        self.shrunk: float | Tensor = 1.0  # per user (users, 1, 1) where users are padded
        self.balls: Tensor | None = None  # (users, 1 or K, 1), once somebody left one

    def of(self, values: Tensor) -> Tensor:
        """s · values, a new tensor."""
        scaled = values * self.shrunk
        return scaled if self.balls is None else scaled.mul_(self.balls)

    def undo(self, values: Tensor, factor: float | Tensor) -> Tensor:
        """values · factor / s, in place."""
        values.mul_(factor / self.shrunk)
        return values if self.balls is None else values.div_(self.balls)

    def shrink(self, factor: float | Tensor) -> None:
        """Another factor that is alike for all users of as many rows."""
        shrunk = self.shrunk * factor
        if isinstance(shrunk, Tensor):
            shrunk = self._folded(shrunk)
        elif shrunk < FOLD:
            shrunk = self._folded(torch.tensor(shrunk, dtype=torch.float64)).item()
        self.shrunk = shrunk

    def project(self, factor: Tensor) -> None:
        """Each user's own: below 1 where it left its ball."""
        self.balls = self._folded(factor if self.balls is None else self.balls * factor)

    def _folded(self, scale: Tensor) -> Tensor:
        if scale.min() >= FOLD:
            return scale
        mantissa, exponent = torch.frexp(scale)
        power = torch.ldexp(torch.ones_like(scale), exponent).where(scale > 0, 0.0)
        self.coefficients.mul_(power)
        self.products.mul_(power)
        return mantissa.where(scale > 0, 1.0)


def _gram_matrix(x: Tensor, dtype: torch.dtype) -> Tensor:
    """XXᵀ of every user, of this type."""
    if dtype == x.dtype:
        return x @ x.mT
    gram = x.new_empty(*x.shape[:2], x.shape[1], dtype=dtype)
    for user in range(len(x)):
        rows = x[user].to(dtype)
        torch.mm(rows, rows.T, out=gram[user])
    return gram


def _span(coefficients: Tensor, x: Tensor) -> Tensor:
    """(users, K, d) AᵀX in the coefficients' precision, of x's type."""
    if coefficients.dtype == x.dtype:
        return coefficients @ x
    weights = x.new_empty(*coefficients.shape[:2], x.shape[2])
    for user in range(len(x)):
        weights[user] = coefficients[user] @ x[user].to(coefficients.dtype)
    return weights


def _residual(
    head: Head, scores: Tensor, targets: Tensor, rows: Rows, mask: Tensor | None
) -> Tensor:
    residual = head.residual(scores, take(targets, rows))
    return residual if mask is None else residual.mul_(take(mask, rows))


def _step_smoothness(head: Head, x: Tensor, smoothness: float | None) -> float:
    if smoothness is None:
        return head.smoothness
    longest = row_norms(x).max().item()
    needed = head.l2_reg + head.curvature * min(1.0, longest / head.clip_norm) ** 2
    if not needed * (1 - 1e-6) <= smoothness < math.inf:
        raise ValueError(
            f"smoothness must be finite and >= l2_reg + curvature = {needed:.6g}, got {smoothness}"
        )
    return smoothness
