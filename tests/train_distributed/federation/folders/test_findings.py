"""A federation of ten users with several findings a picture makes what `run` makes."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from tests.ports import free_port
from tests.train_distributed.federation.folders.homes import (
    CLASSES,
    FACTS,
    ROWS,
    digest_of,
    embeddings,
    federation_of,
)
from train_distributed.commands.federation import Start
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.evaluation_task import task_of
from train_distributed.federation.model_task import ModelTask
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.release import release
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.opening import Opened

USERS = 10
SECAGG = {"protocol": "secagg", "privacy": Privacy(1e4, 1e-5, 0.8)}
SHARES = {"protocol": "shares", "servers": 1, "privacy": Privacy(1e4, 1e-5), "minimum": 2}


def findings(user: int, unknown: str | None = None) -> EmbeddingSet:
    """Rows of one user; 1 lacks the first finding, 2 does not know the last in all."""
    plain = embeddings(user)
    found = (np.random.default_rng(user).random((ROWS, len(CLASSES))) < 0.5).astype(np.int8)
    found[:, 0] *= user != 1
    if unknown == "ask" and user == 2:
        found[::2, 2] = -1
    meta = plain.meta | {"unknown": unknown or "negative"}
    return replace(plain, labels=np.full(ROWS, -1), findings=found, meta=meta)


def pooled(users: Sequence[EmbeddingSet]) -> EmbeddingSet:
    return EmbeddingSet(
        embeddings=np.concatenate([each.embeddings for each in users]),
        labels=np.full(USERS * ROWS, -1),
        findings=np.concatenate([each.findings for each in users if each.findings is not None]),
        users=np.repeat(np.arange(USERS), ROWS),
        meta=users[0].meta,
    )


@pytest.fixture
def agreed(initiated: Callable[..., Path]) -> Callable[..., ModelTask]:
    def make(**settings: Any) -> ModelTask:
        fixed = {"method": "findings", "options": {"sums": 2}}
        home = initiated(USERS, **fixed | settings)
        task = task_of(federation_of(home), home / "fed" / "transform.safetensors")
        assert isinstance(task, ModelTask)
        return task

    return make


@pytest.mark.parametrize("protocol", [SECAGG, SHARES])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("findings", {}),
        ("findings", {"unknown": "ask"}),
        ("svm", {"findings": True}),
        ("logistic", {"findings": True, "solver": "sgd"}),
    ],
)
def test_a_federation_makes_what_run_makes(
    agreed, protocol: dict, method: str, options: dict
) -> None:
    """Of two sums, without the noise of either: to the rounding of the numbers that are sent."""
    task = agreed(method=method, options={"sums": 2} | options, **protocol)
    users = [findings(user, "ask" if options else None) for user in range(USERS)]
    everyone = frozenset(range(USERS))
    first = Opened(np.sum([task.encoded(i, s) for i, s in enumerate(users)], 0), everyone)
    centre = task.publish(first)
    sent = [task.encoded_at(i, s)(centre) for i, s in enumerate(users)]
    made = task.released(first, Opened(np.sum(sent, 0), everyone), facts=FACTS)
    together = pooled(users)
    privacy = replace(task.guarantee.privacy, epsilon=1e9)
    ran = release(together, method, privacy, transform=task.transform, **task.terms.options)
    assert (made.findings, made.class_names) == (True, CLASSES)
    assert method == "findings" or task.terms.options["prior"] == "private"  # of no classes
    assert made.report["method"] == ran.report["method"] == method
    x = together.embeddings
    near = 0.02 if method == "findings" else 1e-3
    torch.testing.assert_close(made.predict_proba(x), ran.predict_proba(x), atol=near, rtol=0)
    assert np.ptp(ran.predict_proba(x).numpy()) > 0.1
    if method == "findings":
        assert made.report["prevalences"] == pytest.approx(ran.report["prevalences"], abs=0.02)
        return
    for refused in (task.encoded, lambda i, rows: release(rows, method, privacy, **options)):
        with pytest.raises(ValueError, match="embeddings must hold"):
            refused(0, replace(embeddings(0), users=np.zeros(ROWS, np.int64)))


def test_what_a_user_holds_is_what_was_agreed(agreed) -> None:
    task, held = agreed(), findings(0)
    assert task.federation.dimension == len(task.encoded(0, held))
    mixed = held.meta | {"class_names": ["c", "b", "a"], "classes": "inferred"}
    asked = replace(held, meta=held.meta | {"unknown": "ask"})
    two = replace(held, findings=np.zeros((ROWS, 2), np.int8), meta={})
    for rows, words in (
        (embeddings(0), "embeddings must hold several findings a picture as agreed, got one"),
        (asked, "unknown must be negative or positive"),
        (replace(held, meta=mixed), "class_names must be ('a', 'b', 'c') as agreed"),
        (two, "num_classes must be 2, got 3"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            task.encoded(0, rows)


def test_classes_are_no_findings(agreed) -> None:
    task = agreed(method="discriminant", **SECAGG)
    with pytest.raises(ValueError, match="must hold one class a picture as agreed, got several"):
        task.encoded(0, findings(0))


def test_a_head_of_one_class_learns_no_findings(agreed) -> None:
    with pytest.raises(ValueError, match="method must be one of findings, svm, logistic"):
        agreed(method="softmax", options={"findings": True})
    transform = PublicTransform.fit(embeddings(99).embeddings)
    for method in ("softmax", "discriminant", "findings"):  # of terms that no init wrote
        with pytest.raises(ValueError, match="method"):
            build_method(method, transform, 3, {"findings": True, "l2_reg": 0.1})


@pytest.mark.parametrize(("protocol", "unknown"), [(SECAGG, "ask"), (SHARES, None)])
def test_the_commands_make_what_run_makes(
    initiated, opened, capsys, protocol: dict[str, Any], unknown: str | None
) -> None:
    """Ten users and the operator, each by its own command, over real lines and with noise."""
    options = {"sums": 2} | ({"unknown": unknown} if unknown else {})
    home = initiated(USERS, method="findings", options=options, port=free_port(), **protocol)
    users = [findings(user, unknown) for user in range(USERS)]
    for user, rows in enumerate(users):
        rows.save(home / f"user{user}" / "embeddings", overwrite=True)
    limits, patience = Limits(most_epsilon=2e4), 60.0
    given: dict[str, Any] = {"accept": digest_of(home), "limits": limits, "patience": patience}
    if "servers" in protocol:
        window = opened(home)
        own = window.collect(wait=True, patience=60.0).run
        each = [window.report(user, **given).run for user in range(USERS)]
    else:
        own = Start(home / "fed", out=home / "model").run
        invitation, folders = home / "fed" / "invitation", [home / f"user{u}" for u in range(USERS)]
        each = [Start(at, invitation, at / "embeddings", **given).run for at in folders]
    with ThreadPoolExecutor(USERS) as pool:
        started = [pool.submit(run) for run in each]
        own()
        for user in started:
            user.result()
    assert "release by method findings; 3 findings: a, b, c" in capsys.readouterr().out
    made = Release.load(home / "model")
    assert (made.findings, made.report["survivors"], made.report["rounds"]) == (True, USERS, 2)
    for owner in ("fed/operator", "user0/embeddings"):  # one entry counts both sums
        (record,) = Ledger.open((home / owner).with_suffix(".ledger")).state().records
        assert record.entry.cost.at(1e-5) == pytest.approx(1e4, rel=1e-5)
    together = pooled(users)
    public, terms = PublicTransform.load(home / "public.safetensors"), federation_of(home).task
    ran = release(together, "findings", Privacy(1e9, 1e-5), transform=public, **terms["options"])
    x = together.embeddings
    torch.testing.assert_close(made.predict_proba(x), ran.predict_proba(x), atol=0.02, rtol=0)
