import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.clip import add_constant_and_clip
from embed.known_classes import ClassGuess, KnownClasses
from pretrain.preprocess import Preprocess

CLIP = math.sqrt(2)


def true_norms(rows: torch.Tensor) -> np.ndarray:
    wide = rows.numpy().astype(np.longdouble)
    return np.sqrt((wide**2).sum(1))


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
def test_norm_never_exceeds_the_bound(dtype: torch.dtype, dim: int, constant: float) -> None:
    generator = torch.Generator().manual_seed(dim)
    x = adversarial_rows(3000, dim, generator).to(dtype)
    rows = add_constant_and_clip(x, CLIP, constant)
    assert rows.dtype == dtype
    assert (rows[:, 0] == constant).all()
    assert true_norms(rows.to(torch.float64)).max() <= CLIP


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_norm_never_exceeds_the_bound_over_a_million_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for dim in (7, 64, 129, 500):
        for _ in range(5):
            x = adversarial_rows(50_000, dim, generator).to(dtype)
            assert true_norms(add_constant_and_clip(x, CLIP)).max() <= CLIP


@pytest.mark.parametrize("bound", [1e-9, 1e-4, 1e-3])
def test_bounds_below_the_smallest_normal_float16(bound: float) -> None:
    x = torch.full((4, 500), 1.0, dtype=torch.float16)
    assert true_norms(add_constant_and_clip(x, bound, 0.0).double()).max() <= bound


def test_short_rows_are_kept_bit_for_bit() -> None:
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)) * 1e-3
    assert torch.equal(add_constant_and_clip(x, CLIP)[:, 1:], x)
    assert torch.equal(add_constant_and_clip(torch.zeros(2, 3), CLIP)[:, 1:], torch.zeros(2, 3))


def test_long_rows_keep_their_direction_and_reach_the_bound() -> None:
    x = torch.randn(100, 9, generator=torch.Generator().manual_seed(0)) * 1e30
    clipped = add_constant_and_clip(x, CLIP)[:, 1:]
    cosine = torch.nn.functional.cosine_similarity(clipped, x * 1e-30)
    assert cosine.min() > 1 - 1e-6
    assert clipped.norm(dim=1).min() > 1 - 1e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_named(bad: float) -> None:
    x = torch.zeros(5, 2)
    x[3, 1] = bad
    with pytest.raises(ValueError, match=f"x must be finite, got {bad} in row 3"):
        add_constant_and_clip(x, CLIP)
    with pytest.raises(ValueError, match="in row 3"):
        PublicTransform.identity(2)(x)
    with pytest.raises(ValueError, match="public must be finite"):
        PublicTransform.fit(x)


@pytest.mark.parametrize(
    ("clip_norm", "constant", "rule"),
    [
        (1.0, 1.0, "clip_norm must be > constant"),
        (math.nan, 1.0, "clip_norm must be > constant"),
        (math.inf, 1.0, "clip_norm must be > constant"),
        (2.0, -1.0, "clip_norm must be > constant >= 0"),
        (2.0, 0.1, "constant must be representable"),
    ],
)
def test_bad_bounds(clip_norm: float, constant: float, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        add_constant_and_clip(torch.zeros(1, 2), clip_norm, constant)


@pytest.fixture
def public() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(12, 12, generator=generator)
    return torch.randn(4000, 12, generator=generator) @ mix + 5


def test_basis_is_that_of_an_independent_pca(public: torch.Tensor) -> None:
    transform = PublicTransform.fit(public, components=4)
    _, _, directions = np.linalg.svd(public.numpy() - public.numpy().mean(0), full_matrices=False)
    overlap = np.abs(directions[:4] @ transform.basis.numpy())
    assert np.allclose(overlap, np.eye(4), atol=1e-3)


def test_clip_quantile_is_the_share_of_public_rows_left_alone(public: torch.Tensor) -> None:
    transform = PublicTransform.fit(public, clip_quantile=0.3)
    norms = transform.features(public).norm(dim=1)
    assert (norms <= 1).float().mean() == pytest.approx(0.3, abs=0.01)


def test_public_scatter_is_that_of_the_rows(public: torch.Tensor) -> None:
    transform = PublicTransform.fit(public, components=5)
    rows = transform(public).double()
    assert transform.dim == rows.shape[1] == 6
    assert torch.allclose(transform.row_mean, rows[:, 1:].mean(0))
    covariance = torch.cov(rows[:, 1:].T, correction=0)
    assert torch.allclose(transform.public.covariance, covariance, atol=1e-12)
    assert true_norms(rows).max() <= math.sqrt(1.25)


def test_unit_vectors_are_left_out_where_they_change_nothing(public: torch.Tensor) -> None:
    same = PublicTransform.identity(public.shape[1])
    turned = replace(same, basis=same.basis.flip(1))
    assert torch.equal(same.features(public), public.float())
    assert torch.equal(turned.features(public), public.float().flip(1))


def test_saved_transform_is_the_same(public: torch.Tensor, tmp_path: Path) -> None:
    transform = PublicTransform.fit(public, components=3)
    transform.save(tmp_path / "transform.safetensors")
    loaded = PublicTransform.load(tmp_path / "transform.safetensors")
    assert loaded.fitted_on == transform.fitted_on
    assert torch.equal(loaded(public), transform(public))
    assert torch.equal(loaded.within_class, transform.within_class)


def test_constant_public_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="public rows must differ"):
        PublicTransform.fit(torch.ones(10, 3))


def test_an_embedding_set_fits_like_its_array(public: torch.Tensor) -> None:
    held = EmbeddingSet(embeddings=public.numpy(), labels=np.zeros(len(public), np.int64))
    one, other = PublicTransform.fit(held), PublicTransform.fit(public)
    assert one.fitted_on == other.fitted_on == held.content_hash()
    assert torch.equal(one.basis, other.basis)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"bounds": torch.tensor([1.0, 2.0, 3.0])}, "bounds must have shape"),
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
    tensors = PublicTransform.identity(3).tensors()
    PublicTransform.from_tensors(tensors)
    with pytest.raises(ValueError, match=rule):
        PublicTransform.from_tensors(tensors | change)


SAVES = """
import sys
from pathlib import Path
from embed import PublicTransform
for place in sys.argv[2:]:
    PublicTransform.load(Path(sys.argv[1])).save(Path(place))
"""


def test_equal_transforms_are_equal_files_whoever_saves_them(tmp_path: Path) -> None:
    """A federation agrees on a transform by the hash of its file."""
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).numpy()
    made = {"encoder": "e", "encoder_hash": "h", "weights": "random"}
    meta = {**made, "preprocess": Preprocess().to_json()}
    public = EmbeddingSet(embeddings=rows, labels=np.zeros(50, int), meta=meta)
    first, *others = [tmp_path / f"{number}.safetensors" for number in range(7)]
    transform = PublicTransform.fit(public)
    assert transform.encoding is not None
    for path in (first, *others[:3]):
        transform.save(path)
    elsewhere = [sys.executable, "-c", SAVES, *map(str, (first, *others[3:]))]
    subprocess.run(elsewhere, check=True, cwd=Path(__file__).parents[2])
    assert {path.read_bytes() for path in others} == {first.read_bytes()}


def test_mapped_rows_are_those_of_the_formula(public: torch.Tensor, tmp_path: Path) -> None:
    labels = (public[:, 0] > 5).long() + 2 * (public[:, 1] > 5).long()
    held = EmbeddingSet(embeddings=public.numpy(), labels=labels.numpy())
    raw = PublicTransform.fit(held)
    mapped = raw.mapped(0.3, 4)
    assert mapped.directions is not None
    assert mapped.centre is not None
    y = raw(public)[:, 1:].double()
    z = (y - raw.row_mean) @ mapped.directions / mapped.length
    z = z * (1 / z.norm(dim=1, keepdim=True)).clamp(max=1)
    rows = mapped(public)
    assert torch.allclose(rows[:, 1:].double(), z, atol=1e-5)
    assert (rows[:, 0] == 0.5).all()
    assert true_norms(mapped(1e6 * public).double()).max() <= math.sqrt(1.25)
    assert torch.equal(mapped.map_rows(raw(public)), rows)
    scatter = mapped.public
    assert float(scatter.covariance.trace()) == pytest.approx(1)
    assert mapped.raw.same_rows(raw)
    mapped.save(tmp_path / "mapped")
    loaded = PublicTransform.load(tmp_path / "mapped")
    assert loaded.same_rows(mapped)
    assert torch.equal(loaded(public), rows)
    with pytest.raises(ValueError, match="transform must be to raw coordinates"):
        mapped.mapped(0.3, 2)


def test_guesses_are_mapped_as_rows_are(public: torch.Tensor) -> None:
    raw = PublicTransform.fit(public, components=6)
    draw = torch.Generator().manual_seed(0)
    means = 0.1 * torch.randn(6, 3, generator=draw, dtype=torch.float64)
    guess = ClassGuess("words", means, torch.eye(6, dtype=torch.float64))
    known = replace(raw, known=KnownClasses(("a", "b", "c"), (guess,)))
    assert known.guesses == (guess,)
    mapped = known.mapped(0.3, 3)
    assert mapped.directions is not None
    (found,) = mapped.guesses
    typical = math.sqrt(
        float((mapped.directions * (raw.public.covariance @ mapped.directions)).sum())
    )
    own = (means - raw.row_mean[:, None]).T @ mapped.directions / typical
    assert torch.allclose(found.means, own.T)
    assert torch.allclose(found.covariance, mapped.directions.T @ mapped.directions / typical**2)


@pytest.mark.parametrize("length", [2.0**-21, 2.0**21, math.nan])
def test_lengths_of_rounding_are_refused(public: torch.Tensor, length: float) -> None:
    mapped = PublicTransform.fit(public, components=6).mapped(0.3, 3)
    with pytest.raises(ValueError, match="length must be"):
        replace(mapped, length=length)
