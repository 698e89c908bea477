"""Euclidean projection of weights onto a ball."""

from torch import Tensor


def project_ball(weights: Tensor, radius: float, dims: tuple[int, ...] = (-2, -1)) -> Tensor:
    """argmin_V ‖V − W‖ subject to ‖V‖ ≤ R: scales only what lies outside, never expands.

    Args:
        weights: (..., d, K).
        radius: R > 0.
        dims: dimensions of one norm; (-2, -1) the whole matrix, (-2,) each class's column.

    Returns:
        (..., d, K), a new tensor.
    """
    norm = weights.square().sum(dims, keepdim=True).sqrt()
    return weights * ball_scale(norm, radius)


def ball_scale(norm: Tensor, radius: float) -> Tensor:
    """The factor that brings vectors of these norms into the ball: 1, or R/‖W‖ outside."""
    return (radius / norm).where(norm > radius, 1.0)
