"""Users' clips to choose from are lengths of what users of public rows submit."""

import numpy as np
import pytest
import torch

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from train_distributed.one_shot.class_moments import ClassMoments
from train_distributed.simulation.clip_candidates import CONSTANT, clipped, lengths
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.rehearsal import Candidates, Sizes
from train_distributed.simulation.shared_training import RowsInMemory

GRID = {"q=4": TransformOptions(components=4), "q=8": TransformOptions(components=8)}
SETTINGS = tuple(
    MethodConfig("a", method, name, options)
    for name in GRID
    for method, options in (("discriminant", {}), ("softmax", {"l2_reg": 0.1}))
)


@pytest.fixture(scope="module")
def public() -> EmbeddingSet:
    draw = np.random.default_rng(0)
    labels = np.arange(600) % 8
    x = 2 * np.eye(8, 12)[labels] + 0.3 * draw.standard_normal((600, 12))
    return EmbeddingSet(embeddings=x.astype(np.float32), labels=labels)


def sizes(scheme: str = "iid", rows: int = 20) -> Sizes:
    return Sizes(users=30, rows_per_user=rows, num_classes=4, scheme=scheme)


def clips(found: Candidates) -> list[float]:
    return [setting.options["user_clip"] for setting in found.settings]


def test_every_candidate_has_clips_at_rising_quantiles(public: EmbeddingSet) -> None:
    candidates = Candidates(SETTINGS, GRID)
    found = clipped(candidates, public, sizes(), quantiles=(0.1, 0.9))
    assert len(found.settings) == 2 * len(SETTINGS)
    for low, high in zip(found.settings[::2], found.settings[1::2], strict=True):
        assert 0 < low.options["user_clip"] < high.options["user_clip"]
    assert {options.constant for options in found.transforms.values()} == {CONSTANT}
    assert {options.components for options in found.transforms.values()} == {4, 8}
    again = clipped(candidates, public, sizes(), quantiles=(0.1, 0.9))
    assert clips(again) == clips(found)


def test_a_discriminant_is_offered_without_moments(public: EmbeddingSet) -> None:
    """Rounds clip records, not users; a weight is one of moments, which lengthen what is sent."""
    settings = [
        MethodConfig("a", "discriminant", "q=4"),
        MethodConfig("a", "discriminant", "q=4", {"rounds": 3}),
        MethodConfig("a", "discriminant", "q=4", {"alpha": 1.0}),
    ]
    found = clipped(Candidates(tuple(settings), GRID), public, sizes(), quantiles=(0.5,)).settings
    (clip,) = clips(Candidates(found, GRID))
    assert [dict(each.options) for each in found] == [{"user_clip": clip}]


def test_users_of_one_class_submit_longer_sums(public: EmbeddingSet) -> None:
    """Twenty rows of a class add up, those of four classes partly cancel; no sum is over 20 c."""
    candidates = Candidates(SETTINGS[:1], GRID)
    (mixed,) = clips(clipped(candidates, public, sizes(), quantiles=(0.5,)))
    (single,) = clips(clipped(candidates, public, sizes("one-class"), quantiles=(0.5,)))
    assert mixed < 0.7 * single
    assert single <= 20 * (1 + CONSTANT**2) ** 0.5


def test_too_few_public_rows_for_one_user_are_scaled_up(public: EmbeddingSet) -> None:
    candidates = Candidates(SETTINGS[:1], GRID)
    (few,) = clips(clipped(candidates, public, sizes(rows=300), quantiles=(0.5,)))
    (many,) = clips(clipped(candidates, public, sizes(rows=30_000), quantiles=(0.5,)))
    assert many == pytest.approx(100 * few, rel=0.05)


def test_lengths_are_those_of_scaled_submissions() -> None:
    from embed import PublicTransform
    from train_distributed.partition import split

    transform = PublicTransform.identity(2)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 0])
    users = RowsInMemory(transform(x), labels, split(labels, 2, "one-class"))
    found = lengths(users, ClassMoments(num_classes=2, transform=transform, moments=False))
    for chunk, length in zip(users.chunks(), found, strict=False):
        sums = ClassMoments(num_classes=2, transform=transform, moments=False).submit(chunk)
        assert float(length) == pytest.approx(float(sums[0].norm()))
