"""Transforms fitted on public rows, their files and refusals; clipped rows of any size."""

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.clip import add_constant_and_clip, check_finite
from embed.identity import found, row_hashes
from embed.known_classes import ClassGuess, KnownClasses
from pretrain.preprocess import Preprocess

CLIP = math.sqrt(2)


def squared(row: Tensor) -> Fraction:
    """Σ x², without any rounding."""
    ratios = [value.as_integer_ratio() for value in row.tolist()]
    unit = max(below for _, below in ratios)  # a power of two
    return Fraction(sum((above * (unit // below)) ** 2 for above, below in ratios), unit**2)


def exact_norms(rows: Tensor) -> np.ndarray:
    return np.sqrt((rows.numpy().astype(np.longdouble) ** 2).sum(1))


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


@pytest.mark.parametrize("columns", [1000, 3000, 10_000])
def test_many_columns_are_summed_with_a_margin_of_their_own(columns: int) -> None:
    x = torch.rand(8, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert all(squared(row) <= 0.75 for row in add_constant_and_clip(x, 1.0, 0.5)[:, 1:])


def adversarial_rows(count: int, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Rows whose norm rounds to just around the clip bound, and extreme ones."""
    rows = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    rows /= rows.norm(dim=1, keepdim=True)
    kinds = torch.arange(count) % 6
    ulps = torch.randint(-4, 5, (count, 1), generator=generator).double()
    rows[kinds == 0] *= 1 + ulps[kinds == 0] * 2**-24
    rows[kinds == 1] *= 1 + ulps[kinds == 1] * 2**-11
    rows[kinds == 2] *= 1e4
    rows[kinds == 3] = torch.eye(dim, dtype=torch.float64)[0] * (1 + ulps[kinds == 3] * 2**-23)
    rows[kinds == 4] = rows[kinds == 4].sign() / math.sqrt(dim)  # every entry rounds alike
    rows[kinds == 5] *= 1e-7  # subnormal in float16
    return rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 640])
@pytest.mark.parametrize("constant", [0.0, 1.0])
@pytest.mark.parametrize("draws", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_norm_never_exceeds_the_bound(dtype, dim: int, constant: float, draws: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    for _ in range(draws):
        x = adversarial_rows(3000, dim, generator).to(dtype)
        rows = add_constant_and_clip(x, CLIP, constant)
        assert rows.dtype == dtype
        assert (rows[:, 0] == constant).all()
        assert exact_norms(rows.to(torch.float64)).max() <= CLIP


@pytest.mark.parametrize("bound", [1e-9, 1e-4, 1e-3])
def test_bounds_below_the_smallest_normal_float16(bound: float) -> None:
    x = torch.full((4, 500), 1.0, dtype=torch.float16)
    assert exact_norms(add_constant_and_clip(x, bound, 0.0).double()).max() <= bound


def test_short_rows_are_kept_bit_for_bit() -> None:
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)) * 1e-3
    assert torch.equal(add_constant_and_clip(x, CLIP)[:, 1:], x)
    assert torch.equal(add_constant_and_clip(torch.zeros(2, 3), CLIP)[:, 1:], torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("clip_norm", "constant", "rule"),
    [
        *[(norm, 1.0, "clip_norm must be > constant") for norm in (1.0, math.nan, math.inf)],
        (2.0, -1.0, "clip_norm must be > constant >= 0"),
        (2.0, 0.1, "constant must be representable"),
        *[
            (norm, 0.0, r"clip_norm must be in \[1e-60, 1e\+60\], got 1e[-+](300|61|200)")
            for norm in (1e-300, 1e-61, 1e61, 1e200)
        ],
    ],
)
def test_bad_bounds(clip_norm: float, constant: float, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        add_constant_and_clip(torch.zeros(1, 2), clip_norm, constant)


P = 12
DRAW = torch.Generator().manual_seed(1)
MIX = torch.randn(P, P, generator=DRAW)
PUBLIC = torch.randn(4000, P, generator=DRAW) @ MIX + 5
each_dtype = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])

TRANSFORMS = {
    "identity": PublicTransform.identity(P),
    "identity, long": PublicTransform.identity(P, 34.854, 1.0),
    "raw": PublicTransform.fit(PUBLIC),
    "narrow": PublicTransform.fit(PUBLIC, components=2, constant=0.25),
    "mapped": PublicTransform.fit(PUBLIC, clip_quantile=0.9).mapped(0.01, 4),
}


def any_rows(dtype: type[np.floating], count: int = 2000) -> np.ndarray:
    """Rows of random bits, with every exponent as likely as another, and of extreme numbers."""
    size = np.dtype(dtype).itemsize
    draw, top = np.random.default_rng(size), float(np.finfo(dtype).max)
    extremes = np.array([0.0, -0.0, top, -top, top / 2, float(np.finfo(dtype).tiny) / 4], dtype)
    x = np.frombuffer(draw.bytes(count * P * size), dtype).reshape(-1, P)
    x = np.where(np.isfinite(x) & (draw.random(x.shape) < 0.7), x, draw.choice(extremes, x.shape))
    return np.concatenate([np.repeat(extremes[:, None], P, 1), x])


@each_dtype
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("count", [2000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_any_finite_row_keeps_the_bound_and_the_constant(name: str, dtype, count: int) -> None:
    transform, x = TRANSFORMS[name], any_rows(dtype, count)
    for made in (torch.float16, torch.float32, torch.float64):
        rows = transform(x, dtype=made)
        assert (rows[:, 0] == transform.constant).all()
        assert (exact_norms(rows.double()) <= transform.clip_norm).all()


@each_dtype
@pytest.mark.parametrize("name", ["identity", "raw"])
def test_the_direction_is_that_of_the_formula(name: str, dtype) -> None:
    """Against Pᵀ(x − m)/s and its clip in numbers of far wider range."""
    x = any_rows(dtype)
    transform = TRANSFORMS[name]
    mean, basis, scale = (
        getattr(transform, field).numpy().astype(np.longdouble)
        for field in ("mean", "basis", "scale")
    )
    features = (x.astype(np.longdouble) - mean) @ basis / scale
    norms = np.sqrt((features**2).sum(1, keepdims=True))
    reach = np.sqrt(np.longdouble(transform.clip_norm**2 - transform.constant**2))
    expected = features * np.minimum(1, reach / np.maximum(norms, np.longdouble("1e-4000")))
    found = transform(x)[:, 1:]
    assert np.abs(found.numpy() - expected).max() <= 2e-4 * reach  # float32 of a whitened row
    assert (exact_norms(found)[norms[:, 0] > 2 * reach] > reach * (1 - 1e-6)).all()


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


def test_rows_that_are_not_finite_are_named() -> None:
    x = torch.zeros(5, 2)
    x[3, 1] = math.nan
    for name, call in (
        ("x", partial(add_constant_and_clip, clip_norm=CLIP)),
        ("x", PublicTransform.identity(2)),
    ):
        with pytest.raises(ValueError, match=f"{name} must be finite, got nan in row 3"):
            call(x)


IDENTITY = PublicTransform.identity(3).tensors()


def test_a_fit_is_an_independent_pca_and_knows_scatter_and_share_of_clipped_rows() -> None:
    transform = PublicTransform.fit(PUBLIC, components=5)
    _, _, directions = np.linalg.svd(PUBLIC.numpy() - PUBLIC.numpy().mean(0), full_matrices=False)
    overlap = np.abs(directions[:5] @ transform.basis.numpy())
    assert np.allclose(overlap, np.eye(5), atol=1e-3)
    rows = transform(PUBLIC).double()
    assert transform.dim == rows.shape[1] == 6
    assert torch.allclose(transform.row_mean, rows[:, 1:].mean(0))
    covariance = torch.cov(rows[:, 1:].T, correction=0)
    assert torch.allclose(transform.public.covariance, covariance, atol=1e-12)
    assert exact_norms(rows).max() <= math.sqrt(1.25)
    norms = PublicTransform.fit(PUBLIC, clip_quantile=0.3).features(PUBLIC).norm(dim=1)
    assert (norms <= 1).float().mean() == pytest.approx(0.3, abs=0.01)


def test_unit_vectors_are_left_out_where_they_change_nothing() -> None:
    same = PublicTransform.identity(P)
    turned = replace(same, basis=same.basis.flip(1))
    assert torch.equal(same.features(PUBLIC), PUBLIC.float())
    assert torch.equal(turned.features(PUBLIC), PUBLIC.float().flip(1))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"bounds": torch.tensor([1.0, 2.0, 3.0])}, "bounds must have shape"),
        *[
            ({name: IDENTITY[name].double()}, f"{name} must be float32, got torch.float64")
            for name in ("mean", "basis", "scale")
        ],
        *[
            ({f"{name}_class": wrong}, f"{name}_class must be {rule}")
            for name in ("within", "between")
            for wrong, rule in (
                (torch.eye(2), r"\(3, 3\), got \(2, 2\)"),
                (torch.full((3, 3), math.nan).double(), "finite"),
            )
        ],
        ({"bounds": torch.tensor([math.nan, 0.5])}, "clip_norm must be > constant"),
        ({"bounds": torch.tensor([1.0, -0.5])}, "clip_norm must be > constant"),
        ({"basis": torch.ones(3)}, "basis"),
        ({"scale": torch.zeros(())}, r"scale must be in \[2\^-126, 2\^127\], got 0"),
        ({"mean": torch.full((3,), math.inf)}, "mean must be finite"),
        ({"second_moment": torch.eye(4)}, "one of an earlier version is to be fitted again"),
        ({"centre": torch.zeros(2).double()}, "directions and centre must be given together"),
    ],
)
def test_a_damaged_transform_is_refused(change: dict, rule: str) -> None:
    PublicTransform.from_tensors(IDENTITY)
    with pytest.raises(ValueError, match=rule):
        PublicTransform.from_tensors(IDENTITY | change)


@pytest.mark.parametrize(("hashes", "kind"), [([2, 1], "u8"), ([1, 1], "u8"), ([1, 2], "i8")])
def test_hashes_out_of_order_are_refused(hashes: list[int], kind: str) -> None:
    with pytest.raises(ValueError, match="seen must be ascending uint64"):
        PublicTransform.from_tensors(IDENTITY, seen=np.array(hashes, kind))


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([[1e300, 1.0], [-1e300, 2.0], [0.0, 1.0]], "public rows must have finite second moments"),
        ([[1e100, 1.0], [2e100, 2.0], [0.0, 1.0]], "mean must be finite"),
        (np.ones((10, 3)), "public rows must differ"),
    ],
)
def test_public_rows_that_make_no_transform(rows: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PublicTransform.fit(np.array(rows))


@pytest.mark.parametrize("labels", [None, np.arange(50) % 4])
def test_a_file_keeps_all_of_a_transform(tmp_path: Path, labels: np.ndarray | None) -> None:
    """Its rows, scatter, the hashes of rows that it has seen, and how many were dropped before."""
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).numpy()
    rows: np.ndarray | EmbeddingSet = np.concatenate([x, x[:7]])
    if labels is not None:
        rows = EmbeddingSet(embeddings=x, labels=labels, meta={"dropped_rows": 21})
    fitted = PublicTransform.fit(rows, components=3)
    fitted.save(tmp_path / "t.safetensors")
    loaded = PublicTransform.load(tmp_path / "t.safetensors")
    assert (loaded.fitted_on, loaded.dropped) == (fitted.fitted_on, 0 if labels is None else 21)
    assert torch.equal(loaded(x), fitted(x))
    assert torch.equal(loaded.within_class, fitted.within_class)
    assert (loaded.between_class is None) == (labels is None)
    assert loaded.same_rows(fitted)
    assert loaded.seen is not None
    assert (loaded.seen.dtype, len(loaded.seen)) == (np.uint64, 50)
    assert found(row_hashes(x), loaded.seen).all()
    assert not loaded.is_identity
    forgotten = PublicTransform.from_tensors(loaded.tensors())
    assert forgotten.seen is None
    assert forgotten.same_rows(loaded)


def test_only_the_identity_has_seen_nothing(tmp_path: Path) -> None:
    """What looks at no row makes rows as they are; covariances of rows are not such a thing."""
    plain, unit = PublicTransform.identity(3), torch.eye(3, dtype=torch.float64)
    PublicTransform.identity(4, 2.0, 0.5).save(tmp_path / "t.safetensors")
    assert PublicTransform.load(tmp_path / "t.safetensors").is_identity
    for name in ("mean", "basis", "scale", "row_mean", "within_class"):
        changed = IDENTITY[name].clone()
        changed.view(-1)[0] += 0.5
        assert not PublicTransform.from_tensors(IDENTITY | {name: changed}).is_identity, name
    loaded = replace(plain, between_class=unit)
    assert not loaded.is_identity
    assert plain.same_rows(loaded)
    assert loaded.same_rows(plain)


def test_equal_transforms_are_equal_files_whoever_saves_them(tmp_path: Path) -> None:
    """A federation agrees on a transform by the hash of its file."""
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).numpy()
    made = {"encoder": "e", "encoder_hash": "h", "weights": "random"}
    meta = {**made, "preprocess": Preprocess().to_json()}
    public = EmbeddingSet(embeddings=rows, labels=np.zeros(50, int), meta=meta)
    transform = PublicTransform.fit(public)
    assert transform.encoding is not None
    first, *others = [tmp_path / f"{number}.safetensors" for number in range(7)]
    for path in (first, *others[:3]):
        transform.save(path)
    program = "import sys, pathlib, embed\nload = embed.PublicTransform.load\n"
    program += "one, *all = map(pathlib.Path, sys.argv[1:])\nfor each in all: load(one).save(each)"
    elsewhere = [sys.executable, "-c", program, *map(str, (first, *others[3:]))]
    subprocess.run(elsewhere, check=True, cwd=Path(__file__).parents[2])
    assert {path.read_bytes() for path in others} == {first.read_bytes()}


def test_mapped_rows_are_those_of_the_formula(tmp_path: Path) -> None:
    labels = (PUBLIC[:, 0] > 5).long() + 2 * (PUBLIC[:, 1] > 5).long()
    held = EmbeddingSet(embeddings=PUBLIC.numpy(), labels=labels.numpy())
    raw = PublicTransform.fit(held)
    mapped = raw.mapped(0.3, 4)
    assert mapped.directions is not None
    assert mapped.centre is not None
    y = raw(PUBLIC)[:, 1:].double()
    z = (y - raw.row_mean) @ mapped.directions / mapped.length
    z = z * (1 / z.norm(dim=1, keepdim=True)).clamp(max=1)
    rows = mapped(PUBLIC)
    assert torch.allclose(rows[:, 1:].double(), z, atol=1e-5)
    assert (rows[:, 0] == 0.5).all()
    assert exact_norms(mapped(1e6 * PUBLIC).double()).max() <= math.sqrt(1.25)
    assert torch.equal(mapped.map_rows(raw(PUBLIC)), rows)
    assert float(mapped.public.covariance.trace()) == pytest.approx(1)
    assert mapped.raw.same_rows(raw)
    mapped.save(tmp_path / "mapped")
    loaded = PublicTransform.load(tmp_path / "mapped")
    assert loaded.same_rows(mapped)
    assert torch.equal(loaded(PUBLIC), rows)
    with pytest.raises(ValueError, match="transform must be to raw coordinates"):
        mapped.mapped(0.3, 2)
    for length in (2.0**-21, 2.0**21, math.nan):
        with pytest.raises(ValueError, match="length must be"):
            replace(mapped, length=length)


def test_guesses_are_mapped_as_rows_are() -> None:
    raw = PublicTransform.fit(PUBLIC, components=6)
    draw = torch.Generator().manual_seed(0)
    means = 0.1 * torch.randn(6, 3, generator=draw, dtype=torch.float64)
    guess = ClassGuess("words", means, torch.eye(6, dtype=torch.float64))
    known = replace(raw, known=KnownClasses(("a", "b", "c"), (guess,)))
    assert known.guesses == (guess,)
    mapped = known.mapped(0.3, 3)
    assert mapped.directions is not None
    (found,) = mapped.guesses
    along = mapped.directions.T @ raw.public.covariance @ mapped.directions
    typical = math.sqrt(float(along.trace()))
    own = (means - raw.row_mean[:, None]).T @ mapped.directions / typical
    assert torch.allclose(found.means, own.T)
    assert torch.allclose(found.covariance, mapped.directions.T @ mapped.directions / typical**2)
