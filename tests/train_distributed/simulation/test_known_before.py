"""Rehearsals that know something of the classes: what serves, and what must not be seen."""

from pathlib import Path

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from embed.guesses import Sources, covariance_with
from embed.knowledge import Knowledge
from embed.transform_options import TransformOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.known_before import KnownBefore
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.rehearsal import Candidates, Sizes, rehearse

L, P, EACH = 40, 12, 30


def public_set() -> tuple[EmbeddingSet, torch.Tensor]:
    """Classes whose means are a linear function of the vectors of their names."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((L, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    means = 4 * vectors @ rng.standard_normal((6, P))
    labels = np.repeat(np.arange(L), EACH)
    rows = means[labels] + rng.standard_normal((len(labels), P))
    names = {"class_names": [f"thing {k}" for k in range(L)]}
    return EmbeddingSet(embeddings=rows, labels=labels, meta=names), torch.from_numpy(vectors)


def accuracy(before: KnownBefore | None) -> float:
    public, _ = public_set()
    one = Candidates(
        (MethodConfig("discriminant", "discriminant", "q"),), {"q": TransformOptions(components=8)}
    )
    sizes, promise = Sizes(users=10, rows_per_user=20, num_classes=4), Privacy(0.1, 1e-5)
    more = {"tasks": 3, "seeds": 1, "before": before}
    found = [
        cell for _, cells in rehearse(public, [sizes], [promise], one, **more) for cell in cells
    ]
    return float(np.mean([cell.accuracy for cell in found]))


def test_names_and_examples_serve_a_task_of_few_users() -> None:
    public, vectors = public_set()
    nothing = accuracy(None)
    assert accuracy(KnownBefore(Sources(L), 5)) > nothing + 0.2
    assert accuracy(KnownBefore(Sources(L, "package", vectors))) > nothing + 0.2
    weights = torch.from_numpy(public.embeddings).unflatten(0, (L, EACH)).mean(1)
    classifier = {"own": vectors, "directions": covariance_with(public, weights)}
    both = Sources(L, "package", vectors, **classifier, matched=tuple((k, k) for k in range(L)))
    assert accuracy(KnownBefore(both)) > nothing + 0.2


def test_a_task_does_not_know_the_means_of_its_own_classes() -> None:
    public, vectors = public_set()
    groups = [[0, 1], [2, 3]]
    rest = public.subset(np.flatnonzero(public.labels >= 4))
    moved = EmbeddingSet(
        embeddings=np.where(public.labels[:, None] < 4, 50, public.embeddings),
        labels=public.labels,
        meta=public.meta,
    )
    transform = PublicTransform.fit(rest, components=5)
    before = KnownBefore(Sources(L, "package", vectors))
    one, other = (before.added_to(transform, each, groups, None).known for each in (public, moved))
    assert one is not None
    assert other is not None
    assert torch.equal(one.guesses[0].means, other.guesses[0].means)


def test_no_more_than_half_of_a_class_is_shown() -> None:
    labels = np.repeat([0, 1], [10, 100])
    shown = KnownBefore(Sources(2), 20).held_back(labels, 0)
    assert np.bincount(labels[shown]).tolist() == [5, 20]


def test_options_are_read(tmp_path: Path) -> None:
    public, _ = public_set()
    assert KnownBefore.of(Knowledge(), public) is None
    public.subset(np.flatnonzero(public.labels < 3)).save(tmp_path / "shown")
    found = KnownBefore.of(Knowledge(examples=tmp_path / "shown"), public)
    assert found is not None
    assert found.examples == EACH
    same = KnownBefore.of(Knowledge(names=("thing 1", "thing 2"), examples=None), public)
    assert same is not None
    assert same.examples > EACH
