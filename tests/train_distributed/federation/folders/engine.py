"""A federation's commands with the network cut off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train_distributed.commands.federation import hosting, taking_part
from train_distributed.federation import operation
from train_distributed.federation.attendance import Attendance
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.operation import Operation
from train_distributed.federation.progress import Log
from train_distributed.federation.record import settle
from train_distributed.secure_sum.opening import Opened


def digest_of(home: Path, operator: str = "fed") -> str:
    """What a user of the operator's federation accepts."""
    return Federation.load(home / operator / "federation.json").digest.hex()


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
