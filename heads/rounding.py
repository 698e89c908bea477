"""Sensitivity that floating point adds to projected SGD, and where no bound exists.

Let u be the unit roundoff, S = L/Λ, c the clip norm, T the steps, b ≤ n the batch size. In exact
arithmetic one step maps W to a weighted mean of W and a vector of norm at most S, then projects:
it never expands, and ‖W‖ ≤ S. A computed step is that map, and an error of norm at most κuS. So
after T steps and what turns the last iterate into weights, at most 2κuS, either of two neighbours
is at most ρS with ρ = (T + 2)κu from its exact course, and

    moved ≤ 2S/n + 2ρS = (2L/Λn)(1 + nρ),   ‖W‖ ≤ S(1 + ρ).

**κ on the weights.** A score is a sum of d products: off by du·cS at most, whatever the order. The
loss's second derivative passes it on, in the gradient α·curvature·du·S, and α·curvature ≤ 1. The
residual's own rounding is at most (K + 10)u of its length, in the gradient (K + 10)uS, as αL ≤ S.
The sum over the batch adds (b + 2)uS, shrinking, subtracting and the rounding of α together 8uS,
the projection 2(d + K + 20)uS, twice its margin. All that is at most κ = 3(d + K + b + 32).

**κ in the Gram matrix.** W = XᵀA, and Σ‖aᵢ‖c ≤ S: each step shrinks the sum by 1 − αΛ and adds
αL. So G, off by duc², moves scores by du·cS like above; P = GA, carried along for 8 epochs of sums
of b + 1 terms, by (24n + 8)u·cS, by nu·cS where it is made afresh, and by 8u·cS as A is rounded.
Folding the scale into A and P is exact. With the residual's (K + 10)u, the 8u and two of the
change itself, a step is off by less than N u S, N = d + 26(n + K + 4).

The norm is the weak place. ‖W‖² = Σ⟨aᵢ, (XW)ᵢ⟩ may cancel down from S² to R². It is made afresh
every epoch, off by 1.04 N u S², and then follows from the scores: a step adds 2.1 αΛ N u S² and
7uS², an epoch's steps together (2.1(1 + ln n) + 0.3) N u S², as αΛ ≤ 1/m. A square off by νR is a
norm off by ν where the projection acts, and so is the projection: ν = (4 + 3 ln n) N (S/R) uS.
Hence κ = N (1 + (4 + 3 ln n) S/R) with a radius, κ = N without. In an epoch that cannot leave the
ball, since √(‖W‖² + 2NuS²) and its steps' αL + NuS make less than R, no projection would act.

All this is of first order in u: it is stated only where ρ ≤ 1/8, and Gram only where ν ≤ R/2.
Constants are such that nothing under- or overflows (`heads.head`).
"""

import math
from typing import Literal, Required, TypedDict, Unpack

import torch

from heads.head import Head

Method = Literal["auto", "gram", "primal"]
LARGEST = 1 / 8  # ρ
AFFORDABLE = 1e-2  # nρ in float64 from which "auto" prefers the weights to the Gram matrix
FLOAT64 = 2.0**-53


class Steps(TypedDict, total=False):
    """The keyword arguments of `sgd_rounding`."""

    epochs: Required[int]
    batch_size: Required[int]
    dtype: torch.dtype
    method: Method


def sgd_rounding(
    head: Head,
    n: int,
    dim: int,
    *,
    epochs: int,
    batch_size: int,
    dtype: torch.dtype = torch.float64,
    method: Method = "auto",
) -> float:
    """ρ: by what share of L/Λ rounding can move the weights of a user of n rows.

    Args:
        head: Λ, c and R.
        n: rows of the user.
        dim: d.
        epochs: as for `fit_sgd`.
        batch_size: as for `fit_sgd`.
        dtype: of the rows.
        method: as for `fit_sgd`; "auto" holds for whichever it takes, also where the user is padded
            to the length of others.

    Raises:
        ValueError: so many steps or columns that nothing can be said (ρ > 1/8).
    """
    unit = torch.finfo(dtype).eps / 2
    batch = min(batch_size, n)
    gram = method == "gram" or (method == "auto" and prefers_gram(head, n, dim, epochs, batch_size))
    kappa = 0.0 if method == "gram" else 3.0 * (dim + head.num_classes + batch + 32)
    if gram:
        kappa = max(kappa, _gram_kappa(head, n, dim))
    rho = (epochs * math.ceil(n / batch) + 2) * kappa * unit
    if not rho <= LARGEST:
        raise ValueError(
            f"epochs must be so few that rounding in {dtype} moves the weights by at most 1/8 of "
            f"lipschitz / l2_reg, got {rho:.3g} for epochs {epochs}, {n} rows of {dim} columns in "
            f"batches of {batch}, l2_reg {head.l2_reg}, radius {head.radius}"
        )
    return rho


def sgd_sensitivity(head: Head, n: int, dim: int, **steps: Unpack[Steps]) -> float:
    """L2 sensitivity of one composition of `fit_sgd` as computed: (2L/Λn)(1 + nρ).

    Args:
        head: Λ, L and R.
        n: rows of the user.
        dim: d.
        **steps: as for `sgd_rounding`, whose errors it raises.
    """
    return head.sensitivity(n) * (1 + n * sgd_rounding(head, n, dim, **steps))


def prefers_gram(head: Head, n: int, dim: int, epochs: int, batch_size: int) -> bool:
    """Whether the Gram matrix is smaller and precise enough; public, and true below n if at n."""
    if n >= dim or not gram_knows_norm(head, n, dim, torch.float64):
        return False
    steps = epochs * math.ceil(n / min(batch_size, n)) + 2
    return n * steps * _gram_kappa(head, n, dim) * FLOAT64 <= AFFORDABLE


def gram_knows_norm(head: Head, n: int, dim: int, dtype: torch.dtype) -> bool:
    """Whether ν ≤ R/2: the norm by which the Gram form projects is the weights'."""
    if head.radius is None:
        return True
    ratio = head.lipschitz / head.l2_reg / head.radius
    unit = torch.finfo(dtype).eps / 2
    return (4 + 3 * math.log(n)) * _terms(head, n, dim) * ratio**2 * unit <= 1 / 2


def gram_step_error(head: Head, n: int, dim: int, dtype: torch.dtype) -> float:
    """N u S: by how much a step may be off that does not look at the norm."""
    return _terms(head, n, dim) * torch.finfo(dtype).eps / 2 * head.lipschitz / head.l2_reg


def _terms(head: Head, n: int, dim: int) -> float:
    """N of the module's text."""
    return dim + 26.0 * (n + head.num_classes + 4)


def _gram_kappa(head: Head, n: int, dim: int) -> float:
    terms = _terms(head, n, dim)
    if head.radius is None:
        return terms
    ratio = head.lipschitz / head.l2_reg / head.radius
    return terms * (1 + (4 + 3 * math.log(n)) * ratio)
