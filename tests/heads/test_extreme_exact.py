"""The certified solver at any scale: the certificate holds in more digits than it was computed in.

pytest -n 0 tests/heads/test_extreme_exact.py -m slow
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heads import Head, HuberSVMHead, LogisticHead, SoftmaxHead, fit_exact
from heads.spaces import Gram

NAMED = re.compile(
    r"^(l2_reg|clip_norm|relaxation|tolerance|lipschitz / l2_reg|l2_reg \+ curvature) must "
)
SOLVABLE, HOPELESS = (-12, 3.5), (9, 24)  # powers of ten of curvature / Λ; between them is slow
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def exact_gradient(head: Head, weights: Tensor, x: Tensor, y: Tensor) -> np.ndarray:
    """(users,) largest ‖∇J(W)‖ of a composition, transcribed, in numpy's longest floats."""
    w, rows = weights.numpy().astype(np.longdouble), x.numpy().astype(np.longdouble)
    hot = y.numpy()[..., None] == np.arange(head.num_classes)
    scores = rows @ w
    if isinstance(head, SoftmaxHead):
        shifted = np.exp(scores - scores.max(-1, keepdims=True))
        slope = shifted / shifted.sum(-1, keepdims=True) - hot
    else:
        sign = np.where(hot, 1, -1)
        z = sign * scores
        if isinstance(head, HuberSVMHead):
            h = np.longdouble(head.relaxation)
            slope = -sign * np.clip((1 + h - z) / (2 * h), 0, 1)
        else:
            slope = -sign / (1 + np.exp(np.minimum(z, 11_000)))
    gradient = head.l2_reg * w + rows.swapaxes(1, 2) @ slope / x.shape[1]
    return np.sqrt(np.square(gradient).sum(head.norm_dims, keepdims=True)).max((1, 2))


def holds(dice: Any, dtype: torch.dtype, condition: tuple[float, float]) -> int:
    """Solves one draw; the number of pairs, 0 where it was refused by name."""
    try:
        head = dice.head(condition, radius=None)
        case = dice.rows(head, dtype)
        x, y = case.x.flatten(0, 1), case.y.flatten(0, 1)
        tolerance = head.lipschitz * dice.scale(-8, 1) if dice.often(0.3) else None
        solution = fit_exact(head, x, y, tolerance=tolerance)
    except ValueError as refusal:
        if not NAMED.match(str(refusal)):
            raise
        return 0
    n = x.shape[1]
    about = f"{head}, {tuple(x.shape)}, tolerance {tolerance}"
    assert solution.weights.isfinite().all()
    assert (solution.gradient_norm <= solution.tolerance).all()
    assert case.moved(solution.weights) <= solution.sensitivity(n) * (1 + 1e-13), about
    unit = n * 2.0**-51 + torch.finfo(dtype).eps
    cast = head.smoothness * unit * head.lipschitz / head.l2_reg
    found = exact_gradient(head, solution.weights, x, y)
    assert (found <= solution.gradient_norm.numpy() + cast).all(), about
    return case.pairs


@each_dtype
@pytest.mark.parametrize("seeds", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_exact_at_any_scale(dice: Callable[[int], Any], dtype: torch.dtype, seeds: int) -> None:
    done = [holds(dice(seed), dtype, SOLVABLE) for seed in range(seeds)]
    assert np.count_nonzero(done) >= (0.9 if dtype == torch.float64 else 0.4) * seeds


@each_dtype
def test_what_cannot_be_certified_or_takes_for_ever_is_refused(dice, dtype) -> None:
    """Before anything is computed, from public numbers alone."""
    for seed in range(40):
        head = dice(seed).head(HOPELESS, radius=None)
        x, y = torch.zeros(5, 7, dtype=dtype), torch.zeros(5, dtype=torch.int64)
        with pytest.raises(ValueError, match=NAMED):
            fit_exact(head, x, y)


@pytest.mark.parametrize("kind", [SoftmaxHead, HuberSVMHead, LogisticHead])
def test_the_certificate_covers_its_own_rounding(kind: Any) -> None:
    """On the weights nothing is rounded after the certificate: the true gradient is below it."""
    generator = torch.Generator().manual_seed(0)
    for l2_reg in (1e-2, 1e-3, 1e-4):
        for tolerance in (1e-12, 1e-11, 1e-10):
            head = kind(num_classes=3, l2_reg=l2_reg, clip_norm=1.0)
            x = torch.randn(3, 12, 3, generator=generator, dtype=torch.float64)
            x /= torch.linalg.vector_norm(x, dim=-1, keepdim=True) * (1 + 1e-12)
            y = torch.randint(3, (3, 12), generator=generator)
            solution = fit_exact(head, x, y, tolerance=tolerance)
            found = exact_gradient(head, solution.weights, x, y)
            assert (found <= solution.gradient_norm.numpy()).all()


def test_a_gradient_that_cancels_is_not_certified() -> None:
    """Equal rows of opposite coefficients: ⟨V, GV⟩ cancels to nothing, or below."""
    x = torch.full((1, 6, 50), 0.1, dtype=torch.float64)
    v = torch.tensor([1.0, -1.0, 3.0, -3.0, 7.0, -7.0 + 2e-9], dtype=torch.float64)
    v = torch.stack([v, -v], 1)[None]
    for dims in ((-1, -2), (-1,)):
        true = torch.linalg.vector_norm(v.mT @ x, dim=dims, keepdim=True)
        assert (Gram(x).norm2(v.mT, dims).sqrt() >= true).all()


@pytest.mark.parametrize("kind", [SoftmaxHead, HuberSVMHead, LogisticHead])
def test_huge_and_tiny_units_give_the_same_model(kind: Any) -> None:
    """Rows c·x with Λ·c² is the same problem: W/c."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 9, generator=generator, dtype=torch.float64) / 9
    y, found = torch.arange(6) % 3, []
    for c in (1.0, 2.0**40, 2.0**-40):
        head = kind(num_classes=3, l2_reg=0.1 * c**2, clip_norm=c)
        found.append(fit_exact(head, x * c, y).weights * c)
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[2], found[0], rtol=1e-9, atol=1e-12)
