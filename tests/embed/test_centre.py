"""Rows about a centre: as long as before at most, whatever the centre; alone in what they show."""

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embed import PublicTransform, add_constant_and_clip
from embed import centre as centre_module
from embed.centre import LEAST, TIGHT, about, length_about
from embed.known_classes import ClassGuess, KnownClasses
from embed.project import ROWS
from embed.recentred import recentred
from tests.embed.test_clip_scales import squared

BOUNDS = [(math.sqrt(2), 1.0), (math.sqrt(1.25), 0.5), (1.0, 0.0), (1e-30, 0.0), (1e30, 2.0**80)]
DTYPES = [torch.float32, torch.float64]
ONE = torch.tensor(1.0, dtype=torch.float64)


def reach_of(clip_norm: float, constant: float) -> float:
    return math.sqrt(clip_norm**2 - constant**2)


def moved(rows: Tensor, centre: Tensor, clip_norm: float, constant: float) -> Tensor:
    """Rows about the centre, divided by what its length says."""
    common = float(centre.square().sum()) / reach_of(clip_norm, constant) ** 2
    return about(rows, centre, length_about(common), clip_norm, constant)


def rows_of(q: int, clip_norm: float, constant: float, dtype: torch.dtype) -> Tensor:
    """Rows as transforms make them: most of length r, short ones, and zero."""
    x = torch.randn(12, q, dtype=torch.float64, generator=torch.Generator().manual_seed(q))
    sizes = torch.tensor([10.0, 1.0, 0.3, 1e-9, 1e-300, 0.0]).repeat(2)[:, None]
    x *= sizes * reach_of(clip_norm, constant)
    return add_constant_and_clip(x, clip_norm, constant, dtype=dtype)


def hostile(rows: Tensor, reach: float) -> Iterator[Tensor]:
    """Centres that cancel with rows, lie opposite to them, or are as short or as long as can be."""
    q = rows.shape[1] - 1
    draw = torch.Generator().manual_seed(1)
    axis = torch.eye(q, dtype=torch.float64)[0]
    row = rows[0, 1:].double()
    unit = row / row.norm()
    for length in (0.1, 0.5, 0.9, 0.999999, 1.0):
        towards = torch.randn(q, dtype=torch.float64, generator=draw)
        yield towards / towards.norm() * length * reach
    yield reach * axis
    yield -reach * axis
    yield reach * unit
    yield -reach * unit  # twice the reach away from its row
    yield row
    yield row * (1 - 2.0**-52)  # nothing but rounding is left
    yield row.float().double()
    yield torch.zeros_like(axis)
    yield torch.full_like(axis, 5e-324)
    yield torch.full_like(axis, -1e-310)
    yield reach * axis + 5e-324


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("clip_norm", "constant"), BOUNDS)
@pytest.mark.parametrize("q", [1, 3, 64])
def test_exact_norms_about_any_centre(
    q: int, clip_norm: float, constant: float, dtype: torch.dtype
) -> None:
    rows = rows_of(q, clip_norm, constant, dtype)
    bound = Fraction(clip_norm) ** 2
    for centre in hostile(rows, reach_of(clip_norm, constant)):
        found = moved(rows, centre, clip_norm, constant)
        assert found.dtype == dtype
        assert (found[:, 0] == constant).all()
        assert all(squared(row) <= bound for row in found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_norms_about_a_centre_at_any_scale(dtype: torch.dtype) -> None:
    draw = np.random.default_rng(0)
    for _ in range(60):
        clip_norm = 10.0 ** draw.uniform(-12, 12)
        constant = float(torch.tensor(clip_norm * draw.uniform(0, 0.999), dtype=dtype))
        rows = rows_of(int(draw.integers(1, 100)), clip_norm, constant, dtype)
        reach = reach_of(clip_norm, constant)
        towards = torch.from_numpy(draw.standard_normal(rows.shape[1] - 1))
        centre = towards / towards.norm() * reach * draw.uniform(0, 1)
        bound = Fraction(clip_norm**2 - constant**2)  # by which a sensitivity is stated
        for row in moved(rows, centre, clip_norm, constant)[:, 1:]:
            assert squared(row) <= bound


@pytest.mark.parametrize("length", [2.0, 1e6, 1e200])
def test_a_centre_beyond_all_rows_makes_no_row_longer(length: float) -> None:
    """No transform has one; `about` clips all the same."""
    rows = rows_of(5, math.sqrt(2), 1.0, torch.float64)
    centre = torch.full((5,), length / math.sqrt(5), dtype=torch.float64)
    found = moved(rows, centre, math.sqrt(2), 1.0)
    assert all(squared(row) <= Fraction(math.sqrt(2)) ** 2 for row in found)


def naive(row: list[float], centre: list[float], clip_norm: float, constant: float) -> list[float]:
    """[a, clip((x − m)/s)] of one row, by a loop."""
    reach = math.sqrt(clip_norm**2 - constant**2)
    common = math.fsum(m * m for m in centre) / reach**2
    s = TIGHT * math.sqrt(max(LEAST, 1 - common))
    away = [(x - m) / s for x, m in zip(row[1:], centre, strict=True)]
    length = math.sqrt(math.fsum(x * x for x in away))
    shrink = reach / length if length > reach else 1.0
    return [constant, *(shrink * x for x in away)]


@pytest.mark.parametrize("length", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize(("clip_norm", "constant"), BOUNDS[:3])
def test_rows_are_those_of_the_formula(clip_norm: float, constant: float, length: float) -> None:
    rows = rows_of(7, clip_norm, constant, torch.float64)
    towards = torch.arange(1.0, 8, dtype=torch.float64)
    centre = towards / towards.norm() * length * reach_of(clip_norm, constant)
    expected = [naive(row, centre.tolist(), clip_norm, constant) for row in rows.tolist()]
    found = moved(rows, centre, clip_norm, constant)
    exact = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("clip_norm", "constant"), BOUNDS)
def test_a_row_at_the_centre_keeps_its_constant_alone(
    clip_norm: float, constant: float, dtype: torch.dtype
) -> None:
    rows = rows_of(9, clip_norm, constant, dtype)
    for number, row in enumerate(rows):
        found = moved(rows, row[1:].double(), clip_norm, constant)[number]
        assert found.tolist() == [constant] + [0.0] * 9


def test_a_centre_at_zero_changes_lengths_alone() -> None:
    rows = rows_of(9, math.sqrt(2), 1.0, torch.float64)
    found = moved(rows, torch.zeros(9, dtype=torch.float64), math.sqrt(2), 1.0)
    expected = add_constant_and_clip(rows[:, 1:] / TIGHT, math.sqrt(2), 1.0)
    assert torch.equal(found, expected)


@pytest.fixture
def transform() -> PublicTransform:
    public = torch.randn(300, 96, generator=torch.Generator().manual_seed(0))
    return PublicTransform.fit(public, components=33)


@pytest.fixture
def centred(transform: PublicTransform) -> PublicTransform:
    towards = torch.arange(1.0, 34, dtype=torch.float64)
    return recentred(transform, 0.8 * transform.reach * towards / towards.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 50, 1023, 1024, 1025, 2500])
def test_rows_stay_the_same_bits_wherever_they_are(
    rows: int, dtype: torch.dtype, transform: PublicTransform, centred: PublicTransform
) -> None:
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(rows + 3, 96, generator=draw) + 1
    order = torch.randperm(len(x), generator=draw)
    before, made = transform(x, dtype=dtype), centred(x, dtype=dtype)
    assert not torch.equal(before, made)
    assert torch.equal(centred.about_centre(before), made)  # as a second sum has them
    assert torch.equal(centred.about_centre(before[order]), made[order])
    assert torch.equal(centred.about_centre(before[3:]), made[3:])
    assert torch.equal(centred.about_centre(before[:1]), made[:1])
    assert torch.equal(centred(x[order], dtype=dtype), made[order])
    assert torch.equal(centred(x[:1], dtype=dtype), made[:1])


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 2500])
def test_rows_are_always_moved_as_many_at_a_time(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this machine's kernels do: some sum alike for any number of rows."""
    seen = list[int]()

    def counted(x: Tensor, *bounds: float, dtype: torch.dtype) -> Tensor:
        seen.append(len(x))
        return add_constant_and_clip(x, *bounds, dtype=dtype)

    monkeypatch.setattr(centre_module, "add_constant_and_clip", counted)
    about(torch.zeros(rows, 4), torch.zeros(3, dtype=torch.float64), 1.0, math.sqrt(2), 1.0)
    assert seen == [ROWS] * -(-rows // ROWS)


def test_a_transform_without_a_centre_gives_rows_back(transform: PublicTransform) -> None:
    rows = torch.randn(5, 34)
    assert transform.about_centre(rows) is rows


def test_a_centre_as_long_as_a_row_is_taken(transform: PublicTransform) -> None:
    longest = transform.reach * torch.eye(33, dtype=torch.float64)[0]
    rows = recentred(transform, longest)(torch.randn(50, 96), dtype=torch.float64)
    assert all(squared(row) <= Fraction(transform.clip_norm) ** 2 for row in rows)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ([1.0 + 1e-9, 0, 0], r"centre_norm must be in \[0, 1.0\d*\], got 1.000000001"),
        ([1e200, 0, 0], r"centre_norm must be in \[0, 1.0\d*\], got inf"),
        ([math.nan, 0, 0], "centre must be finite, got NaN or infinity"),
        ([0, math.inf, 0], "centre must be finite, got NaN or infinity"),
        ([0.0, 0], r"(centre|row_mean) must be \(3\), got"),
        ([0.0], r"centre must be \(3\), got|row_mean must be \(2\), got"),  # would broadcast
        ([[0.0, 0, 0]], r"centre must be \((3|k)\), got"),
        ([0.0] * 4, r"centre must be \(3\), got|centre_numbers must be in \[1, 3\], got 4"),
        ([], r"centre must be \(3\), got|centre_numbers must be in \[1, 3\], got 0"),
    ],
)
def test_a_centre_out_of_range_is_refused_in_one_line(values: list, rule: str) -> None:
    plain = PublicTransform.identity(3)
    given = torch.tensor(values, dtype=torch.float64)
    ways = [
        lambda: recentred(plain, given),
        lambda: replace(plain, centre=given),
        lambda: PublicTransform.from_tensors(plain.tensors() | {"centre": given, "length": ONE}),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=rule) as refused:
            way()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex128])
def test_a_centre_of_another_precision_is_refused_in_a_file(dtype: torch.dtype) -> None:
    given = {"centre": torch.zeros(3, dtype=dtype), "length": ONE}
    tensors = PublicTransform.identity(3).tensors() | given
    with pytest.raises(ValueError, match="centre must be float64, got torch"):
        PublicTransform.from_tensors(tensors)


def guesses(q: int) -> KnownClasses:
    means, covariance = torch.zeros(q, 2).double(), torch.eye(q).double()
    return KnownClasses(("a", "b"), (ClassGuess("a test", means, covariance),))


def test_a_second_centre_and_guesses_of_classes_are_refused(
    transform: PublicTransform, centred: PublicTransform
) -> None:
    zero = torch.zeros(33, dtype=torch.float64)
    for given in (centred, recentred(transform, zero), replace(transform, known=guesses(33))):
        with pytest.raises(ValueError, match="must have neither a centre nor guesses of classes"):
            recentred(given, zero)
    with pytest.raises(ValueError, match="known must be left out with a centre"):
        replace(centred, known=guesses(33))


def test_comparisons_see_the_centre(transform: PublicTransform, centred: PublicTransform) -> None:
    assert centred.centre is not None
    other = recentred(transform, centred.centre.nextafter(torch.ones(33).double()))
    assert centred.same_rows(recentred(transform, centred.centre.clone()))
    for one, another in ((transform, centred), (centred, other)):
        assert not one.same_rows(another)
        assert not another.same_rows(one)
    unit, zero = PublicTransform.identity(3), torch.zeros(3, dtype=torch.float64)
    assert unit.is_identity
    assert not recentred(unit, zero).is_identity
    assert not unit.same_rows(recentred(unit, zero))


def test_a_saved_transform_keeps_its_centre(centred: PublicTransform, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    centred.save(first)
    loaded = PublicTransform.load(first)
    assert loaded.centre is not None
    assert centred.centre is not None
    assert torch.equal(loaded.centre, centred.centre)
    assert loaded.same_rows(centred)
    assert loaded.fitted_on == centred.fitted_on
    assert loaded.seen is not None
    assert centred.seen is not None
    assert np.array_equal(loaded.seen, centred.seen)
    x = torch.randn(50, 96)
    assert torch.equal(loaded(x), centred(x))
    loaded.save(second)
    assert second.read_bytes() == first.read_bytes()


def test_a_file_without_a_centre_is_as_it_was(transform: PublicTransform, tmp_path: Path) -> None:
    """Files that were written before there were centres have no tensor of this name."""
    path = tmp_path / "transform.safetensors"
    transform.save(path)
    tensors = load_file(path)
    assert set(tensors) == {
        *("basis", "bounds", "mean", "row_mean", "scale", "second_moment", "seen"),
    }
    save_file(tensors, path, {"fitted_on": transform.fitted_on})
    loaded = PublicTransform.load(path)
    assert loaded.centre is None
    assert loaded.same_rows(transform)
    assert torch.equal(loaded(torch.ones(2, 96)), transform(torch.ones(2, 96)))


@pytest.mark.parametrize("length", [math.nan, math.inf, 0.0, -1.0, 2.0**-21, 2.0**21])
def test_a_length_that_no_row_can_be_divided_by_is_refused(
    centred: PublicTransform, length: float
) -> None:
    tensors = centred.tensors()
    ways = [
        lambda: replace(centred, length=length),
        lambda: PublicTransform.from_tensors(tensors | {"length": length * ONE}),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=r"length must be in \[2\^-20, 2\^20\], got"):
            way()
    for given in ({}, {"length": torch.ones(2)}):
        with pytest.raises(ValueError, match=r"length must be \(\), got"):
            PublicTransform.from_tensors(
                {k: v for k, v in tensors.items() if k != "length"} | given
            )


@pytest.mark.parametrize("keep", [1, 8, 33])
def test_the_first_directions_alone_are_kept(transform: PublicTransform, keep: int) -> None:
    """As if the transform had no others, but for the length that they took from a row."""
    towards = torch.arange(1.0, 34, dtype=torch.float64).flip(0)
    centre = 0.6 * transform.reach * towards / towards.norm()
    kept = recentred(transform, centre, keep)
    assert kept.dim == keep + 1
    x = torch.randn(2000, 96, generator=torch.Generator().manual_seed(2))
    rows, full = kept(x, dtype=torch.float64), transform(x, dtype=torch.float64)
    assert all(squared(row) <= Fraction(kept.clip_norm) ** 2 for row in rows[:50])
    away = full[:, 1 : keep + 1] - centre[:keep]
    expected = add_constant_and_clip(away / kept.length, kept.clip_norm, kept.constant)
    torch.testing.assert_close(rows, expected)
    assert torch.equal(kept.about_centre(full), rows)
    for statistics in (kept, transform):
        assert float(statistics.covariance.trace()) == pytest.approx(1.0, abs=0.1)
    assert kept.same_rows(recentred(transform, centre)) == (keep == 33)


@pytest.mark.parametrize("keep", [0, 34, -1])
def test_directions_that_are_not_there_are_not_kept(transform: PublicTransform, keep: int) -> None:
    with pytest.raises(ValueError, match=rf"keep must be in \[1, 33\], got {keep}"):
        recentred(transform, torch.zeros(33, dtype=torch.float64), keep)


def test_a_saved_transform_keeps_its_directions(transform: PublicTransform, tmp_path: Path) -> None:
    kept = recentred(transform, torch.full((33,), 0.1, dtype=torch.float64), 7)
    kept.save(tmp_path / "kept.safetensors")
    loaded = PublicTransform.load(tmp_path / "kept.safetensors")
    x = torch.randn(50, 96)
    assert loaded.same_rows(kept)
    assert torch.equal(loaded(x), kept(x))
