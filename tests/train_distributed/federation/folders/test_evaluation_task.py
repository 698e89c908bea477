"""A federation that evaluates a released model instead of learning one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from embed.hold_out import random_keys, with_held_out
from tests.train_distributed.federation.folders.homes import federation_of, init_of
from train_distributed import Privacy, Release, release
from train_distributed.commands.federation import Join, Start
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.documents.terms import EvaluationTerms
from train_distributed.federation.evaluation_task import EvaluationTask, task_of
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.released.evaluate import evaluate, summed
from train_distributed.secure_sum.opening import Opened

USERS, EACH = 3, 40
EVERYBODY = frozenset(range(USERS))
FACTS = SessionFacts(session="5" * 64, bytes_per_user=7)
INFINITE = Privacy(float("inf"), 1e-5)


def of_user(user: int) -> EmbeddingSet:
    draw = np.random.default_rng(user)
    labels = draw.integers(0, 3, EACH)
    x = (2 * np.eye(3, 6)[labels] + draw.standard_normal((EACH, 6))).astype(np.float32)
    users, meta = np.zeros(EACH, np.int64), {"class_names": ["a", "b", "c"]}
    rows = EmbeddingSet(embeddings=x, labels=labels, users=users, meta=meta)
    return with_held_out(rows, 0.25, keys=random_keys(EACH, seed=user))


@pytest.fixture
def evaluated(tmp_path: Path) -> Callable[..., EvaluationTask]:
    """Makes the folders of an evaluation among three users; the task as the operator reads it."""

    def make(
        of: Callable[[int], EmbeddingSet] = of_user, method: str = "discriminant", **settings: Any
    ) -> EvaluationTask:
        release(of(9), method, Privacy(1e3, 1e-5), sums=1).save(tmp_path / "model")
        files = []
        for user in range(USERS):
            of(user).save(tmp_path / f"rows{user}")
            folder = tmp_path / f"user{user}"
            Join(folder, f"user-{user}", embeddings=tmp_path / f"rows{user}", held_out=True).run()
            files.append(folder / f"user-{user}.party.json")
        if settings.get("protocol") == "shares":
            Join(tmp_path / "server", "adder", server=True, hosts=("127.0.0.1",)).run()
            files.append(tmp_path / "server" / "adder.party.json")
        fixed = {"transform": None, "class_names": (), "model": tmp_path / "model"}
        init_of(tmp_path, files, minimum=USERS, **fixed, **settings).run()
        task = task_of(federation_of(tmp_path), tmp_path / "fed" / "model.safetensors")
        assert isinstance(task, EvaluationTask)
        return task

    return make


@pytest.fixture
def task(evaluated: Callable[..., EvaluationTask]) -> EvaluationTask:
    return evaluated(epsilon=50.0, honest_fraction=0.8)


def test_an_evaluation_is_agreed_to_as_well(task: EvaluationTask, tmp_path: Path, capsys) -> None:
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
    assert task.terms.sizes == dict.fromkeys(range(USERS), EACH // 4)
    encoded = [task.encoded(user, of_user(user)) for user in range(USERS)]
    model = Release.load(tmp_path / "model")
    together = np.stack(encoded).sum(0, dtype=np.uint64)
    plain = [summed(model, of_user(user), INFINITE).opened for user in range(USERS)]
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


@pytest.mark.parametrize(
    "given", [{"protocol": "secagg", "honest_fraction": 0.8}, {"protocol": "shares"}]
)
def test_a_model_of_findings_is_evaluated_as_by_oneself(
    evaluated, tmp_path, given: dict[str, Any]
) -> None:
    """Without noise, the report is that of `evaluate` on the rows of all."""
    task = evaluated(with_findings, "findings", epsilon=1e4, **given)
    held = [with_findings(user) for user in range(USERS)]
    sent = np.stack([task.encoded(user, rows) for user, rows in enumerate(held)])
    if given["protocol"] == "shares":
        bound = task.norm_bounds[0][EACH // 4]
        assert (np.linalg.norm(sent.view(np.int64).astype(float), axis=1) <= bound).all()
    answer = task.released(Opened(sent.sum(0), EVERYBODY), facts=FACTS).report
    together = replace(
        held[0],
        embeddings=np.concatenate([rows.embeddings for rows in held]),
        labels=np.full(USERS * EACH, -1),
        findings=np.concatenate([rows.findings for rows in held if rows.findings is not None]),
        users=np.repeat(np.arange(USERS), EACH),
        split=np.concatenate([rows.split for rows in held]),
    )
    alone = evaluate(Release.load(tmp_path / "model"), together, INFINITE).report
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


def test_another_model_or_other_rows_are_refused(task: EvaluationTask, tmp_path: Path) -> None:
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


def test_terms_are_read_without_trust(task: EvaluationTask) -> None:
    for change, words in (
        ({"kind": "poll"}, "kind must be one of evaluation, got poll"),
        ({"bins": 51}, "bins must be"),
        ({"model": "00"}, "model must be 32 bytes"),
        ({"num_classes": 4}, "class_names must be"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"sizes": {"0": 10}}, "sizes must be of the federation's users"),
        ({"more": 1}, "more"),
    ):
        with pytest.raises(ValueError, match=words):
            EvaluationTerms.read(task.federation.task | change, set(EVERYBODY), Path("federation"))


def test_bad_settings_leave_nothing(task: EvaluationTask, tmp_path: Path) -> None:
    files = sorted(tmp_path.glob("user*/*.party.json"))
    model = {"transform": None, "class_names": (), "model": tmp_path / "model"}
    for change, words in (
        ({"transform": Path("x")}, "exactly one of transform and model must be given, got both"),
        ({"model": None}, "exactly one of transform and model must be given, got neither"),
        ({"num_classes": 3}, "num_classes must be left out with model"),
    ):
        with pytest.raises(ValueError, match=words):
            init_of(tmp_path, files, folder=tmp_path / "new", **model | change).run()
        assert not (tmp_path / "new").exists()
