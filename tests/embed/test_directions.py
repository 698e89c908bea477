"""Directions that separate public classes: Fisher's, by an independent solver."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import eigh, subspace_angles
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from embed import EmbeddingSet, PublicTransform
from embed.compress import Compression
from embed.directions import (
    LEAST,
    MIXTURES,
    TEMPER,
    Directions,
    row_moments,
    scatter_floor,
    separating,
)
from embed.transform_options import TransformOptions


def classes(n: int = 3000, dim: int = 9, count: int = 6, seed: int = 0) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % count
    means = rng.standard_normal((count, dim))
    scatter = rng.standard_normal((dim, dim))
    rows = means[labels] + rng.standard_normal((n, dim)) @ scatter
    return EmbeddingSet(embeddings=rows, labels=labels)


def test_without_share_and_floor_they_are_fishers() -> None:
    public = classes()
    transform = PublicTransform.fit(public, components=9, clip_quantile=1.0)
    x, y = torch.from_numpy(public.embeddings), public.labels
    within = np.cov((x.numpy() - np.stack([x[y == k].mean(0) for k in range(6)])[y]).T)
    means = np.stack([x[y == k].mean(0).numpy() for k in range(6)])
    between = np.cov(means.T)
    found = separating(torch.from_numpy(within), torch.from_numpy(between), 5, 0.0, 1e-12)
    fisher = LinearDiscriminantAnalysis(solver="eigen").fit(x.numpy(), y).scalings_[:, :5]
    assert subspace_angles(found.numpy(), fisher).max() < 1e-5
    assert transform.dim == 10


@pytest.mark.parametrize("kind", sorted(MIXTURES))
def test_they_solve_the_generalised_eigenproblem_in_its_units(kind: Directions) -> None:
    rng = np.random.default_rng(1)
    within, between = (a @ a.T for a in rng.standard_normal((2, 8, 8)))
    share, least = MIXTURES[kind][0], scatter_floor(torch.from_numpy(within), 5)
    found = separating(torch.from_numpy(within), torch.from_numpy(between), 3, share, least).numpy()
    metric = within + np.linalg.eigvalsh(within)[-5] * np.eye(8)
    sought = between + share * (within + between)
    values, vectors = eigh(sought, metric)
    assert np.allclose(found.T @ metric @ found, np.eye(3), atol=1e-9)
    assert np.allclose(found.T @ sought @ found, np.diag(values[::-1][:3]), atol=1e-9)
    assert subspace_angles(found, vectors[:, ::-1][:, :3]).max() < 1e-6


@pytest.mark.parametrize("kind", sorted(MIXTURES))
def test_their_floor_is_an_eigenvalue_of_the_scatter_within_classes(kind: Directions) -> None:
    rng = np.random.default_rng(3)
    within, (share, rank) = np.diag(rng.uniform(1, 50, 400)), MIXTURES[kind]
    assert scatter_floor(torch.from_numpy(within), rank) == np.sort(within.diagonal())[-rank]
    public = classes(dim=20)
    fitted = PublicTransform.fit(public, components=20, directions=kind)
    blocks = [torch.from_numpy(public.embeddings)]
    _, _, inside, between = row_moments(blocks, torch.from_numpy(public.labels))
    assert inside is not None
    assert between is not None
    values = torch.linalg.eigvalsh(inside).flip(0)
    expected = max(values[min(rank, 20) - 1], LEAST * values[0])
    assert scatter_floor(inside, rank) == pytest.approx(float(expected))
    sought = separating(inside, between, 20, share, scatter_floor(inside, rank))
    found = (fitted.basis / fitted.scale).double()
    assert torch.allclose(found.abs() / found.norm(), sought.abs() / sought.norm(), atol=1e-5)


def test_a_floor_is_above_nought() -> None:
    """Few public rows have no scatter along most directions."""
    spread = torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64)
    assert scatter_floor(spread.diag(), 3) == 4 * LEAST
    assert scatter_floor(torch.zeros(3, 3), 3) > 0
    few = classes(12, dim=40)
    transform = PublicTransform.fit(few, components=11, directions="discriminant")
    assert transform(few.embeddings).isfinite().all()


def test_tempered_directions_are_principal_ones_of_other_lengths() -> None:
    public = classes()
    fit = partial(PublicTransform.fit, public, components=5, shrinkage=0.0, clip_quantile=1.0)
    plain, white, tempered = fit(whiten=False), fit(), fit(directions="tempered")
    assert torch.equal(tempered.basis, plain.basis)
    deviations = white.scale.double() / white.scale[-1]
    assert torch.allclose(tempered.scale / tempered.scale[-1], (deviations**TEMPER).float())
    lengths = [fitted.covariance.diagonal()[1:] for fitted in (white, tempered, plain)]
    spreads = [float(each.max() / each.min()) for each in lengths]
    assert spreads[0] < 1.01 < spreads[1] < spreads[2]


@pytest.mark.parametrize("kind", sorted(MIXTURES))
def test_rows_are_those_of_the_directions_and_bounded(kind: Directions) -> None:
    public = classes()
    transform = PublicTransform.fit(
        public, components=4, directions=kind, clip_quantile=0.5, constant=0.5, clip_norm=2.0
    )
    rows = transform(1e3 * public.embeddings)
    assert torch.linalg.vector_norm(rows.double(), dim=1).max() <= 2.0
    assert torch.allclose(transform.basis.double().norm(dim=0), torch.ones(4).double())
    assert transform.within_class is not None  # in the units of its rows
    inner = transform.features(torch.from_numpy(public.embeddings))
    assert torch.allclose(inner.mean(0), torch.zeros(4).double(), atol=1e-5)


@pytest.mark.parametrize("kind", sorted(MIXTURES))
def test_compressed_rows_have_the_directions_of_whole_ones(kind: Directions) -> None:
    public = classes(dim=30)
    options = TransformOptions(components=4, directions=kind)
    compression = Compression.fit(public, options.principal(public.dim))
    small = compression.apply(public)
    there = compression.fit_transform(small, **options.arguments())(small.embeddings)
    here = options.fit(public)(public.embeddings)
    assert torch.allclose(there.abs(), here.abs(), atol=2e-4)
    assert TransformOptions(components=4).principal(30) == 4


def test_few_directions_hold_what_separates_classes_that_many_principal_ones_miss() -> None:
    rng = np.random.default_rng(2)
    labels = np.arange(4000) % 4
    rows = rng.standard_normal((4000, 20)) * np.linspace(5, 1, 20)
    rows[:, -3:] += 4 * np.concatenate([np.zeros((1, 3)), np.eye(3)])[labels]
    public = EmbeddingSet(embeddings=rows, labels=labels)
    share = {}
    kinds: tuple[Directions, ...] = ("principal", "discriminant")
    for kind in kinds:
        transform = PublicTransform.fit(public, components=3, directions=kind)
        share[kind] = float(transform.basis[-3:].square().sum()) / 3
    assert share["principal"] < 0.1 < 0.9 < share["discriminant"]


def test_what_cannot_be_is_refused_by_name() -> None:
    public = classes(100)
    with pytest.raises(ValueError, match=r"directions must be one of .*, got 'random'"):
        PublicTransform.fit(public, directions="random")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="whiten must be left on with directions 'mixed'"):
        PublicTransform.fit(public, directions="mixed", whiten=False)
    for bare in (
        public.embeddings,
        EmbeddingSet(embeddings=public.embeddings, labels=np.full(100, -1)),
    ):
        with pytest.raises(ValueError, match="public must have labels of two classes"):
            PublicTransform.fit(bare, directions="discriminant")


def test_rows_all_alike_within_their_class_stay_finite() -> None:
    labels = np.arange(40) % 4
    public = EmbeddingSet(embeddings=np.eye(4, 6)[labels] + 1.0, labels=labels)
    transform = PublicTransform.fit(public, components=2, directions="discriminant")
    rows = transform(public.embeddings)
    assert rows.isfinite().all()
    assert math.isfinite(float(transform.scale.max()))


def test_a_hedge_is_tempered_where_classes_are_unknown(tmp_path: Path) -> None:
    public = classes()
    fit = partial(PublicTransform.fit, components=5)
    labelled = fit(public, directions="hedge")
    alike = EmbeddingSet(embeddings=public.embeddings, labels=np.zeros(len(public), np.int64))
    for bare in (public.embeddings, alike):
        hedge, tempered = (fit(bare, directions=kind) for kind in ("hedge", "tempered"))
        assert hedge.same_rows(tempered)
        assert not hedge.same_rows(labelled)
    labelled.save(tmp_path / "transform.safetensors")
    read = PublicTransform.load(tmp_path / "transform.safetensors")
    assert read.same_rows(labelled)
    assert read.same_scatter(labelled)
    assert read.options is not None
    assert read.options["directions"] == "hedge"


def test_a_hedge_of_one_direction_or_of_rows_on_a_line_is_finite() -> None:
    rng = np.random.default_rng(0)
    line = rng.standard_normal((200, 1)) * np.array([[1.0, 2.0, 0.0]])
    for q in (1, 3):
        flat = PublicTransform.fit(line, components=q, directions="hedge")
        assert flat(line).isfinite().all()
