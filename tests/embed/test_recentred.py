"""Rows about a centre along discriminant directions: which these are, and that rows stay short."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform, add_constant_and_clip
from embed.directions import Directions
from embed.recentred import first, recentred
from tests.embed.test_clip_scales import squared

P, Q, TAKEN, CLASSES = 40, 30, 5, 8


def rows_of_classes(labelled: bool = True) -> EmbeddingSet:
    rng = np.random.default_rng(0)
    labels = np.arange(2000) % CLASSES
    apart = np.linspace(3, 0.1, P) * rng.standard_normal((CLASSES, P))
    x = apart[labels] + np.linspace(0.1, 2, P) * rng.standard_normal((len(labels), P)) + 4
    shown = labels if labelled else np.full(len(labels), -1)
    return EmbeddingSet(embeddings=x.astype(np.float32), labels=shown)


@pytest.fixture(scope="module")
def public() -> EmbeddingSet:
    return rows_of_classes()


@pytest.fixture(scope="module")
def offering(public: EmbeddingSet) -> PublicTransform:
    return PublicTransform.fit(public, components=P, directions="hedge", discriminants=TAKEN)


def centre_of(transform: PublicTransform, length: float, seed: int = 1) -> Tensor:
    towards = torch.randn(transform.dim - 1, generator=torch.Generator().manual_seed(seed)).double()
    return length * transform.reach * (1 - 2.0**-40) * towards / towards.norm()


def assert_alike(ours: Tensor, theirs: Tensor) -> None:
    """Equal columns, but for their signs and one factor."""
    signs = (ours * theirs).sum(0).sign()
    torch.testing.assert_close(
        ours / ours.norm(), signs * theirs / theirs.norm(), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["hedge", "principal", "tempered"])
def test_along_all_directions_they_are_those_of_a_transform_of_their_own(
    public: EmbeddingSet, kind: Directions
) -> None:
    found = PublicTransform.fit(public, components=P, directions=kind, discriminants=TAKEN)
    own = PublicTransform.fit(public, components=TAKEN, directions="discriminant")
    assert found.discriminants is not None
    ours = (found.basis / found.scale).double() @ found.discriminants
    assert_alike(ours, (own.basis / own.scale).double())
    assert float(torch.linalg.matrix_norm(found.discriminants, 2)) <= 1
    assert found.options is not None
    assert found.options["discriminants"] == TAKEN


def test_along_few_directions_they_are_the_nearest(public: EmbeddingSet) -> None:
    """No other combination of what there is lies nearer to them."""
    found = PublicTransform.fit(public, components=Q, directions="principal", discriminants=TAKEN)
    own = PublicTransform.fit(public, components=TAKEN, directions="discriminant")
    assert found.discriminants is not None
    there, sought = (found.basis / found.scale).double(), (own.basis / own.scale).double()
    nearest = there @ torch.linalg.lstsq(there, sought).solution
    assert_alike(there @ found.discriminants, nearest)


@pytest.mark.parametrize("length", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("shift", [0.0, 1e4, 1e30])
def test_rows_along_them_are_no_longer_and_lie_about_the_centre(
    offering: PublicTransform, length: float, shift: float
) -> None:
    centre = centre_of(offering, length)
    found = recentred(offering, centre, discriminants=True)
    assert found.dim == TAKEN + 1
    x = shift + 10 * torch.randn(300, P, generator=torch.Generator().manual_seed(2))
    rows, full = found(x, dtype=torch.float64), offering(x, dtype=torch.float64)
    assert all(squared(row) <= Fraction(found.clip_norm) ** 2 for row in rows)
    assert offering.discriminants is not None
    away = (full[:, 1:] - centre) @ offering.discriminants / found.length
    expected = add_constant_and_clip(away, found.clip_norm, found.constant)
    torch.testing.assert_close(rows, expected)
    assert torch.equal(found.about_centre(full), rows)


def test_public_statistics_are_those_of_public_rows_along_them(
    public: EmbeddingSet, offering: PublicTransform
) -> None:
    """As long as before: about the public mean the linear part of the rows has these moments."""
    found = recentred(offering, torch.zeros(P, dtype=torch.float64), discriminants=True)
    assert offering.discriminants is not None
    along = offering(public.embeddings, dtype=torch.float64)[:, 1:] @ offering.discriminants
    before = float(offering.second_moment.diagonal()[1:].sum())
    along *= math.sqrt(before / float(along.square().sum(1).mean()))
    rows = torch.cat([torch.full((len(along), 1), offering.constant).double(), along], 1)
    torch.testing.assert_close(found.row_mean, rows.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.second_moment, rows.T @ rows / len(rows), rtol=1e-4, atol=1e-5)
    labels = torch.from_numpy(np.array(public.labels))
    apart = along - torch.stack([along[labels == k].mean(0) for k in range(CLASSES)])[labels]
    within = apart.T @ apart / (len(along) - CLASSES)
    assert found.within_class is not None
    torch.testing.assert_close(found.within_class, within, rtol=1e-3, atol=1e-5)


def test_without_a_centre_and_with_another_choice_they_change_no_row(
    public: EmbeddingSet, offering: PublicTransform
) -> None:
    plain = PublicTransform.fit(public, components=P, directions="hedge")
    x, zero = torch.randn(50, P), torch.zeros(P, dtype=torch.float64)
    assert torch.equal(offering(x), plain(x))
    assert torch.equal(recentred(offering, zero, 7)(x), recentred(plain, zero, 7)(x))
    assert recentred(offering, zero, 7).discriminants is None
    assert first(offering, 9).same_rows(first(plain, 9))
    narrow = PublicTransform.fit(public, components=9, directions="hedge")
    ratio = first(plain, 9).scale / narrow.scale  # another clip quantile
    torch.testing.assert_close(ratio, ratio[:1].expand(9))


def test_rows_may_have_shaped_them_so_that_an_identity_has_none() -> None:
    """An identity needs no public rows; this one would bring a direction of anybody's."""
    plain = PublicTransform.identity(Q)
    assert plain.is_identity
    assert not replace(plain, discriminants=torch.eye(Q, 2, dtype=torch.float64)).is_identity


def test_a_file_holds_them(offering: PublicTransform, tmp_path: Path) -> None:
    x = torch.randn(50, P)
    for number, each in enumerate(
        (offering, recentred(offering, centre_of(offering, 0.5), discriminants=True))
    ):
        path = tmp_path / f"{number}.safetensors"
        each.save(path)
        loaded = PublicTransform.load(path)
        assert loaded.same_rows(each)
        assert loaded.discriminants is not None
        assert torch.equal(loaded(x), each(x))
        assert not each.same_rows(replace(loaded, discriminants=0.5 * loaded.discriminants))


@pytest.mark.parametrize(
    ("damaged", "rule"),
    [
        (lambda d: d[:-1], "discriminants must be "),
        (lambda d: d.float(), "discriminants must be float64, got torch.float32"),
        (lambda d: d * math.nan, "discriminants must be finite, got NaN or infinity"),
        (lambda d: d / d.abs().max() * 1.01, r"largest_of_discriminants must be in \[0, 1\]"),
        (lambda d: d[0], "discriminants must be "),
    ],
)
def test_others_are_refused(
    offering: PublicTransform, damaged: Callable[[Tensor], Tensor], rule: str
) -> None:
    for each in (offering, recentred(offering, centre_of(offering, 0.5), discriminants=True)):
        tensors = each.tensors()
        wrong = damaged(tensors["discriminants"])
        for way in (
            lambda each=each, wrong=wrong: replace(each, discriminants=wrong),
            lambda tensors=tensors, wrong=wrong: PublicTransform.from_tensors(
                tensors | {"discriminants": wrong}
            ),
        ):
            with pytest.raises(ValueError, match=rule):
                way()


def test_as_many_as_the_centre_has_numbers(offering: PublicTransform) -> None:
    found = recentred(offering, centre_of(offering, 0.5), discriminants=True)
    assert found.discriminants is not None
    with pytest.raises(ValueError, match="discriminants must be"):
        replace(found, discriminants=found.discriminants[:, :-1])


@pytest.mark.parametrize("number", [0, Q + 1, -1])
def test_more_than_there_are_directions_are_refused(public: EmbeddingSet, number: int) -> None:
    with pytest.raises(ValueError, match=rf"discriminants must be in \[1, {Q}\], got {number}"):
        PublicTransform.fit(public, components=Q, discriminants=number)


def test_without_labels_there_are_none(public: EmbeddingSet) -> None:
    alike = replace(public, labels=np.zeros(len(public), np.int64))
    for given in (rows_of_classes(labelled=False), alike, torch.from_numpy(public.embeddings)):
        found = PublicTransform.fit(given, components=Q, directions="hedge", discriminants=TAKEN)
        assert found.discriminants is None
        with pytest.raises(ValueError, match="discriminants must be given, got none"):
            recentred(found, torch.zeros(Q, dtype=torch.float64), discriminants=True)
