"""The release as a whole: noise, dropouts, partitions, refusals."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.train_distributed.one_shot.fitting import METHODS_OF_CLASSES

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, Release, accounting, release
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.request import FaultInjection
from train_distributed.partition import split
from train_distributed.privacy.guarantee import Guarantee

CLASSES, DIM, ROWS = 3, 6, 60


def embedding_set(rows: int = ROWS, seed: int = 0, test_rows: int = 30) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(rows + test_rows) % CLASSES
    centres = 2 * np.eye(CLASSES, DIM)
    x = centres[labels] + 0.3 * rng.standard_normal((rows + test_rows, DIM))
    return EmbeddingSet(
        embeddings=x.astype(np.float32),
        labels=labels,
        split=np.repeat([0, 1], [rows, test_rows]).astype(np.uint8),
        meta={"class_names": ["a", "b", "c"]},
    )


def public_transform() -> PublicTransform:
    public = embedding_set(200, seed=9).embeddings
    return PublicTransform.fit(public)


def partition(users: int = 6, scheme: str = "iid"):
    labels = torch.from_numpy(embedding_set().labels[:ROWS])
    return split(labels, users, scheme, generator=torch.Generator().manual_seed(1))


def learned(method: str = "discriminant", epsilon: float = math.inf, **more: Any) -> Release:
    settings = {"transform": public_transform(), "partition": partition()} | more
    return release(embedding_set(), method, Privacy(epsilon, 1e-5), **settings)


def built_by_name(name: str, transform: PublicTransform) -> Method:
    options = {} if METHODS[name].sums_rows else {"l2_reg": 1.0}
    return build_method(name, transform, CLASSES, options)


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_every_method_learns_at_large_epsilon(method: str, noise: str):
    released = learned(method, 500.0, noise=noise)
    assert released.report["test_accuracy"] > 0.9
    assert released.report["suitable_for_release"] is (noise == "discrete")
    assert released.report["noise"] == noise
    assert "replace one record" in released.report["neighbouring"]
    json.dumps(dict(released.report), allow_nan=False)


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_the_noise_in_the_sum_is_what_the_promise_needs(method: str, noise: str):
    """Observed standard deviation of the released sum against the exact curve, per coordinate."""
    transform, users, least = public_transform(), 6, 5
    promise = Privacy(1.0, 1e-5, honest_fraction=0.7)
    built = built_by_name(method, transform)
    statistic = built.statistic
    held = partition(users)
    sizes = held.counts
    honest = least - 1  # ⌊0.3 · 6⌋ = 1 may be dishonest
    needed = accounting.noise_multiplier(1.0, 1e-5, statistic.compositions)
    needed *= statistic.record_sensitivity(sizes) * math.sqrt(users / honest)
    exact, draws = None, []
    for epsilon, repeats in ((math.inf, 1), (1.0, 20)):
        for _ in range(repeats):
            total = release(
                embedding_set(test_rows=0),
                built,
                Privacy(epsilon, 1e-5, 0.7) if math.isinf(epsilon) else promise,
                transform=transform,
                partition=held,
                noise=noise,  # pyright: ignore[reportArgumentType]
                min_survivors=least,
            ).opened
            assert total is not None
            if exact is None:
                exact = total
            else:
                draws.append((total - exact).numpy())
    observed = np.concatenate(draws)
    spread = observed.std() / needed
    assert 1 - 4 / math.sqrt(2 * observed.size) < spread < 1 + 4 / math.sqrt(2 * observed.size)


@pytest.mark.parametrize("moments", [True, False])
def test_statistics_do_not_see_the_partition(moments: bool):
    found = [
        learned("discriminant", moments=moments, partition=partition(users, scheme)).weights
        for users, scheme in ((1, "iid"), (6, "iid"), (17, "iid"), (6, "one-class"), (60, "iid"))
    ]
    for other in found[1:]:
        assert torch.linalg.norm(other - found[0]) <= 1e-9 * torch.linalg.norm(found[0])


def test_dropouts_divide_by_what_arrived_and_keep_the_promise():
    """With two of six users gone the average is that of the other four."""
    held = partition(6)
    kept = torch.cat([held.rows(user) for user in (0, 1, 3, 5)])
    promise = Privacy(math.inf, 1e-5, honest_fraction=0.9)
    dropped = release(
        embedding_set(),
        "softmax",
        promise,
        partition=held,
        min_survivors=4,
        transform=public_transform(),
        faults=FaultInjection(dropped=(2, 4)),
        l2_reg=0.1,
    )
    whole = embedding_set(test_rows=0).subset(kept.numpy())
    alone = split(torch.from_numpy(whole.labels), 4, "iid")
    present = release(
        EmbeddingSet(embeddings=whole.embeddings, labels=whole.labels),
        "softmax",
        promise,
        partition=alone,
        num_classes=CLASSES,
        transform=public_transform(),
        l2_reg=0.1,
    )
    assert torch.allclose(dropped.weights, present.weights, rtol=0, atol=1e-6)
    assert dropped.report["survivors"] == 4
    assert dropped.report["honest_users"] == 4
    assert "a rehearsal: 2 users were made to drop out" in dropped.report["unsuitable_because"]


def test_too_few_survivors_release_nothing():
    with pytest.raises(ValueError, match=r"survivors must be >= min_survivors = 6, got 5"):
        learned(epsilon=1.0, faults=FaultInjection(dropped=[0]))


def test_not_private_says_so():
    released = learned()
    assert released.report["epsilon"] == "not private"
    assert released.report["private"] is False
    assert released.report["suitable_for_release"] is False


def test_seeded_runs_repeat_and_are_marked():
    def once(seed: int) -> Release:
        draw = torch.Generator().manual_seed(seed)
        return learned("svm", 1.0, noise="float", generator=draw)

    assert torch.equal(once(3).weights, once(3).weights)
    assert not torch.equal(once(3).weights, once(4).weights)
    assert "3" not in json.dumps(once(3).report.get("seed", ""))
    assert any("seed" in why for why in once(3).report["unsuitable_because"])


def test_unseeded_noise_differs():
    for noise in ("discrete", "float"):
        first, second = (learned(epsilon=1.0, noise=noise).weights for _ in range(2))
        assert not torch.equal(first, second)


def test_a_radius_caps_what_a_user_can_move():
    sizes = torch.tensor([2, 9, 4])
    built = build_method(
        "softmax", public_transform(), CLASSES, {"l2_reg": 1.0, "radius": 0.01}
    ).statistic
    user = Guarantee.of(sizes, built, Privacy(1.0, 1e-5, unit="user"))
    assert user.sensitivity == pytest.approx(2 * 9 * 0.01, rel=1e-5)
    released = learned("softmax", radius=0.01)
    assert torch.linalg.norm(released.weights) <= 0.01 * (1 + 1e-9)


def test_solvers_agree_and_paper_bound_is_larger():
    found = {
        solver: learned("softmax", solver=solver, epochs=400, batch_size=10, l2_reg=1.0)
        for solver in ("exact", "sgd")
    }
    assert torch.allclose(found["sgd"].weights, found["exact"].weights, atol=1e-3)
    sizes = partition().counts
    transform = public_transform()
    tight = build_method("softmax", transform, CLASSES, {"l2_reg": 1.0, "radius": 1.0}).statistic
    options = {"l2_reg": 1.0, "radius": 1.0, "bound": "paper"}
    paper = build_method("softmax", transform, CLASSES, options).statistic
    assert paper.record_sensitivity(sizes) > 1.5 * tight.record_sensitivity(sizes)


def test_saved_models_appear_whole(tmp_path):
    released = learned(epsilon=1.0)
    released.save(tmp_path / "model")
    written = sorted(p.name for p in (tmp_path / "model").iterdir())
    assert written == ["model.safetensors", "report.json"]
    with pytest.raises(FileExistsError, match="must not exist"):
        released.save(tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
