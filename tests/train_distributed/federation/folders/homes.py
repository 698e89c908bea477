"""Folders of a federation's users, servers and operator, made by the commands themselves."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.known_classes import ClassGuess, KnownClasses
from train_distributed.commands.federation import Init, Join, hosting, taking_part
from train_distributed.commands.options import RunConfig
from train_distributed.federation import operation
from train_distributed.federation.attendance import Attendance
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.place import with_roll
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.operation import Operation
from train_distributed.federation.progress import Log
from train_distributed.federation.record import settle
from train_distributed.federation.sum_task import SessionFacts
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.opening import Opened

ROOT = Path(__file__).parents[4]
ROWS, P, CLASSES = 12, 6, ("a", "b", "c")
W, K = 4, len(CLASSES)  # users of an agreed task, classes
OWN = ("127.0.0.1",)  # names of the services
PROMISE = Privacy(1.0, 1e-5, 0.75)
FACTS = SessionFacts(session="5e" * 32, bytes_per_user=1234, missing={1: "masked input"})


def embeddings(seed: int, rows: int = ROWS) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    return EmbeddingSet(
        embeddings=draw.normal(size=(rows, P)).astype(np.float32),
        labels=draw.integers(0, len(CLASSES), rows),
        split=np.zeros(rows, np.int8),
        meta={"class_names": list(CLASSES)},
    )


def rows_of(home: Path, user: int) -> EmbeddingSet:
    return EmbeddingSet.open(home / f"user{user}" / "embeddings")


def federation_of(home: Path, operator: str = "fed") -> Federation:
    """What an operator has agreed on with its users, with the roll where there is one."""
    return with_roll(Federation.load(home / operator / "federation.json"), home / operator)


def digest_of(home: Path, operator: str = "fed") -> str:
    """What a user of the operator's federation accepts."""
    return federation_of(home, operator).digest.hex()


def join(
    home: Path,
    users: int = 3,
    servers: int = 0,
    hosts: tuple[str, ...] = OWN,
    *,
    seed: int = 0,
    rows: int = ROWS,
) -> list[Path]:
    """Folders user0, user1, ... and server1, ... with keys, and a transform; the party files."""
    files = []
    for i in range(users):
        embeddings(seed + i).save(home / f"user{i}" / "embeddings")
        Join(home / f"user{i}", f"hospital-{i}", rows=rows).run()
        files.append(home / f"user{i}" / f"hospital-{i}.party.json")
    for j in range(1, servers + 1):
        Join(home / f"server{j}", f"adder-{j}", server=True, hosts=hosts).run()
        files.append(home / f"server{j}" / f"adder-{j}.party.json")
    PublicTransform.fit(embeddings(99, 50)).save(home / "public.safetensors")
    return files


def init_of(home: Path, parties: list[Path], **changes: Any) -> Init:
    """The operator's command, which makes the folder `fed`."""
    fixed: dict[str, Any] = {"folder": home / "fed", "parties": tuple(parties), "hosts": OWN}
    fixed |= {"transform": home / "public.safetensors", "class_names": CLASSES}
    return Init(**fixed | changes)


def with_config(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of `init`, with what cannot be typed, method and options, in a file at `path`.

    Of one sum, unless they say something else: what is tested of a sum holds for each of two.
    """
    settings["options"] = {"sums": 1} | settings.get("options", {})
    own = {name: settings.pop(name) for name in ("method", "options") if name in settings}
    chosen: dict[str, Any] = {"method": "discriminant"} | own
    path.write_text(RunConfig(**chosen, privacy=settings.pop("privacy")).text())
    return settings | {"config": path}


def initiate(home: Path, users: int = 3, servers: int = 0, **settings: Any) -> Path:
    """Makes the folders of all parties and of the operator below `home`, and returns it."""
    fixed: dict[str, Any] = {
        "protocol": ("secagg", "shares")[servers],
        "privacy": Privacy(5.0, 1e-5, None if servers else 0.8),
        "minimum": users,
    }
    settings = with_config(home / "config.json", fixed | settings)
    parties = join(home, users, servers, () if settings.get("behind_proxy") else OWN)
    init_of(home, parties, **settings).run()
    return home


def agreed_task(home: Path, method: str = "softmax", **settings: Any) -> ModelTask:
    """A task as four users have agreed on it, read again from the operator's folder."""
    promise = replace(PROMISE, honest_fraction=None) if settings.get("servers") else PROMISE
    fixed = {"users": W, "privacy": promise, "minimum": 3, "method": method}
    initiate(home, **fixed | settings)
    return ModelTask.of(federation_of(home), home / "fed" / "transform.safetensors")


class Engine:
    """In place of the network: an operator that opens zeros, a party that is used up at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations: list[Operation] = []
        self.parties: list[Attendance] = []
        self.lines: list[Any] = []  # of the parties; None: to the operator's service
        self.failure: Exception | None = None
        monkeypatch.setattr(operation, "operate", self.operate)
        monkeypatch.setattr(taking_part, "attend", self.attend)
        monkeypatch.setattr(hosting, "settle", lambda state: settle(state))

    def operate(self, operation: Operation) -> tuple[list[Opened], Log]:
        self.operations.append(operation)
        operation.say("stage: 3 of 3")
        if self.failure is not None:
            raise self.failure
        users = frozenset(operation.federation.users) - {1}
        log = Log(missing={1: "masked input"}, refused=["user 1: refused: \\x1b"])
        log.session, log.bytes_of = "ab" * 32, dict.fromkeys(users, 700)
        return [Opened(np.zeros(operation.federation.dimension, np.uint64), users)], log

    def attend(self, attendance: Attendance, line: Any = None) -> int:
        self.parties.append(attendance)
        self.lines.append(line)
        attendance.say("connected")
        return 0


@pytest.fixture
def joined(tmp_path: Path) -> Callable[..., list[Path]]:
    return partial(join, tmp_path)


@pytest.fixture
def initiated(tmp_path: Path) -> Callable[..., Path]:
    return partial(initiate, tmp_path)


@pytest.fixture
def agreed(tmp_path: Path) -> Callable[..., ModelTask]:
    return partial(agreed_task, tmp_path)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


@pytest.fixture
def knowing(tmp_path: Path) -> Path:
    """A public transform that has a guess of the classes, by their names."""
    plain = PublicTransform.fit(embeddings(99, 50))
    means = torch.zeros(P, len(CLASSES), dtype=torch.float64)
    guess = ClassGuess("names of 200 public classes", means, plain.public.covariance)
    path = tmp_path / "knowing.safetensors"
    replace(plain, known=KnownClasses(CLASSES, (guess,))).save(path)
    return path
