"""Sums over a user's rows that a classifier can be built from, exact under any partition.

A record (u, y), ‖u‖ ≤ r, adds u e_yᵀ to the class sums and c₀ e_y to the counts; with second
moments of weight α also α uuᵀ.

**Theorem.** When one record is replaced, the sum moves by at most √max(S, D) in L2, where

    S = 4 r² if α²r² ≤ 1/2, else 2 (α r² + 1/(2α))²,
    D = 2 r² + 2 c₀² + 2 α²r⁴,

and for two features or more some pair of records moves it so far.

**Proof.** Let t = ⟨u, v⟩ for records (u, y), (v, z). The squared distance is ‖u‖² + ‖v‖² −
2 [y = z] t + 2 c₀² [y ≠ z] + α² (‖u‖⁴ + ‖v‖⁴ − 2t²). At a given t it grows with both lengths, and
|t| ≤ ‖u‖‖v‖ ≤ r² leaves any t possible at full length, so let both be r. For y = z it is then
2 (r² − t) + 2 α² (r⁴ − t²), a concave parabola on [−r², r²], or a line where α = 0, largest at
t = −1/(2α²), or at −r² if that lies below: S. For y ≠ z it is 2 r² + 2 c₀² + 2 α² (r⁴ − t²),
largest at t = 0: D. ∎

**Several findings.** A record (u, y), ‖u‖ ≤ r, y of 0 and 1, adds [c₀, u] bᵀ, b = b(y) ≥ 0 with
b₁ = 1 and ‖b‖² ≤ A, α uuᵀ, and c₁ y. κ is such that |y − z|² ≤ κ ‖b(y) − b(z)‖² for all y and z.

**Theorem.** When one record is replaced, the sum moves by at most √max(S, D) in L2, where, with
C = c₀² + κ c₁² and t₀ = max(−r², −1/(2α²)),

    S = 4 A r² if α²r² ≤ A/2, else 2 (α r² + A/(2α))²,
    D = 2 A (C + r²) − 2 (C + t₀) + 2 α² (r⁴ − t₀²).

S is reached if some ‖b(y)‖² = A. If α²r² ≤ A/2 and C ≤ r² (A + 1)/(2A), then D ≤ S: moments and
counts cost nothing.

**Proof.** For records (u, y), (v, z) with b and d, let t = ⟨u, v⟩, s = ⟨b, d⟩ ≥ 1, P = ‖b‖² + ‖d‖²
≤ 2A. As above let both lengths be r. The squared distance is c₀² (P − 2s) + r² P − 2ts + 2α² (r⁴ −
t²) + c₁² |y − z|² ≤ (C + r²) P − 2 (C + t) s + 2α² (r⁴ − t²), by κ, and it grows with P. It is
linear in s, 1 ≤ s ≤ P/2 ≤ A, so at most the larger one of its values at s = A, 2A (r² − t) +
2α² (r⁴ − t²), and at s = 1, 2A (C + r²) − 2 (C + t) + 2α² (r⁴ − t²). Both are concave in t (or
linear), so they are largest at −A/(2α²) and −1/(2α²), or at −r² if that is more: S and D. Equal
findings with ‖b‖² = A make s = A and the first an equality. As for the last claim: at t₀ ≤ −C the
value at s = 1 is not above the one at s = A, and so not above S. At t₀ = −1/(2α²) > −C, D − 2A (C +
r²) + 2C = 1/(2α²) + 2α²r⁴ is convex in α², so on 1/(2C) ≤ α² ≤ A/(2r²) at most its value at the
ends. The lower end is t₀ = −C again; at the upper one D ≤ S is C (2A − 2) ≤ r² (A² − 1)/A. ∎
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heads.head import one_hot, require_scale
from heads.rows import check_counts, check_labels


class LeastSquaresStatistics(NamedTuple):
    """One user's share of a ridge regression: class sums and scaled second moments."""

    class_sums: Tensor  # (users, d, K)
    second_moments: Tensor  # (users, d(d+1)/2): α·svec(Σ x xᵀ)


def class_sums(x: Tensor, y: Tensor, num_classes: int, *, counts: Tensor | None = None) -> Tensor:
    """Σ x e_yᵀ over each user's rows; `class_sums_sensitivity` bounds what one record moves.

    The sums' constant row is a times the class counts. Floating-point rows are summed in float64
    and integer rows in int64, so rows on a fixed grid give the same total, bit for bit, under
    every partition.

    Args:
        x: (users, n, d) or (n, d), constant column first.
        y: (users, n) or (n,) int64 in [0, K).
        num_classes: K.
        counts: (users,) true rows of each user where `x` is padded at the end.

    Returns:
        (users, d, K) or (d, K), float64 or int64.

    Raises:
        ValueError: shapes, types or labels that do not fit together, a row that is not finite.

    Examples:
        Three rows [1, x] of one user; the first row of the sums counts the labels:

        >>> x = torch.tensor([[1, 5], [1, 2], [1, 4]])
        >>> class_sums(x, torch.tensor([0, 1, 1]), num_classes=2)
        tensor([[1, 2],
                [5, 6]])
    """
    check_labels(x, y, num_classes)
    x = _masked(_wide(x), check_counts(counts, x))
    if x.dtype == torch.int64:  # no integer matrix product is fast, and none is needed
        sums = x.new_zeros(*x.shape[:-2], num_classes, x.shape[-1])
        index = y.unsqueeze(-1).expand_as(x)
        return sums.scatter_add_(-2, index, x).mT
    return _finite(x.mT @ one_hot(y, num_classes, x.dtype))


def second_moments(x: Tensor, *, counts: Tensor | None = None) -> Tensor:
    """Σ x xᵀ over each user's rows, upper triangle row by row, unscaled.

    Args:
        x: (users, n, d) or (n, d), float (summed in float64) or int64 (exact).
        counts: as in `class_sums`.

    Returns:
        (users, d(d+1)/2) or (d(d+1)/2,).

    Raises:
        ValueError: a row that is not finite, or counts out of range.
    """
    x = _masked(_wide(x), check_counts(counts, x))
    d = x.shape[-1]
    moments = _finite(x.mT @ x)
    row, column = torch.triu_indices(d, d, device=x.device)
    return moments[..., row, column]


def least_squares_statistics(
    x: Tensor, y: Tensor, num_classes: int, alpha: float, *, counts: Tensor | None = None
) -> LeastSquaresStatistics:
    """Class sums and α·svec(Σ x xᵀ); `least_squares_sensitivity` bounds the pair's movement.

    svec scales off-diagonal entries by √2, so that |svec(M)| is the Frobenius norm of M.

    Args:
        x: as in `class_sums`, floating point.
        y: as in `class_sums`.
        num_classes: K.
        alpha: weight of the second moments relative to the class sums, > 0.
        counts: as in `class_sums`.

    Raises:
        ValueError: as in `class_sums`, or alpha out of scale.
    """
    require_scale("alpha", alpha)
    sums = class_sums(x, y, num_classes, counts=counts)
    scale = svec_scale(x.shape[-1], alpha).to(x.device)
    return LeastSquaresStatistics(sums, second_moments(x, counts=counts) * scale)


def svec_scale(dim: int, alpha: float) -> Tensor:
    """(d(d+1)/2,) float64 factors of the triangle: α on the diagonal, α√2 off it."""
    row, column = torch.triu_indices(dim, dim)
    scale = torch.full((len(row),), alpha * math.sqrt(2), dtype=torch.float64)
    scale[row == column] = alpha
    return scale


def symmetric(triangle: Tensor, dim: int) -> Tensor:
    """The symmetric d x d matrix whose upper triangle, row by row, is given."""
    row, column = torch.triu_indices(dim, dim, device=triangle.device)
    matrix = triangle.new_zeros(*triangle.shape[:-1], dim, dim)
    matrix[..., row, column] = triangle
    matrix[..., column, row] = triangle
    return matrix


def class_sums_sensitivity(clip_norm: float, constant: float) -> float:
    """L2 sensitivity of class sums when one record [a, x], ‖x‖² ≤ c² − a², is replaced.

    max(2√(c² − a²), √2·c): same label and x' = −x, or another label and any x, x' of full
    length; both are attained. The theorem above, without moments.

    Raises:
        ValueError: constant outside (0, clip_norm), or a clip norm out of scale.
    """
    return _farthest(_reach(clip_norm, constant), constant, 0.0)


def least_squares_sensitivity(
    clip_norm: float, alpha: float, constant: float | None = None
) -> float:
    """L2 sensitivity of (class sums, α·svec(second moments)) when one record is replaced.

    With `constant` a: class sums of rows [a, u] and moments of the features u alone, ‖u‖ ≤ r,
    r² = c² − a² (the moments' constant row would repeat what the class sums say). With
    a² + α²r⁴ ≤ r² and αr ≤ 1/√2 it is 2r, that of the class sums alone, by the theorem above.
    Without `constant`: moments of whole rows ‖x‖ ≤ c; then r = c, and no classes are counted.

    Raises:
        ValueError: alpha or clip_norm out of scale, or a constant outside (0, clip_norm).
    """
    require_scale("alpha", alpha)
    reach = _reach(clip_norm, constant)
    return _farthest(reach, constant or 0.0, alpha)


def least_squares_norm(clip_norm: float, alpha: float, constant: float) -> float:
    """The largest L2 norm of what one record [a, u] adds to (class sums, α·svec(Σ u uᵀ)).

    √(c² + α²r⁴), r² = c² − a²: how far the pair moves when a record is taken out, no other one put
    in its place, and the published number of rows stays. Class sums alone move by c.

    Raises:
        ValueError: as `least_squares_sensitivity`.
    """
    require_scale("alpha", alpha)
    reach = _reach(clip_norm, constant)
    return math.hypot(reach, constant, alpha * reach**2)


def finding_sums_sensitivity(
    clip_norm: float, constant: float, length2: float, alpha: float = 0.0, counts: float = 0.0
) -> float:
    """L2 sensitivity of sums of findings when one record is replaced: the last theorem above.

    Args:
        clip_norm: c of the rows [a, u], c₀ = a, r² = c² − a².
        constant: a.
        length2: A >= 1, the largest ‖b‖².
        alpha: weight of the features' second moments; 0: none are sent.
        counts: κ c₁² of the findings' counts.

    Raises:
        ValueError: constant outside (0, clip_norm), or a clip norm out of scale.
    """
    reach2 = _reach(clip_norm, constant) ** 2
    along, alpha2 = constant**2 + counts, alpha**2
    same = 4 * length2 * reach2
    if 2 * alpha2 * reach2 > length2:
        same = 2 * (alpha * reach2 + length2 / (2 * alpha)) ** 2
    lowest = -reach2 if 2 * alpha2 * reach2 <= 1 else -1 / (2 * alpha2)
    other = 2 * length2 * (along + reach2) - 2 * (along + lowest)
    return math.sqrt(max(same, other + 2 * alpha2 * (reach2**2 - lowest**2)))


def _farthest(reach: float, constant: float, alpha: float) -> float:
    """√max(S, D) of the theorem above."""
    same = 2 * reach
    if alpha * reach > math.sqrt(0.5):
        same = math.sqrt(2) * (alpha * reach**2 + 1 / (2 * alpha))
    return max(same, math.sqrt(2) * math.hypot(reach, constant, alpha * reach**2))


def _reach(clip_norm: float, constant: float | None) -> float:
    """√(c² − a²), both checked."""
    require_scale("clip_norm", clip_norm)
    if constant is None:
        return clip_norm
    if not 0 < constant < clip_norm:
        raise ValueError(f"constant must lie in (0, clip_norm = {clip_norm}), got {constant}")
    return math.sqrt(clip_norm**2 - constant**2)


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x.long()


def _finite(sums: Tensor) -> Tensor:
    """Passes on what sums of finite rows can be: 0 · NaN and 0 · inf are NaN, and stay so."""
    if not sums.isfinite().all():
        raise ValueError("x must have finite rows, got NaN or infinity")
    return sums


def _masked(x: Tensor, counts: Tensor | None) -> Tensor:
    if counts is None:
        return x
    own = torch.arange(x.shape[-2], device=x.device) < counts[:, None]
    return x.where(own.view(x.shape[:-1])[..., None], 0)
