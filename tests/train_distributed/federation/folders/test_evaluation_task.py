"""A federation that evaluates a released model instead of learning one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from embed.hold_out import random_keys, with_held_out
from train_distributed import Privacy, Release, release
from train_distributed.commands.federation import Init, Join, Start
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.documents.terms import EvaluationTerms
from train_distributed.federation.evaluation_task import EvaluationTask, task_of
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.released.evaluate import evaluate, summed
from train_distributed.secure_sum.opening import Opened

USERS, EACH = 3, 40
FACTS = SessionFacts(session="5" * 64, bytes_per_user=7)


def of_user(user: int) -> EmbeddingSet:
    draw = np.random.default_rng(user)
    labels = draw.integers(0, 3, EACH)
    x = (2 * np.eye(3, 6)[labels] + draw.standard_normal((EACH, 6))).astype(np.float32)
    users, meta = np.zeros(EACH, np.int64), {"class_names": ["a", "b", "c"]}
    rows = EmbeddingSet(embeddings=x, labels=labels, users=users, meta=meta)
    return with_held_out(rows, 0.25, keys=random_keys(EACH, seed=user))


@pytest.fixture
def operator(tmp_path: Path) -> Path:
    """The operator's folder of an evaluation among three users."""
    model = release(of_user(9), "discriminant", Privacy(1e3, 1e-5), sums=1)
    model.save(tmp_path / "model")
    files = []
    for user in range(USERS):
        of_user(user).save(tmp_path / f"rows{user}")
        folder = tmp_path / f"user{user}"
        Join(folder, f"user-{user}", embeddings=tmp_path / f"rows{user}", held_out=True).run()
        files.append(folder / f"user-{user}.party.json")
    Init(
        tmp_path / "fed",
        tuple(files),
        hosts=("127.0.0.1",),
        model=tmp_path / "model",
        epsilon=50.0,
        honest_fraction=0.8,
        minimum=USERS,
    ).run()
    return tmp_path / "fed"


def read(operator: Path) -> EvaluationTask:
    found = task_of(Federation.load(operator / "federation.json"), operator / "model.safetensors")
    assert isinstance(found, EvaluationTask)
    return found


def test_an_evaluation_is_agreed_to_as_well(operator: Path, tmp_path: Path, capsys) -> None:
    rows = tmp_path / "rows0"
    start = Start(tmp_path / "user0", invitation=operator / "invitation", embeddings=rows)
    with pytest.raises(ValueError, match="most_epsilon must be >= 50, got 10"):
        start.run()
    with pytest.raises(ValueError, match="accept must be given where nobody can be asked"):
        replace(start, limits=Limits(most_epsilon=50.0)).run()
    said = capsys.readouterr().out
    assert "evaluation by method confusion-matrix; 3 classes: a, b, c" in said
    assert "model.safetensors: SHA-256" in said
    assert not (tmp_path / "user0" / "state").exists()


def test_users_send_their_counts_and_the_sum_becomes_a_report(
    operator: Path, tmp_path: Path
) -> None:
    task = read(operator)
    invitation = Invitation.read(operator / "invitation")
    assert invitation.agreed.read_bytes() == (tmp_path / "model/model.safetensors").read_bytes()
    assert task.terms.sizes == dict.fromkeys(range(USERS), EACH // 4)
    encoded = [task.encoded(user, of_user(user)) for user in range(USERS)]
    model = Release.load(tmp_path / "model")
    together = np.stack(encoded).sum(0, dtype=np.uint64)
    plain = [summed(model, of_user(u), Privacy(float("inf"), 1e-5)).opened for u in range(USERS)]
    grid = task.mechanism.grid
    assert grid == 2.0**-20
    assert np.array_equal(task.mechanism.decode(together), sum(plain))
    noised = np.stack([task.noised(each) for each in encoded]).sum(0, dtype=np.uint64)
    answer = task.released(Opened(noised, frozenset(range(USERS))), facts=FACTS)
    report = answer.report
    assert (report["rows"], report["survivors"], report["model"]) == (30, 3, task.terms.model)
    assert report["suitable_for_release"]
    assert report["secure_sum"] == "SecAgg+ among the users, one server"
    assert report["accuracy"]["low"] < report["accuracy"]["high"]
    answer.write(tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == report


@pytest.mark.parametrize("protocol", ["secagg", "shares"])
def test_a_model_of_findings_is_evaluated_as_by_oneself(tmp_path: Path, protocol: str) -> None:
    """Without noise, the report is that of `evaluate` on the rows of all."""

    def found(user: int) -> EmbeddingSet:
        rows = of_user(user)
        findings = np.stack([rows.labels != 0, rows.labels == 2], 1).astype(np.int8)
        findings[:, 0] *= user != 1  # who lacks the first
        meta = rows.meta | {"class_names": ["p", "q"]}
        return replace(rows, labels=np.full(EACH, -1), findings=findings, meta=meta)

    model = release(found(9), "findings", Privacy(1e3, 1e-5), sums=1)
    model.save(tmp_path / "model")
    files, held = [], [found(user) for user in range(USERS)]
    for user, rows in enumerate(held):
        rows.save(tmp_path / f"rows{user}")
        folder = tmp_path / f"user{user}"
        Join(folder, f"user-{user}", embeddings=tmp_path / f"rows{user}", held_out=True).run()
        files.append(folder / f"user-{user}.party.json")
    if shares := protocol == "shares":
        Join(tmp_path / "server", "adder", server=True, hosts=("127.0.0.1",)).run()
        files.append(tmp_path / "server" / "adder.party.json")
    given: dict[str, Any] = {"protocol": protocol, "model": tmp_path / "model", "epsilon": 1e4}
    given |= {} if shares else {"honest_fraction": 0.8}
    fed = tmp_path / "fed"
    Init(fed, tuple(files), hosts=("127.0.0.1",), minimum=USERS, **given).run()
    federation = with_roll(Federation.load(fed / "federation.json"), fed)
    task = task_of(federation, fed / "model.safetensors")
    assert isinstance(task, EvaluationTask)
    sent = np.stack([task.encoded(user, rows) for user, rows in enumerate(held)])
    if shares:
        bound = task.norm_bounds[0][EACH // 4]
        assert (np.linalg.norm(sent.view(np.int64).astype(float), axis=1) <= bound).all()
    answer = task.released(Opened(sent.sum(0), frozenset(range(USERS))), facts=FACTS).report
    together = replace(
        held[0],
        embeddings=np.concatenate([rows.embeddings for rows in held]),
        labels=np.full(USERS * EACH, -1),
        findings=np.concatenate([rows.findings for rows in held if rows.findings is not None]),
        users=np.repeat(np.arange(USERS), EACH),
        split=np.concatenate([rows.split for rows in held]),
    )
    alone = evaluate(model, together, Privacy(float("inf"), 1e-5)).report
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


def test_another_model_or_other_rows_are_refused(operator: Path, tmp_path: Path) -> None:
    task = read(operator)
    other = release(of_user(8), "discriminant", Privacy(1e3, 1e-5), sums=1)
    other.save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"model must have SHA-256 .* as the federation says"):
        EvaluationTask.of(task.federation, tmp_path / "other" / "model.safetensors")
    rows = of_user(0)
    with pytest.raises(ValueError, match="evaluation rows must be 10 as agreed, got 9"):
        task.encoded(0, rows.subset(np.arange(EACH) != np.flatnonzero(rows.split == 2)[0]))
    x = np.array(rows.embeddings)
    x[np.flatnonzero(rows.split == 2)[0]] = x[np.flatnonzero(rows.split == 0)[0]]
    task.encoded(0, replace(rows, embeddings=x))  # equal rows of a drawn split are two records
    with pytest.raises(ValueError, match="must not be training rows, got row"):
        task.encoded(0, replace(rows, embeddings=x, meta={"class_names": ["a", "b", "c"]}))
    with pytest.raises(ValueError, match="held out by the operating system's draw"):
        task.encoded(0, replace(rows, meta=rows.meta | {"held_out": {"seed": 1}}))
    with pytest.raises(ValueError, match="identity must be one of"):
        task.encoded(7, rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "poll"}, "kind must be one of evaluation, got poll"),
        ({"bins": 51}, "bins must be"),
        ({"model": "00"}, "model must be 32 bytes"),
        ({"num_classes": 4}, "class_names must be"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"sizes": {"0": 10}}, "sizes must be of the federation's users"),
        ({"more": 1}, "more"),
    ],
)
def test_terms_are_read_without_trust(change: dict, words: str, operator: Path) -> None:
    federation = read(operator).federation
    with pytest.raises(ValueError, match=words):
        EvaluationTerms.read(federation.task | change, set(federation.users), Path("federation"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transform": Path("x")}, "exactly one of transform and model must be given, got both"),
        ({"model": None}, "exactly one of transform and model must be given, got neither"),
        ({"num_classes": 3}, "num_classes must be left out with model"),
    ],
)
def test_bad_settings_leave_nothing(
    change: dict, words: str, operator: Path, tmp_path: Path
) -> None:
    files = tuple(tmp_path / f"user{u}" / f"user-{u}.party.json" for u in range(USERS))
    given = {"hosts": ("127.0.0.1",), "model": tmp_path / "model"} | change
    with pytest.raises(ValueError, match=words):
        Init(tmp_path / "new", files, **given).run()
    assert not (tmp_path / "new").exists()
