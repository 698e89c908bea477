"""Scatter within and between public classes, beside NumPy's of whole arrays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.public_scatter import PublicScatter

SIZES = (5, 9, 40, 2)


def rows_of(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4) * 3, SIZES)  # numbers with gaps
    means = rng.standard_normal((10, 6))
    rows = means[labels] + rng.standard_normal((len(labels), 6)) * np.linspace(0.1, 1, 6)
    order = rng.permutation(len(labels))
    return rows[order], labels[order]


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_give_what_whole_arrays_do(block: int) -> None:
    rows, labels = rows_of()
    parts = [slice(start, start + block) for start in range(0, len(rows), block)]
    blocks = (torch.from_numpy(rows[p]) for p in parts)
    found = PublicScatter.of(blocks, torch.from_numpy(labels))
    assert found.between is not None
    assert np.allclose(found.mean, rows.mean(0), atol=1e-12)
    known = np.unique(labels)
    centred = np.concatenate([rows[labels == k] - rows[labels == k].mean(0) for k in known])
    within = centred.T @ centred / (len(rows) - 4)
    means = np.stack([rows[labels == k].mean(0) for k in known])
    between = np.cov(means.T) - within * np.mean(1 / np.array(SIZES))
    values, vectors = np.linalg.eigh(between)
    assert values.min() < 0  # four means in six dimensions
    assert np.allclose(found.within, within, atol=1e-12)
    assert np.allclose(found.between, vectors * values.clip(0) @ vectors.T, atol=1e-12)


def test_between_is_the_scatter_of_true_means() -> None:
    """Many small classes: the part of the means' covariance that rows add is taken off."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(4000), 3)
    rows = 0.5 * rng.standard_normal((4000, 2))[labels] + rng.standard_normal((12_000, 2))
    found = PublicScatter.of([torch.from_numpy(rows)], torch.from_numpy(labels))
    assert found.between is not None
    assert np.allclose(found.within, np.eye(2), atol=0.05)
    assert np.allclose(found.between, 0.25 * np.eye(2), atol=0.05)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_one_class_or_one_row_of_each_shows_the_covariance_alone(labels: list[int]) -> None:
    rows = torch.from_numpy(rows_of()[0][:3])
    found = PublicScatter.of([rows], torch.tensor(labels))
    assert found.between is None
    assert torch.allclose(found.within, torch.cov(rows.T, correction=0), atol=1e-12)
    assert torch.equal(found.covariance, found.within)


def test_scatter_along_directions_is_that_of_the_projected_rows() -> None:
    rows, labels = rows_of()
    directions = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    whole = PublicScatter.of([torch.from_numpy(rows)], torch.from_numpy(labels))
    found, projected = whole.along(directions, 2.0), torch.from_numpy(rows) @ directions / 2
    own = PublicScatter.of([projected], torch.from_numpy(labels))
    assert torch.allclose(found.within, own.within, atol=1e-12)
    assert found.mean.abs().max() == 0


def test_a_transform_keeps_it_in_its_file(tmp_path) -> None:
    rows, labels = rows_of()
    public = EmbeddingSet(embeddings=rows, labels=labels)
    fitted = PublicTransform.fit(public, components=3)
    assert fitted.within_class.shape == (3, 3)
    fitted.save(tmp_path / "transform.safetensors")
    loaded = PublicTransform.load(tmp_path / "transform.safetensors")
    assert loaded.same_rows(fitted)
    assert loaded.between_class is not None
    assert torch.equal(loaded.between_class, fitted.between_class)  # type: ignore[arg-type]
    assert PublicTransform.fit(rows, components=3).between_class is None


def test_an_identity_that_carries_scatter_is_no_identity() -> None:
    """What looks at no row makes rows as they are; covariances of rows are not such a thing."""
    plain = PublicTransform.identity(3)
    assert plain.is_identity
    unit = torch.eye(3, dtype=torch.float64)
    loaded = replace(plain, within_class=2 * unit, between_class=unit)
    assert not loaded.is_identity
    assert not replace(plain, within_class=2 * unit).is_identity
    assert not replace(plain, between_class=unit).is_identity
    assert plain.same_rows(loaded)
    assert loaded.same_rows(plain)


@pytest.mark.parametrize("name", ["within_class", "between_class"])
def test_scatter_of_another_size_or_not_finite_is_refused(name: str) -> None:
    tensors = PublicTransform.identity(3).tensors()
    with pytest.raises(ValueError, match=rf"{name} must be \(3, 3\), got \(2, 2\)"):
        PublicTransform.from_tensors({**tensors, name: torch.eye(2)})
    with pytest.raises(ValueError, match=f"{name} must be finite"):
        PublicTransform.from_tensors({**tensors, name: torch.full((3, 3), float("nan")).double()})
