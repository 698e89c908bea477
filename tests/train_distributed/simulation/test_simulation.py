"""What settings share is what each would have computed alone; seeds pair the noise."""

import itertools
import math

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from tests.embedding_sets import clusters
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import split
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.plan import Grid, MethodConfig, Scenario, held_out
from train_distributed.simulation.runner import accuracies, run_trials
from train_distributed.simulation.shared_training import RowsInMemory, released, totals

TRANSFORM = PublicTransform.identity(3)


@pytest.fixture
def held() -> RowsInMemory:
    generator = torch.Generator().manual_seed(0)
    x = TRANSFORM(torch.randn(60, 3, generator=generator))
    y = torch.randint(3, (60,), generator=generator)
    sizes = torch.tensor([5, 20, 10, 25])
    return RowsInMemory(x, y, split(y, 4, "iid", sizes=sizes, generator=generator))


def plain_sum(held: RowsInMemory, method) -> torch.Tensor:
    total = torch.zeros(method.dimension, dtype=torch.float64)
    for chunk in held.chunks():
        for user in range(len(chunk.users)):
            only = torch.arange(len(chunk.users)) == user
            total += method.submit(chunk.select(only)).sum(0)
    return total


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("discriminant", [{}, {"alpha": 2.0}]),
        ("discriminant", [{"moments": False}]),
        ("softmax", [{}, {"radius": 0.2}, {"radius": 0.5, "bound": "paper"}]),
        ("svm", [{"l2_reg": 0.3}, {"l2_reg": 0.3, "radius": 0.4}]),
        ("softmax", [{"solver": "sgd", "epochs": 3}]),
        ("discriminant", [{"user_clip": 1.0}, {"user_clip": 3.0, "prior": "equal"}]),
        ("discriminant", [{"user_clip": 4.0}, {"moments": False}]),
        ("softmax", [{"user_clip": 3.0}, {"user_clip": 2.0, "radius": 0.5}]),
        ("svm", [{"l2_reg": 0.3, "user_clip": 3.0}, {"l2_reg": 0.3, "radius": 0.4}]),
        ("softmax", [{"solver": "sgd", "epochs": 3, "user_clip": 1.0}]),
    ],
)
def test_shared_training_gives_every_users_own_sum(held, name, variants):
    own = {} if METHODS[name].sums_rows else {"l2_reg": 1.0}
    methods = [build_method(name, TRANSFORM, 3, own | options).statistic for options in variants]
    for total, method in zip(totals(held, methods), methods, strict=True):
        torch.testing.assert_close(total, plain_sum(held, method), rtol=1e-5, atol=1e-6)


def test_settings_share_a_training_only_if_it_does_not_see_their_options():
    def training(**options):
        return MethodConfig("a", "softmax", "t", options).training

    assert training(radius=1.0, bound="paper") == training() == training(radius=2.0)
    assert training(l2_reg=0.1) != training(l2_reg=0.2)
    assert training(solver="sgd", radius=1.0) != training(solver="sgd", radius=2.0)
    assert training(user_clip=1.0) == training(user_clip=2.0) != training()


def test_noise_has_the_standard_deviation_of_the_guarantee(held):
    method = build_method("discriminant", TRANSFORM, 3, {"moments": False})
    promise = Privacy(0.5, 1e-5, 0.5)
    plan = Plan.of(method, held.sizes, promise, discrete=False)
    std = plan.main.mechanism.local_std * math.sqrt(4)
    given = (torch.zeros(12).double(), held, held.sizes, promise)
    course = released(method, *given, lambda _, dimension: torch.ones(dimension))
    assert course.noised.rows == 60
    assert course.noised.noise_std == pytest.approx(std)
    torch.testing.assert_close(course.noised.total, torch.full((12,), std, dtype=torch.float64))


def blobs(rows: int = 120) -> EmbeddingSet:
    return clusters(rows, 3, 3, scale=1, noise=0.5, seed=1, test=rows // 4)


def trials(rows: EmbeddingSet, transform: PublicTransform, **grid) -> dict:
    """Cells by their key."""
    return dict(run_trials(rows, {"default": transform}, Grid(**grid, num_classes=3)))


def test_rows_that_stand_for_more_users_are_as_good_as_less_noise():
    scenarios = [Scenario(users=6), Scenario(users=6, stands_for=(600, 15))]
    promises = [Privacy(0.02, 1e-5), Privacy(math.inf, 1e-5)]
    grid = {"settings": [MethodConfig("a", "discriminant")], "scenarios": scenarios}
    found = trials(blobs(), TRANSFORM, promises=promises, seeds=range(8), **grid)
    means = {}
    for cell in itertools.chain(*found.values()):
        means.setdefault((cell.scheme, cell.epsilon), []).append(cell.accuracy)
    noisy, more = (np.mean(means[scenario.name, 0.02]) for scenario in scenarios)
    free, same = (np.mean(means[scenario.name, None]) for scenario in scenarios)
    assert free == same
    assert noisy + 0.1 < more <= free


def test_clipped_sums_know_who_holds_which_rows():
    """A user of one class is clipped more than one of three: nothing of either is the other's."""
    schemes = [Scenario(users=60, scheme=scheme) for scheme in ("iid", "one-class")]
    promise = Privacy(8.0, 1e-5, unit="user")  # under noise the length of a sum shows
    data = blobs(1200)
    settings = [
        MethodConfig("a", "discriminant", options={"moments": False}),
        MethodConfig("b", "discriminant", options={"user_clip": 3.0}),
    ]
    grid = {"settings": settings, "promises": [promise], "seeds": [0]}
    seen = trials(data, TRANSFORM, scenarios=schemes, **grid)
    assert trials(data, TRANSFORM, scenarios=schemes[::-1], **grid) == seen
    assert trials(data, TRANSFORM, scenarios=schemes[1:], **grid).items() <= seen.items()
    assert len(seen) == 4
    clipped = [cells[0].accuracy for key, cells in seen.items() if "clip" in key]
    assert clipped[0] != clipped[1]
    sums = {}
    train = data.subset(data.split == 0)
    for scenario in schemes:
        labels = torch.tensor(train.labels)
        rows, partition = scenario.place(labels, None, torch.Generator().manual_seed(0))
        held = RowsInMemory(TRANSFORM(train.embeddings)[rows], labels[rows], partition)
        sums[scenario.scheme] = [
            totals(held, [build_method("discriminant", TRANSFORM, 3, options).statistic])[0]
            for options in ({"moments": False}, {"user_clip": 2.0})
        ]
    torch.testing.assert_close(sums["iid"][0], sums["one-class"][0])
    assert not torch.allclose(sums["iid"][1], sums["one-class"][1], rtol=1e-2)


def test_equal_seeds_give_equal_rows_to_all_schemes():
    labels = torch.arange(100) % 4
    drawn = [
        Scenario(users=5, scheme=scheme, rows_per_user=6).place(
            labels, None, torch.Generator().manual_seed(3)
        )[0]
        for scheme in ("iid", "one-class")
    ]
    assert torch.equal(*drawn)
    assert len(drawn[0].unique()) == 30


def test_worlds_refuse_what_they_cannot_place():
    labels = torch.arange(10) % 2
    with pytest.raises(ValueError, match=r"users \* rows_per_user must be in \[1, 10\], got 12"):
        Scenario(users=3, rows_per_user=4).place(labels, None, torch.Generator())
    with pytest.raises(ValueError, match="embeddings must name their users"):
        Scenario(users=None, scheme="by-writer").place(labels, None, torch.Generator())


def test_folds_of_a_repetition_cover_all_rows_once_and_are_stratified():
    labels = np.repeat([0, 1, 2], [30, 12, 18])
    split_of = np.zeros(60, np.uint8)
    tested = [held_out(labels, split_of, 6, seed)[1] for seed in range(12)]
    for repetition in (tested[:6], tested[6:]):
        np.testing.assert_array_equal(np.sort(np.concatenate(repetition)), np.arange(60))
    for rows in tested:
        np.testing.assert_array_equal(np.bincount(labels[rows]), [5, 2, 3])
    assert not np.array_equal(tested[0], tested[6])
    with pytest.raises(ValueError, match="folds must be >= 2, got 1"):
        held_out(labels, split_of, 1, 0)


def test_balanced_accuracy_is_the_mean_over_classes_that_occur() -> None:
    """Always the first of three classes, of which one has no row: 3 of 4 rows, 1 of 2 classes."""
    always = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    both = accuracies(torch.ones(4, 1), torch.tensor([0, 0, 0, 2]), iter([always, always.flip(1)]))
    assert both == [(0.75, 0.5), (0.25, 0.5)]


@pytest.mark.parametrize("sums", [1, 2])
def test_accuracies_under_a_prior_are_those_of_settings_for_it(sums: int) -> None:
    """Two classes of three are rare; the same sums and noise, whichever prior is asked for."""
    even = blobs(600)
    rows = even.subset((even.labels == 0) | (np.arange(600) < 150))
    common, public = {"sums": sums}, PublicTransform.fit(even)
    settings = [
        MethodConfig("equal", "discriminant", options=common),
        MethodConfig("private", "discriminant", options=common | {"prior": "private"}),
        MethodConfig("head", "softmax", options={"l2_reg": 1.0}),
    ]
    grid = {"scenarios": [Scenario(users=6)], "promises": [Privacy(3.0, 1e-5)], "seeds": [0]}
    cells = trials(rows, public, settings=settings, **grid).values()
    found = {cell.label: cell for cell in itertools.chain(*cells)}
    assert found.pop("head").by_prior is None
    for cell in found.values():
        assert cell.by_prior is not None
        assert list(cell.by_prior) == ["equal", "private"]
        for prior, other in found.items():
            under = {"accuracy": other.accuracy, "balanced_accuracy": other.balanced}
            assert cell.by_prior[prior] == under
    assert found["equal"].accuracy < found["private"].accuracy
