"""`agree --protocol shares-replicated`: three servers or more, and the report says what holds."""

from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from train_distributed.flower.commands import Agree, Keys
from train_distributed.flower.federation import Federation
from train_distributed.flower.task import ModelTask
from train_distributed.privacy import Privacy
from train_distributed.secure_sum import simulate_sum
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed

W, ROWS = 4, 9


def _embeddings(seed: int) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    return EmbeddingSet(
        embeddings=draw.normal(size=(ROWS, 5)).astype(np.float32),
        labels=draw.integers(0, 3, ROWS),
        split=np.zeros(ROWS, np.int8),
        meta={"class_names": ["a", "b", "c"]},
    )


def _agree(folder: Path, servers: int) -> Agree:
    parties = [f"user{i}" for i in range(W)] + [f"server{j}" for j in range(servers)]
    for party in parties:
        Keys(folder / party).run()
    PublicTransform.fit(_embeddings(99), clip_norm=1.5).save(folder / "transform.safetensors")
    return Agree(
        users=tuple(folder / party for party in parties[:W]),
        servers=tuple(folder / party for party in parties[W:]),
        sizes=(ROWS,) * W,
        transform=folder / "transform.safetensors",
        num_classes=3,
        out=folder / "federation.json",
        protocol="shares-replicated",
        method="class-sums",
        privacy=Privacy(1.0, 1e-5, 0.75),
        minimum=3,
    )


def test_two_servers_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=">= 3 for shares-replicated and 1 for secagg, got 2"):
        _agree(tmp_path, 2).run()
    assert not (tmp_path / "federation.json").exists()


def test_the_report_says_against_whom_it_holds(tmp_path: Path) -> None:
    _agree(tmp_path, 3).run()
    federation = Federation.load(tmp_path / "federation.json")
    nonce = new_seed()
    assert federation.session(nonce).digest == federation.replicated(nonce).session.digest
    assert federation.may_be_absent == 1
    task = ModelTask.of(federation, tmp_path / "transform.safetensors")
    sent = np.stack([task.noised(task.encoded(i, _embeddings(i))) for i in range(W)])
    result = simulate_sum(sent, "shares-replicated")
    report = task.released(Opened(result.total, frozenset(result.survivors))).report
    assert report["protocol"] == "shares-replicated"
    assert report["holds_against"] == (
        "any one computation server, colluding with at most 0.1 of the users; "
        "two see every submission"
    )
