"""A real federation on loopback: SuperLink with TLS, five SuperNodes with their own data.

Every node is a process group of its own; each session takes as long as five imports of torch.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from tests.ports import free_port
from train_distributed.commands.federation import Init, Join
from train_distributed.flower.coordinator import Log
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.model_task import ModelTask
from train_distributed.flower.sum_task import Facts
from train_distributed.flower.superlink import Operation, operate
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum import simulate_sum
from train_distributed.secure_sum.opening import Opened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs the flower extra"),
]
W, ROWS, P, K = 5, 12, 6, 3
SECONDS = 90.0
HERE = Path(__file__).parent


def _embeddings(seed: int, rows: int) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    return EmbeddingSet(
        embeddings=draw.normal(size=(rows, P)).astype(np.float32),
        labels=draw.integers(0, K, rows),
        split=np.zeros(rows, np.int8),
        meta={"class_names": ["a", "b", "c"]},
    )


@pytest.fixture
def make_federation(tmp_path: Path) -> Callable[..., Path]:
    def make(sessions: int = 1) -> Path:
        parties = [f"user{i}" for i in range(W)]
        for i, party in enumerate(parties):
            Join(tmp_path / party, party, rows=ROWS).run()
            _embeddings(i, ROWS).save(tmp_path / party / "embeddings")
        transform = PublicTransform.fit(_embeddings(99, 50), clip_norm=1.5)
        transform.save(tmp_path / "public.safetensors")
        Init(
            folder=tmp_path / "fed",
            parties=tuple(tmp_path / party / f"{party}.party.json" for party in parties),
            transform=tmp_path / "public.safetensors",
            hosts=("127.0.0.1",),
            num_classes=K,
            method="softmax",
            privacy=Privacy(5.0, 1e-5, 0.8),
            minimum=4,
            sessions=sessions,
        ).run()
        for name in ("federation.json", "transform.safetensors", "tls"):
            (tmp_path / name).symlink_to(tmp_path / "fed" / name)
        (tmp_path / "server0").symlink_to(tmp_path / "fed")
        return tmp_path

    return make


@contextmanager
def _node(folder: Path, party: str, port: int, die_at: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(HERE / "recorded_node.py"), str(folder), party]
    command += [f"127.0.0.1:{port}", str(SECONDS), str(die_at)]
    with (folder / party / "log").open("ab") as log:
        process = subprocess.Popen(command, env=_environment(), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    root = str(HERE.parents[2])
    return os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def _session(folder: Path, die_at: dict[str, int] | None = None) -> tuple[Opened, Log]:
    federation = Federation.load(folder / "federation.json")
    parties = [f"user{i}" for i in range(W)]
    port = free_port()
    with ExitStack() as nodes:

        def start() -> None:
            for party in parties:
                nodes.enter_context(_node(folder, party, port, (die_at or {}).get(party, 1000)))

        operation = Operation(
            federation=federation,
            keys=read_private(folder / "server0"),
            nodes=tuple(folder / party / "node-key.pub" for party in parties),
            certificates=folder / "tls",
            host="127.0.0.1",
            port=port,
            seconds=SECONDS,
            state=folder / "state",
            run=folder / "run",
            ready=start,
        )
        (opened,), log = operate(operation)
        return opened, log


def _recorded(folder: Path) -> np.ndarray:
    spec = importlib.util.spec_from_file_location("recorded_node", HERE / "recorded_node.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task = _task(folder)
    users = range(W)
    return np.stack(
        [module.recorded_submission(task, i, folder / f"user{i}" / "embeddings") for i in users]
    )


def _task(folder: Path) -> ModelTask:
    federation = Federation.load(folder / "federation.json")
    return ModelTask.of(federation, folder / "transform.safetensors")


def test_five_nodes_sum_what_one_process_sums(make_federation: Callable[..., Path]) -> None:
    folder = make_federation()
    opened, log = _session(folder)
    sent = _recorded(folder)
    alone = simulate_sum(sent)
    assert opened.users == frozenset(range(W))
    assert (log.missing, log.refused) == ({}, [])
    assert np.array_equal(opened.total, alone.total)
    task = _task(folder)
    facts = Facts(session=log.session, bytes_per_user=max(log.bytes_of.values()))
    model = task.released(opened, facts)
    same = task.released(Opened(alone.total, frozenset(range(W))), facts)
    assert torch.equal(model.weights, same.weights)
    assert model.report["suitable_for_release"]


@pytest.mark.parametrize("stage", [0, 4])
def test_secagg_completes_without_a_node_that_is_killed(
    stage: int, make_federation: Callable[..., Path]
) -> None:
    folder = make_federation()
    opened, log = _session(folder, {"user3": stage})
    left = [i for i in range(W) if i != 3 or stage >= 4]
    assert sorted(opened.users) == left
    assert np.array_equal(opened.total, _recorded(folder)[left].sum(0))
    assert set(log.missing) == {3}
