"""Federations of several findings a picture, and of an evaluation."""

import json
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
from embed.hold_out import random_keys, with_held_out
from tests.embedding_sets import clusters
from tests.ports import free_port
from tests.train_distributed.federation.folders import homes
from tests.train_distributed.federation.folders.homes import CLASSES, FACTS, ROWS
from train_distributed import Privacy, Release, release
from train_distributed.commands.federation import Join, Start
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.documents.terms import EvaluationTerms
from train_distributed.federation.evaluation_task import EvaluationTask, task_of
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot.registry import build_method
from train_distributed.released.evaluate import evaluate, summed
from train_distributed.secure_sum.opening import Opened

USERS = 10
SECAGG = {"protocol": "secagg", "privacy": Privacy(1e4, 1e-5, 0.8), "minimum": USERS}
SHARES = {"protocol": "shares", "servers": 1, "privacy": Privacy(1e4, 1e-5), "minimum": 2}


def findings(user: int, unknown: str | None = None) -> EmbeddingSet:
    """Rows of one user; 1 lacks the first finding, 2 does not know the last in all."""
    plain = homes.embeddings(user)
    found = (np.random.default_rng(user).random((ROWS, len(CLASSES))) < 0.5).astype(np.int8)
    found[:, 0] *= user != 1
    if unknown == "ask" and user == 2:
        found[::2, 2] = -1
    meta = plain.meta | {"unknown": unknown or "negative"}
    return replace(plain, labels=np.full(ROWS, -1), findings=found, meta=meta)


def pooled(users: Sequence[EmbeddingSet]) -> EmbeddingSet:
    return replace(
        users[0],
        embeddings=np.concatenate([each.embeddings for each in users]),
        labels=np.concatenate([each.labels for each in users]),
        findings=np.concatenate([each.findings for each in users if each.findings is not None]),
        users=np.repeat(np.arange(len(users)), len(users[0])),
        split=np.concatenate([each.split for each in users]),
    )


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
def test_a_federation_makes_what_run_makes(agreed, protocol, method, options) -> None:
    """Of two sums, without the noise of either: to the rounding of the numbers that are sent."""
    task = agreed(method, users=USERS, options={"sums": 2} | options, **protocol)
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
            refused(0, replace(homes.embeddings(0), users=np.zeros(ROWS, np.int64)))


def test_what_a_user_holds_is_what_was_agreed(agreed) -> None:
    task, held = agreed("findings", options={"sums": 2}), findings(0)
    assert task.federation.dimension == len(task.encoded(0, held))
    mixed = held.meta | {"class_names": ["c", "b", "a"], "classes": "inferred"}
    asked = replace(held, meta=held.meta | {"unknown": "ask"})
    two = replace(held, findings=np.zeros((ROWS, 2), np.int8), meta={})
    for rows, words in (
        (homes.embeddings(0), "embeddings must hold several findings a picture as agreed, got one"),
        (asked, "unknown must be negative or positive"),
        (replace(held, meta=mixed), "class_names must be ('a', 'b', 'c') as agreed"),
        (two, "num_classes must be 2, got 3"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            task.encoded(0, rows)


def test_a_head_of_one_class_learns_no_findings(agreed) -> None:
    with pytest.raises(ValueError, match="method must be one of findings, svm, logistic"):
        agreed("softmax", options={"findings": True})
    transform = PublicTransform.fit(homes.embeddings(99).embeddings)
    for method in ("softmax", "discriminant", "findings"):  # of terms that no init wrote
        with pytest.raises(ValueError, match="method"):
            build_method(method, transform, 3, {"findings": True, "l2_reg": 0.1})


@pytest.mark.parametrize(("protocol", "unknown"), [(SECAGG, "ask"), (SHARES, None)])
def test_the_commands_make_what_run_makes(initiated, opened, capsys, protocol, unknown) -> None:
    options = {"sums": 2} | ({"unknown": unknown} if unknown else {})
    home = initiated(USERS, method="findings", options=options, port=free_port(), **protocol)
    users = [findings(user, unknown) for user in range(USERS)]
    for user, rows in enumerate(users):
        rows.save(home / f"user{user}" / "embeddings", overwrite=True)
    given: dict[str, Any] = {"accept": homes.digest_of(home), "patience": 60.0}
    given |= {"limits": Limits(most_epsilon=2e4)}
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
    given = {"transform": PublicTransform.load(home / "public.safetensors")}
    given |= homes.federation_of(home).task["options"]
    ran = release(together, "findings", Privacy(1e9, 1e-5), **given)
    x = together.embeddings
    torch.testing.assert_close(made.predict_proba(x), ran.predict_proba(x), atol=0.02, rtol=0)


HOLDERS, EACH = 3, 40
EVERYBODY = frozenset(range(HOLDERS))
INFINITE = Privacy(float("inf"), 1e-5)


def of_user(user: int) -> EmbeddingSet:
    rows = clusters(EACH, 3, 6, noise=1.0, seed=user, users=1)
    return with_held_out(rows, 0.25, keys=random_keys(EACH, seed=user))


@pytest.fixture
def evaluated(tmp_path: Path) -> Callable[..., EvaluationTask]:
    def make(
        of: Callable[[int], EmbeddingSet] = of_user, method: str = "discriminant", **settings: Any
    ) -> EvaluationTask:
        release(of(9), method, Privacy(1e3, 1e-5), sums=1).save(tmp_path / "model")
        files = []
        for user in range(HOLDERS):
            of(user).save(tmp_path / f"rows{user}")
            folder = tmp_path / f"user{user}"
            Join(folder, f"user-{user}", embeddings=tmp_path / f"rows{user}", held_out=True).run()
            files.append(folder / f"user-{user}.party.json")
        if settings.get("protocol") == "shares":
            Join(tmp_path / "server", "adder", server=True, hosts=("127.0.0.1",)).run()
            files.append(tmp_path / "server" / "adder.party.json")
        fixed = {"transform": None, "class_names": (), "model": tmp_path / "model"}
        homes.init_of(tmp_path, files, minimum=HOLDERS, **fixed, **settings).run()
        task = task_of(homes.federation_of(tmp_path), tmp_path / "fed" / "model.safetensors")
        assert isinstance(task, EvaluationTask)
        return task

    return make


@pytest.fixture
def task(evaluated: Callable[..., EvaluationTask]) -> EvaluationTask:
    return evaluated(epsilon=50.0, honest_fraction=0.8)


def test_an_evaluation_is_agreed_to_as_well(task, tmp_path, capsys) -> None:
    invitation = tmp_path / "fed" / "invitation"
    start = Start(tmp_path / "user0", invitation, embeddings=tmp_path / "rows0")
    with pytest.raises(ValueError, match="most_epsilon must be >= 50, got 10"):
        start.run()
    with pytest.raises(ValueError, match="accept must be given where nobody can be asked"):
        replace(start, limits=Limits(most_epsilon=50.0)).run()
    said = capsys.readouterr().out
    assert "evaluation by method confusion-matrix; 3 classes: a, b, c" in said
    assert "model.safetensors: SHA-256" in said
    assert not (tmp_path / "user0" / "state").exists()


def test_users_send_their_counts_and_the_sum_becomes_a_report(task, tmp_path) -> None:
    invitation = Invitation.read(tmp_path / "fed" / "invitation")
    assert invitation.agreed.read_bytes() == (tmp_path / "model/model.safetensors").read_bytes()
    assert task.terms.sizes == dict.fromkeys(range(HOLDERS), EACH // 4)
    encoded = [task.encoded(user, of_user(user)) for user in range(HOLDERS)]
    model = Release.load(tmp_path / "model")
    together = np.stack(encoded).sum(0, dtype=np.uint64)
    plain = [summed(model, of_user(user), INFINITE).opened for user in range(HOLDERS)]
    assert task.mechanism.grid == 2.0**-20
    assert np.array_equal(task.mechanism.decode(together), sum(plain))
    noised = np.stack([task.noised(each) for each in encoded]).sum(0, dtype=np.uint64)
    answer = task.released(Opened(noised, EVERYBODY), facts=FACTS)
    report = answer.report
    assert (report["rows"], report["survivors"], report["model"]) == (30, 3, task.terms.model)
    assert report["suitable_for_release"]
    assert report["secure_sum"] == "SecAgg+ among the users, one server"
    assert report["accuracy"]["low"] < report["accuracy"]["high"]
    answer.write(tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == report


def with_findings(user: int) -> EmbeddingSet:
    """Two findings of every row; user 1 lacks the first."""
    rows = of_user(user)
    findings = np.stack([rows.labels != 0, rows.labels == 2], 1).astype(np.int8)
    findings[:, 0] *= user != 1
    meta = rows.meta | {"class_names": ["p", "q"]}
    return replace(rows, labels=np.full(EACH, -1), findings=findings, meta=meta)


@pytest.mark.parametrize(("protocol", "honest"), [("secagg", 0.8), ("shares", None)])
def test_a_model_of_findings_is_evaluated_as_alone(evaluated, tmp_path, protocol, honest) -> None:
    """Without noise, the report is that of `evaluate` on the rows of all."""
    given = {"protocol": protocol, "honest_fraction": honest, "epsilon": 1e4}
    task = evaluated(with_findings, "findings", **given)
    held = [with_findings(user) for user in range(HOLDERS)]
    sent = np.stack([task.encoded(user, rows) for user, rows in enumerate(held)])
    if protocol == "shares":
        bound = task.norm_bounds[0][EACH // 4]
        assert (np.linalg.norm(sent.view(np.int64).astype(float), axis=1) <= bound).all()
    answer = task.released(Opened(sent.sum(0), EVERYBODY), facts=FACTS).report
    alone = evaluate(Release.load(tmp_path / "model"), pooled(held), INFINITE).report
    for name, of in alone["per_finding"].items():
        seen = answer["per_finding"][name]
        assert seen["confusion"] == of["confusion"]
        for share in ("balanced_accuracy", "accuracy"):
            assert seen[share]["estimate"] == pytest.approx(of[share]["estimate"], abs=1e-3)
    assert answer["one_sum"] == alone["one_sum"]
    mean = alone["balanced_accuracy"]["estimate"]
    assert answer["balanced_accuracy"]["estimate"] == pytest.approx(mean, abs=1e-3)
    asked = held[0].meta | {"unknown": "ask"}
    unknown = replace(held[0], findings=np.full((EACH, 2), -1, np.int8), meta=asked)
    for rows, words in ((unknown, "findings of evaluation rows must be known"), (of_user(0), "mo")):
        with pytest.raises(ValueError, match=words):
            task.encoded(0, rows)


def test_another_model_or_other_rows_are_refused(task, tmp_path) -> None:
    release(of_user(8), "discriminant", Privacy(1e3, 1e-5), sums=1).save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"model must have SHA-256 .* as the federation says"):
        EvaluationTask.of(task.federation, tmp_path / "other" / "model.safetensors")
    rows = of_user(0)
    held, trained = (np.flatnonzero(rows.split == part)[0] for part in (2, 0))
    x = np.array(rows.embeddings)
    x[held] = x[trained]
    drawn = replace(rows, embeddings=x)
    task.encoded(0, drawn)  # equal rows of a drawn split are two records
    chosen = replace(rows, meta=rows.meta | {"held_out": {"seed": 1}})
    for user, of, words in (
        (0, rows.subset(np.arange(EACH) != held), "evaluation rows must be 10 as agreed, got 9"),
        (0, replace(drawn, meta={"class_names": ["a", "b", "c"]}), "must not be training rows, g"),
        (0, chosen, "held out by the operating system's draw"),
        (7, rows, "identity must be one of"),
    ):
        with pytest.raises(ValueError, match=words):
            task.encoded(user, of)


def test_bad_terms_and_settings_are_refused(task, tmp_path) -> None:
    for change, words in (
        ({"kind": "poll"}, "kind must be one of evaluation, got poll"),
        ({"bins": 51}, "bins must be"),
        ({"model": "00"}, "model must be 32 bytes"),
        ({"num_classes": 4}, "class_names must be"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"sizes": {"0": 10}}, "sizes must be of the federation's users"),
    ):
        with pytest.raises(ValueError, match=words):
            EvaluationTerms.read(task.federation.task | change, set(EVERYBODY), Path("federation"))
    files = sorted(tmp_path.glob("user*/*.party.json"))
    fixed = {"folder": tmp_path / "new", "class_names": ()}
    evaluation = {"transform": None, "model": tmp_path / "model"}
    for change, words in (
        ({"model": tmp_path / "model"}, "exactly one of transform and model .* got both"),
        ({"transform": None}, "exactly one of transform and model must be given, got neither"),
        (evaluation | {"num_classes": 3}, "num_classes must be left out with model"),
    ):
        with pytest.raises(ValueError, match=words):
            homes.init_of(tmp_path, files, **fixed | change).run()
        assert not (tmp_path / "new").exists()
