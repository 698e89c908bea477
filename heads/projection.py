"""Euclidean projection of weights onto a ball, true of the floats that are returned."""

import math

import torch
from torch import Tensor

CHUNK = 1 << 17  # numbers that are looked at together, so that they stay in the cache
SAFE = 1e140  # norms of float64 within [1/SAFE, SAFE] neither overflow nor underflow when squared


def project_ball(weights: Tensor, radius: float, dims: tuple[int, ...] = (-2, -1)) -> Tensor:
    """argmin_V ‖V − W‖ subject to ‖V‖ ≤ R: scales only what lies outside, never expands.

    The exact norm of the returned floats is at most R, without an allowance. A norm is
    computed in float64 with at most d + K additions one after another, so its error is at most
    (d + K)/2 + 4 units u = 2⁻⁵³; quotient and product add two, rounding to the result's type adds
    its eps/2. `ball_margin` exceeds their sum, and the ball that is aimed at has radius
    R(1 − `ball_margin`).

    Args:
        weights: (..., d, K), finite.
        radius: R > 0, at least the smallest normal number of the type over its eps.
        dims: dimensions of one norm; (-2, -1) the whole matrix, (-2,) each class's column.

    Returns:
        (..., d, K), a new tensor. Its distance to the true projection is at most 2 R `ball_margin`.

    Raises:
        ValueError: a norm that is not finite, or a radius out of range.
    """
    return project_ball_(weights.clone(), radius, dims)


def project_ball_(weights: Tensor, radius: float, dims: tuple[int, ...]) -> Tensor:
    """`project_ball` in place."""
    kind = torch.finfo(weights.dtype)
    if not kind.tiny / kind.eps <= radius < math.inf:
        raise ValueError(
            f"radius must be finite and >= {kind.tiny / kind.eps:.3g} in {weights.dtype}, "
            f"got {radius}"
        )
    aim = radius * (1 - ball_margin(sum(weights.shape[dim] for dim in dims), weights.dtype))
    users = weights if weights.ndim > 2 else weights.unsqueeze(0)
    step = max(1, CHUNK // max(1, users[:1].numel()))
    for part in users.split(step):
        norms = weight_norms(part, dims)
        if not norms.isfinite().all():
            raise ValueError("weights must have finite norms, got NaN or infinity")
        if (norms > aim).any():
            _shrink(part, norms, aim)
    return weights


def _shrink(weights: Tensor, norms: Tensor, aim: float) -> None:
    """W ← W · aim/‖W‖ where ‖W‖ > aim: two roundings, or quotient first where that underflows."""
    factor = ball_scale(norms, aim)
    if factor.min() > math.sqrt(torch.finfo(weights.dtype).tiny):
        weights.mul_(factor.to(weights.dtype))
    else:
        wide = weights.double()
        weights.copy_(torch.where(norms > aim, wide / norms * aim, wide))


def ball_margin(length: int, dtype: torch.dtype) -> float:
    """By how much, relative, `project_ball` aims inside the ball.

    Args:
        length: how many numbers the dimensions of one norm have together (d, or d + K).
        dtype: of the weights.
    """
    return (length + 16) * 2.0**-53 + 2 * torch.finfo(dtype).eps


def weight_norms(weights: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Norms over `dims`, kept as dimensions of length 1: float64, whatever the scale.

    One dimension is summed after the other, so no sum has more terms than their lengths together.
    """
    norms = _norms(weights, dims)
    if weights.dtype == torch.float64 and ((norms < 1 / SAFE) | (norms > SAFE)).any():
        largest = weights.abs().amax(dims, keepdim=True)
        exponent = torch.frexp(largest).exponent.clamp(min=-1000)
        power = torch.ldexp(torch.ones_like(largest), exponent)
        norms = _norms(weights / power, dims) * power
    return norms


def _norms(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in dims:
        values = torch.linalg.vector_norm(values, dim=dim, keepdim=True, dtype=torch.float64)
    return values


def sum_over(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Sums over one dimension after the other and keeps them."""
    for dim in dims:
        values = values.sum(dim, keepdim=True)
    return values


def ball_scale(norm: Tensor, radius: float) -> Tensor:
    """The factor that brings vectors of these norms into the ball: 1, or R/‖W‖ outside."""
    return (radius / norm).where(norm > radius, 1.0)
