"""Clipped rows at any scale: norms of the stored floats at most c, and no overflow."""

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from embed import PublicTransform
from embed.clip import add_constant_and_clip, check_finite


def squared(row: Tensor) -> Fraction:
    """Σ x², without any rounding."""
    return sum((Fraction(value) ** 2 for value in row.tolist()), Fraction(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_norms_at_any_scale(dtype: torch.dtype) -> None:
    draw = np.random.default_rng(0)
    low, high = (-44, 38) if dtype == torch.float32 else (-320, 307)
    for _ in range(60):
        clip_norm = 10.0 ** draw.uniform(-12, 12)
        constant = float(torch.tensor(clip_norm * draw.uniform(0, 0.999), dtype=dtype))
        shape = (8, int(draw.integers(1, 200)))
        sizes = 10.0 ** draw.uniform(low, high, (8, 1)) / 10
        x = torch.from_numpy(draw.standard_normal(shape) * sizes).to(dtype)
        rows = add_constant_and_clip(x, clip_norm, constant)
        assert (rows[:, 0] == constant).all()
        bound = Fraction(clip_norm**2 - constant**2)
        for row, whole in zip(rows[:, 1:], x, strict=True):
            found = squared(row)
            assert found <= bound
            if math.isfinite(float(found)) and squared(whole) > bound > 1e-24:
                assert found >= bound * Fraction(1 - 1e-5)


def test_many_columns_are_summed_with_a_margin_of_their_own() -> None:
    x = torch.rand(2, 100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for row in add_constant_and_clip(x, 1.0, 0.5)[:, 1:]:
        assert squared(row) <= Fraction(3, 4)


@pytest.mark.parametrize("clip_norm", [1e-300, 1e-61, 1e61, 1e200])
def test_clip_norms_out_of_scale_are_refused(clip_norm: float) -> None:
    message = re.escape(f"clip_norm must be in [1e-60, 1e+60], got {clip_norm}")
    with pytest.raises(ValueError, match=message):
        add_constant_and_clip(torch.ones(1, 1, dtype=torch.float64), clip_norm, 0.0)


P = 6
DTYPES = (np.float16, np.float32, np.float64)
EXAMPLES: dict[str, Any] = {"derandomize": True, "deadline": None, "max_examples": 60}


def fitted(**options: Any) -> PublicTransform:
    generator = torch.Generator().manual_seed(1)
    public = torch.randn(400, P, generator=generator) @ torch.randn(P, P, generator=generator) + 5
    return PublicTransform.fit(public, **options)


TRANSFORMS = {
    "identity": PublicTransform.identity(P),
    "identity, long": PublicTransform.identity(P, 34.854, 1.0),
    "raw": fitted(),
    "narrow": fitted(components=2, constant=0.25),
    "mapped": fitted(clip_quantile=0.9).mapped(0.01, 4),
}


def finite_rows(dtype: type[np.floating]) -> st.SearchStrategy[np.ndarray]:
    """Up to four rows: zeros, subnormal numbers, the largest finite ones and all between."""
    width = 8 * np.dtype(dtype).itemsize
    numbers = st.floats(width=width, allow_nan=False, allow_infinity=False)  # pyright: ignore[reportArgumentType]
    top = float(np.finfo(dtype).max)
    extremes = st.sampled_from([0.0, -0.0, top, -top, top / 2, float(np.finfo(dtype).tiny) / 4])
    return arrays(dtype, st.tuples(st.integers(1, 4), st.just(P)), elements=numbers | extremes)


def exact_norms(rows: torch.Tensor) -> np.ndarray:
    return np.sqrt((rows.numpy().astype(np.longdouble) ** 2).sum(1))


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(**EXAMPLES)
@given(x=st.sampled_from(DTYPES).flatmap(finite_rows))
def test_any_finite_row_keeps_the_bound_and_the_constant(name: str, x: np.ndarray) -> None:
    transform = TRANSFORMS[name]
    for dtype in (torch.float16, torch.float32, torch.float64):
        rows = transform(x, dtype=dtype)
        assert rows.isfinite().all()
        assert (rows[:, 0] == transform.constant).all()
        assert exact_norms(rows.double()).max() <= transform.clip_norm


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_hundred_thousand_rows_of_random_bits(dtype: type[np.floating]) -> None:
    """Every exponent is as likely as another; what is not finite becomes the largest number."""
    size = np.dtype(dtype).itemsize
    bits = np.random.default_rng(size).bytes(200_000 * P * size)
    x = np.frombuffer(bits, dtype).reshape(-1, P)
    x = np.where(np.isfinite(x), x, np.finfo(dtype).max).astype(dtype)
    for name, transform in TRANSFORMS.items():
        for out in (torch.float16, torch.float32, torch.float64):
            rows = transform(x, dtype=out).double()
            assert rows.isfinite().all(), name
            assert (rows[:, 0] == transform.constant).all(), name
            assert exact_norms(rows).max() <= transform.clip_norm, name


@pytest.mark.parametrize("name", ["identity", "raw"])
@settings(**EXAMPLES)
@given(x=st.sampled_from(DTYPES).flatmap(finite_rows))
def test_the_direction_is_that_of_the_formula(name: str, x: np.ndarray) -> None:
    """Against Pᵀ(x − m)/s and its clip in numbers of far wider range."""
    transform = TRANSFORMS[name]
    mean, basis, scale = (
        getattr(transform, field).numpy().astype(np.longdouble)
        for field in ("mean", "basis", "scale")
    )
    features = (x.astype(np.longdouble) - mean) @ basis / scale
    norms = np.sqrt((features**2).sum(1, keepdims=True))
    reach = np.sqrt(np.longdouble(transform.clip_norm**2 - transform.constant**2))
    expected = features * np.minimum(1, reach / np.maximum(norms, np.longdouble("1e-4000")))
    found = transform(x).numpy()[:, 1:]
    assert np.abs(found - expected).max() <= 2e-4 * reach  # float32 of a whitened row


@pytest.mark.parametrize("x", [3e38, -3e38, 1e300, 1.7e308])
def test_rows_of_the_largest_numbers(x: float) -> None:
    dtype = np.float32 if abs(x) < 1e39 else np.float64
    rows = TRANSFORMS["raw"](np.full((2, P), x, dtype))
    assert exact_norms(rows).max() <= math.sqrt(1.25)
    assert exact_norms(rows[:, 1:]).min() > 1 - 1e-6


def test_longer_rows_come_out_no_shorter() -> None:
    x = torch.randn(1, P, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    powers = torch.arange(-1050, 1020, dtype=torch.float64)
    lengths = exact_norms(TRANSFORMS["identity"](x * 2 ** powers[:, None]))
    assert (np.diff(lengths) >= -1e-7).all()
    assert lengths[-1] > math.sqrt(2) - 1e-6


def test_a_row_that_overflows_moves_no_other() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(500, P, generator=generator)
    other = x.clone()
    other[77] = 3e38
    keep = torch.arange(500) != 77
    for name, transform in TRANSFORMS.items():
        assert torch.equal(transform(x)[keep], transform(other)[keep]), name


@pytest.mark.parametrize("name", ["mean", "basis", "scale"])
def test_only_numbers_that_cannot_overflow_float64_make_a_transform(name: str) -> None:
    tensors = PublicTransform.identity(3).tensors()
    with pytest.raises(ValueError, match=f"{name} must be float32, got torch.float64"):
        PublicTransform.from_tensors(tensors | {name: tensors[name].double()})


def test_public_rows_that_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match="public rows must have finite second moments"):
        PublicTransform.fit(np.array([[1e300, 1.0], [-1e300, 2.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="mean must be finite"):
        PublicTransform.fit(np.array([[1e100, 1.0], [2e100, 2.0], [0.0, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_number_that_is_not_finite_is_found_anywhere(dtype: torch.dtype) -> None:
    """Also where two infinities cancel, or finite numbers add up to one."""
    top = torch.finfo(dtype).max
    for fill in (0.0, top, -top):
        check_finite(torch.full((9, 33), fill, dtype=dtype), "x")
        for value in (math.nan, math.inf, -math.inf):
            for row, column in ((0, 0), (4, 31), (8, 32)):
                x = torch.full((9, 33), fill, dtype=dtype)
                x[row, column] = value
                with pytest.raises(ValueError, match=f"got {value} in row {row}"):
                    check_finite(x, "x")
    x = torch.zeros(9, 33, dtype=dtype)
    x[2, :2] = torch.tensor([-math.inf, math.inf])
    with pytest.raises(ValueError, match="x must be finite, got -inf in row 2"):
        check_finite(x, "x")
    check_finite(torch.zeros(0, 33, dtype=dtype), "x")
