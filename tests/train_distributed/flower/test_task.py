"""A model from a federation is the model of its survivors' plain sum, and what was agreed holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embed import EmbeddingSet, PublicTransform
from train_distributed.flower.commands import Agree, Keys
from train_distributed.flower.federation import Federation
from train_distributed.flower.task import ModelTask
from train_distributed.method_options import MethodOptions
from train_distributed.methods import build_method
from train_distributed.privacy import Privacy
from train_distributed.secure_sum import simulate_sum
from train_distributed.secure_sum.opening import Opened

W, ROWS, P, K = 4, 9, 5, 3


def _embeddings(seed: int, rows: int = ROWS) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    return EmbeddingSet(
        embeddings=draw.normal(size=(rows, P)).astype(np.float32),
        labels=draw.integers(0, K, rows),
        split=np.zeros(rows, np.int8),
        meta={"class_names": ["a", "b", "c"]},
    )


def _silent(std: float, count: int) -> NDArray[np.int64]:
    assert std >= 1
    return np.zeros(count, np.int64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for party in (*(f"user{i}" for i in range(W)), "server0", "server1"):
        Keys(tmp_path / party).run()
    transform = PublicTransform.fit(_embeddings(99, 50), clip_norm=1.5)
    transform.save(tmp_path / "transform.safetensors")
    return tmp_path


def _agree(folder: Path, method: str = "softmax") -> Agree:
    return Agree(
        users=tuple(folder / f"user{i}" for i in range(W)),
        servers=(folder / "server0", folder / "server1"),
        sizes=(ROWS,) * W,
        transform=folder / "transform.safetensors",
        num_classes=K,
        out=folder / "federation.json",
        protocol="shares",
        method=method,  # pyright: ignore[reportArgumentType]
        privacy=Privacy(1.0, 1e-5, 0.75),
        minimum=3,
    )


@pytest.mark.parametrize("method", ["class-sums", "least-squares", "softmax", "svm"])
def test_without_noise_the_model_is_that_of_the_plain_sum(method: str, folder: Path) -> None:
    _agree(folder, method).run()
    path = folder / "transform.safetensors"
    task = ModelTask.of(Federation.load(folder / "federation.json"), path)
    encoded = [task.encoded(i, _embeddings(i)) for i in range(W)]
    sent = np.stack([task.noised(words, _silent) for words in encoded])
    result = simulate_sum(sent, "shares", drop={2: [1]})
    opened = Opened(result.total, frozenset(result.survivors))
    model = task.released(opened)
    plain = build_method(method, PublicTransform.load(path), K, {})
    expected = torch.zeros(plain.dimension, dtype=torch.float64)
    for i in (0, 2, 3):
        chunk = _chunk(task, i)
        expected += plain.submit(chunk)[0]
    std = task.integers.local_std * 3**0.5
    torch.testing.assert_close(
        model.weights, plain.classifier(expected, 3 * ROWS, std), rtol=2e-3, atol=2e-3
    )
    assert model.report["survivors"] == 3
    assert model.report["epsilon_of_all_sessions"] == pytest.approx(1.0, rel=1e-6)
    twice = ModelTask.of(replace(task.federation, sessions=2), path).released(opened)
    assert 1.3 < twice.report["epsilon_of_all_sessions"] < 2
    assert model.report["noise"] == "discrete"
    assert model.report["suitable_for_release"]


def _chunk(task: ModelTask, i: int):
    from train_distributed.partition import split
    from train_distributed.users import EmbeddingUsers

    embeddings = _embeddings(i)
    partition = split(torch.from_numpy(embeddings.labels), 1)
    (chunk,) = EmbeddingUsers(embeddings, task.transform, partition).chunks()
    return chunk.rounded(task.integers.grid)


def test_noise_is_fresh_and_as_wide_as_planned(folder: Path) -> None:
    _agree(folder).run()
    task = ModelTask.of(
        Federation.load(folder / "federation.json"), folder / "transform.safetensors"
    )
    encoded = task.encoded(0, _embeddings(0))
    drawn = np.stack([(task.noised(encoded) - encoded).view(np.int64) for _ in range(200)])
    std = float(task.integers.plan.stds_in_steps)
    assert np.std(drawn.astype(float)) == pytest.approx(std, rel=0.1)
    assert len(np.unique(drawn[:, 0])) > 150


def test_what_was_agreed_is_checked(folder: Path) -> None:
    _agree(folder).run()
    federation = Federation.load(folder / "federation.json")
    path = folder / "transform.safetensors"
    task = ModelTask.of(federation, path)
    with pytest.raises(ValueError, match="training rows must be 9 as agreed, got 8"):
        task.encoded(0, _embeddings(0, 8))
    other = folder / "other.safetensors"
    PublicTransform.fit(_embeddings(98, 50), clip_norm=1.5).save(other)
    with pytest.raises(ValueError, match="transform must have SHA-256"):
        ModelTask.of(federation, other)
    for changes, message in [
        ({"dimension": 4}, "dimension must be the method's"),
        ({"task": {k: v for k, v in federation.task.items() if k != "sizes"}}, "task must hold"),
        ({"task": federation.task | {"epsilon": float("inf")}}, "epsilon must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            ModelTask.of(replace(federation, **changes), path)
    with pytest.raises(ValueError, match="sizes must be 4, one per user, got 3"):
        replace(_agree(folder), sizes=(9, 9, 9), out=folder / "new.json").run()
    with pytest.raises(FileExistsError):
        _agree(folder).run()


def test_a_user_s_own_rows_are_looked_at_before_its_noise(folder: Path) -> None:
    _agree(folder).run()
    federation = Federation.load(folder / "federation.json")
    path = folder / "transform.safetensors"
    task = ModelTask.of(federation, path)
    good = _embeddings(0)
    broken = good.embeddings.copy()
    broken[4, 2] = np.nan
    with pytest.raises(ValueError, match="embeddings must be finite, got nan in row 4"):
        task.encoded(0, replace(good, embeddings=broken))
    broken[4, 2] = 3e38
    task.encoded(0, replace(good, embeddings=broken))
    with pytest.raises(ValueError, match="num_classes must be 2, the set's class names, got 3"):
        task.encoded(0, replace(good, labels=good.labels % 2, meta={"class_names": ["a", "c"]}))
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 8"):
        task.encoded(0, replace(good, labels=good.labels + 6, meta={}))
    named = replace(federation, task=federation.task | {"class_names": ["a", "c", "b"]})
    with pytest.raises(ValueError, match=r"class_names must be \('a', 'c', 'b'\) as agreed"):
        ModelTask.of(named, path).encoded(0, good)


def test_a_transform_that_knows_a_user_s_rows_is_refused_by_that_user(folder: Path) -> None:
    seen, path = _embeddings(2), folder / "transform.safetensors"
    both = np.concatenate([_embeddings(99, 50).embeddings, seen.embeddings[:1]])
    public = EmbeddingSet(embeddings=both, labels=np.zeros(51, np.int64))
    PublicTransform.fit(public, clip_norm=1.5).save(path)
    _agree(folder).run()
    task = ModelTask.of(Federation.load(folder / "federation.json"), path)
    task.encoded(1, _embeddings(1))
    with pytest.raises(ValueError, match="transform must not have seen private rows, got 1 of 9"):
        task.encoded(2, seen)


def test_a_transform_that_says_nothing_of_its_rows_is_refused(folder: Path) -> None:
    path = folder / "transform.safetensors"
    fitted = PublicTransform.load(path)
    PublicTransform.from_tensors(fitted.tensors(), fitted_on=fitted.fitted_on).save(path)
    _agree(folder).run()
    task = ModelTask.of(Federation.load(folder / "federation.json"), path)
    with pytest.raises(ValueError, match="transform must say which rows it has seen"):
        task.encoded(0, _embeddings(0))


def test_options_reach_the_method(folder: Path) -> None:
    replace(_agree(folder), options=MethodOptions(l2_reg=7.0)).run()
    federation = Federation.load(folder / "federation.json")
    assert federation.task["options"] == {"l2_reg": 7.0}
    ModelTask.of(federation, folder / "transform.safetensors")


def test_the_promise_for_users_and_groups_is_the_one_that_is_kept(folder: Path) -> None:
    """`agree --unit user --group-size 2` must add the noise of two users, not of one record."""
    path = folder / "transform.safetensors"
    found, words = [], ""
    for number, (unit, group) in enumerate([("record", 1), ("record", 2), ("user", 2)]):
        out = folder / f"{number}.json"
        promise = Privacy(1.0, 1e-5, 0.75, unit=unit, group_size=group)  # pyright: ignore[reportArgumentType]
        replace(_agree(folder, "class-sums"), privacy=promise, out=out).run()
        task = ModelTask.of(Federation.load(out), path)
        found.append(task.guarantee.sensitivity)
        words = task.guarantee.report()["neighbouring"]
    assert found == pytest.approx([found[0], 2 * found[0], 2 * ROWS * found[0]])
    assert "replace 2 users" in words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": {"0": 9, "1": 9, "2": 9, "3": 0}}, "sizes must be whole numbers >= 1, got 0"),
        ({"sizes": {"0": 9, "1": 9, "2": 9, "3": 9.5}}, "sizes must be whole numbers >= 1"),
        ({"epsilon": "1"}, "task must hold what `agree` writes"),
        ({"options": 5}, "task must hold what `agree` writes"),
        ({"unit": "people"}, "unit must be 'record' or 'user'"),
    ],
)
def test_a_task_that_was_tampered_with_is_refused(folder: Path, change, message: str) -> None:
    _agree(folder).run()
    federation = Federation.load(folder / "federation.json")
    changed = replace(federation, task=federation.task | change)
    with pytest.raises(ValueError, match=message):
        ModelTask.of(changed, folder / "transform.safetensors")


def test_a_stranger_has_no_submission(folder: Path) -> None:
    _agree(folder).run()
    federation = Federation.load(folder / "federation.json")
    task = ModelTask.of(federation, folder / "transform.safetensors")
    with pytest.raises(ValueError, match=r"identity must be one of \[0, 1, 2, 3\], got 9"):
        task.encoded(9, _embeddings(9))
