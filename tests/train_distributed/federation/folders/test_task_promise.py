"""The promise of a task is the one that is kept: for users, groups, survivors and clips."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from embed import PublicTransform
from tests.train_distributed.federation.folders.tasks import (
    FACTS,
    PROMISE,
    ROWS,
    K,
    W,
    embeddings_of,
)
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.terms import promise_fields
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.sum_task import repeated
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened


@pytest.mark.parametrize(
    ("unit", "group", "times", "words"),
    [
        ("record", 1, 1, "replace one record"),
        ("record", 2, 2, "replace 2 records"),
        ("user", 2, 2 * ROWS, "replace 2 users"),
    ],
)
def test_the_promise_for_users_and_groups_is_the_one_that_is_kept(
    unit: str, group: int, times: int, words: str, make: Callable[..., ModelTask], tmp_path: Path
) -> None:
    """`--unit user --group-size 2` must add the noise of two users, not of one record."""
    promise = Privacy(1.0, 1e-5, 0.75, unit=unit, group_size=group)  # pyright: ignore[reportArgumentType]
    task = make("discriminant", privacy=promise)
    one = structs.replace(task.terms, **promise_fields(PROMISE, len(task.terms.sizes)))
    federation = structs.replace(task.federation, task=one.fields)
    single = ModelTask.of(federation, tmp_path / "public.safetensors")
    assert task.guarantee.sensitivity == pytest.approx(times * single.guarantee.sensitivity)
    assert words in task.guarantee.report()["neighbouring"]


def test_the_noise_is_planned_for_the_users_that_a_sum_is_sure_to_hold(
    make: Callable[..., ModelTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Federation, "certain", 2)
    assert make("discriminant").guarantee.min_survivors == 2


def test_a_sum_is_sure_to_hold_the_minimum_but_for_strays() -> None:
    keys = {i: PrivateKeys.generate().public.verifying.hex() for i in range(100)}
    server = PrivateKeys.generate().public
    federation = Federation(
        version=3,
        protocol="secagg",
        dimension=7 * K,
        minimum=80,
        users=keys,
        servers=(Keys.of(server),),
    )
    graph = federation.secagg(bytes(32)).graph
    assert graph.strays > 0
    assert federation.certain == graph.certain < 80
    assert structs.replace(federation, minimum=70).certain == 70


def test_a_users_clip_is_agreed_on_and_kept(make: Callable[..., ModelTask], tmp_path: Path) -> None:
    """It is part of what is digested; every user's whole numbers are as short as it says."""
    promise = replace(PROMISE, unit="user")
    options = {"user_clip": (1.5,)}
    task = make("discriminant", privacy=promise, options=options)
    agreed = task.federation.task["options"]
    assert agreed["user_clip"] == [1.5]
    longer = task.federation.task | {"options": agreed | {"user_clip": [2.0]}}
    other = structs.replace(task.federation, task=longer)
    assert other.digest != task.federation.digest
    for i in range(W):
        steps = task.encoded(i, embeddings_of(tmp_path, i)).view(np.int64)
        length = np.linalg.norm(steps * task.mechanism.step)
        assert 1.49 < length <= 1.5
    words = np.zeros(task.federation.dimension, np.uint64)
    report = task.released(Opened(words, frozenset([0, 2, 3])), facts=FACTS).report
    assert (report["method"], report["user_clip"]) == ("discriminant", 1.5)
    assert report["sensitivity"] == pytest.approx(3.0, rel=1e-9)
    free = {name: value for name, value in agreed.items() if name != "user_clip"}
    dimension = build_method("discriminant", task.transform, K, free).statistic.dimension
    terms = task.federation.task | {"options": free}
    bare = ModelTask.of(
        structs.replace(task.federation, task=terms, dimension=dimension),
        tmp_path / "public.safetensors",
    )
    assert bare.guarantee.sensitivity > 3 * task.guarantee.sensitivity
    words = np.zeros(dimension, np.uint64)
    assert "user_clip" not in bare.released(Opened(words, frozenset([0, 2, 3])), facts=FACTS).report
    for wrong in (-1, [-1.0], [1.0, 1.0, 1.0]):
        terms = task.federation.task | {"options": agreed | {"user_clip": wrong}}
        with pytest.raises(ValueError, match=r"options\.user_clip.* must be a "):
            ModelTask.of(
                structs.replace(task.federation, task=terms), tmp_path / "public.safetensors"
            )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("unit", "group"), [("record", 1), ("record", 40), ("user", 3)])
def test_noise_and_bounds_depend_on_how_many_users_have_how_many_rows_alone(
    method: str, unit: str, group: int
) -> None:
    """Whoever has the numbers of a roll computes what whoever has its lines does, to the bit."""
    sizes = torch.tensor([7, 1, 12, 12, 3, 7, 40, 1, 5, 3, 12])
    counts = {rows: int((sizes == rows).sum()) for rows in sizes.unique().tolist()}
    privacy = Privacy(1.0, 1e-5, unit=unit, group_size=group, noise_by="servers")  # pyright: ignore[reportArgumentType]
    transform = PublicTransform.identity(4)
    own = {} if METHODS[method].sums_rows else {"l2_reg": 0.1}
    for clip in ({}, {"user_clip": 2.0}):
        statistic = build_method(method, transform, 3, own | clip).statistic
        (listed, of_list), (_, counted) = (
            (guarantee, DiscreteGaussian.calibrated(statistic, guarantee, rows))
            for rows in (sizes, repeated(counts))
            for guarantee in [Guarantee.of(rows, statistic, privacy, 9)]
        )
        assert listed == Guarantee.of(repeated(counts), statistic, privacy, 9)
        assert of_list == counted
        distinct = repeated(counts).unique()
        bounds = dict(zip(distinct.tolist(), counted.norm_bounds(statistic, distinct), strict=True))
        assert [bounds[n] for n in sizes.tolist()] == of_list.norm_bounds(statistic, sizes)
