"""One server that leaves the shares protocols: named, and survived where there are replicas."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from train_distributed.flower import portions
from train_distributed.flower.blobs import join, split
from train_distributed.flower.coordinator import Log
from train_distributed.flower.endpoint import Request
from train_distributed.secure_sum.errors import OutOfOrder, ProtocolError, ServersDisagree
from train_distributed.secure_sum.parties import FIRST_SERVER, name_of
from train_distributed.secure_sum.wire import payload_of

Messages = list[bytes]
Hook = Callable[[Request, Messages], Messages | None]
LIAR, NAME = FIRST_SERVER + 1, "computation server 1"


def _at(stage: Request, change: Callable[[bytes], bytes] | None) -> Hook:
    """Changes the first message of the answer to one request; None: silence from then on."""
    silent = []

    def hook(request: Request, messages: Messages) -> Messages | None:
        if change is None and (request == stage or silent):
            silent.append(request)
            return None
        if request == stage and change is not None:
            return [change(messages[0]), *messages[1:]] if messages else messages
        return messages

    return hook


def _signed(trial: Any, payload: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda m: trial.sign(LIAR, m, payload(payload_of(m)))


def _changes(trial: Any, stage: Request) -> dict[str, Callable[[bytes], bytes] | None]:
    sets: dict[Request, Callable[[bytes], bytes]] = {
        Request.CLOSE: lambda p: p[:4] + p[40:] if len(p) > 40 else b"\x07",
        Request.COMMIT: lambda p: b"\x07" + p[1:],
        Request.OPEN: lambda p: bytes(32) + p[32:],
    }
    return {
        "silence": None,
        "garbage": lambda m: b"x" * len(m),
        "cut": lambda m: m[:-1],
        "forged": lambda m: m[:-1] + bytes([m[-1] ^ 1]),
        "another's name": lambda m: m[:38] + struct.pack(">I", FIRST_SERVER) + m[42:],
        "short payload": _signed(trial, lambda p: p[:-1]),
        "another set": _signed(trial, sets[stage]),
    }


HOWS = ["silence", "garbage", "cut", "forged", "another's name", "short payload", "another set"]
CASES = [(s, how) for s in (Request.CLOSE, Request.COMMIT, Request.OPEN) for how in HOWS]


@pytest.mark.parametrize(
    ("stage", "how"), [c for c in CASES if c != (Request.CLOSE, "another set")]
)
@pytest.mark.parametrize("servers", [3, 4])
def test_replicas_survive_a_server_that_leaves_the_protocol_and_name_it(
    servers: int, stage: Request, how: str, make_trial: Callable
) -> None:
    trial = make_trial("shares-replicated", servers)
    trial.hooks[21] = _at(stage, _changes(trial, stage)[how])
    opened = trial.run()
    assert np.array_equal(opened.total, trial.vectors.sum(0))
    assert any(NAME in text for text in trial.log.refused)
    others = [name_of(FIRST_SERVER + j) for j in range(servers) if FIRST_SERVER + j != LIAR]
    assert not any(text.startswith(o) for o in others for text in trial.log.refused)
    assert trial.log.missing == {}
    assert trial.log.unchecked == ((0, 2) if servers == 3 else ())
    assert any("unchecked" in text for text in trial.log.refused) == (servers == 3)


@pytest.mark.parametrize("stage", [Request(0), Request.CLOSE, Request.SETTLE, Request.DELIVER])
@pytest.mark.parametrize("servers", [3, 4, 5])
def test_replicas_survive_one_silent_server_and_not_two(
    servers: int, stage: Request, make_trial: Callable
) -> None:
    trial = make_trial("shares-replicated", servers)
    trial.hooks[21] = _at(stage, None)
    opened = trial.run()
    assert np.array_equal(opened.total, trial.vectors.sum(0))
    assert any(NAME in text for text in trial.log.refused)
    trial = make_trial("shares-replicated", servers)
    trial.hooks[21], trial.hooks[22] = _at(stage, None), _at(Request.COMMIT, None)
    with pytest.raises(OutOfOrder) as caught:
        trial.run()
    assert NAME in str(caught.value)
    assert "computation server 2" in str(caught.value)


def test_a_server_that_denies_a_user_leaves_it_out_and_says_so(make_trial: Callable) -> None:
    trial = make_trial("shares-replicated", 3)
    honest = trial.endpoints[21]

    class Denier:
        def answer(self, request: bytes) -> bytes:
            if request[0] == Request.CLOSE:
                request = request[:1] + join(split(request[1:])[1:])
            return honest.answer(request)

    trial.endpoints[21] = Denier()
    opened = trial.run()
    assert np.array_equal(opened.total, trial.vectors[1:].sum(0))
    assert trial.log.missing == {0: "shares"}
    assert trial.log.refused == [f"user 0: {NAME} does not hold its share"]


@pytest.mark.parametrize(
    ("servers", "wrong"), [(3, (0,)), (3, (0, 1)), (4, (0,)), (4, (2,)), (4, (0, 1, 2)), (5, (3,))]
)
def test_a_server_that_reports_wrong_sums_is_outvoted_or_two_are_named(
    servers: int, wrong: tuple[int, ...], make_trial: Callable
) -> None:
    """A third of a wrong vector would be released unnoticed by `shares`."""
    trial = make_trial("shares-replicated", servers)

    def lie(payload: bytes) -> bytes:
        changed = bytearray(payload)
        for part in wrong:
            changed[32 + 8 * trial.federation.dimension * part] ^= 1
        return bytes(changed)

    trial.hooks[21] = _at(Request.OPEN, _signed(trial, lie))
    if servers == 3 and len(wrong) == 1:
        with pytest.raises(ServersDisagree, match=rf"{NAME}, computation server 2 must"):
            trial.run()
        return
    opened = trial.run()
    assert np.array_equal(opened.total, trial.vectors.sum(0))
    assert trial.log.refused[0].startswith(f"{NAME}: reports wrong sums of parts")


@pytest.mark.parametrize(("stage", "how"), CASES)
def test_shares_end_with_the_name_of_the_server_that_left_the_protocol(
    stage: Request, how: str, make_trial: Callable
) -> None:
    trial = make_trial("shares", 3)
    trial.hooks[21] = _at(stage, _changes(trial, stage)[how])
    if (stage, how) == (Request.CLOSE, "another set"):
        opened = trial.run()  # it does not hold users 3 and 4
        assert np.array_equal(opened.total, trial.vectors[:3].sum(0))
        return
    with pytest.raises(ProtocolError) as caught:
        trial.run()
    assert NAME in str(caught.value)
    assert not any(other in str(caught.value) for other in ("operator", "computation server 2"))


def test_shares_release_what_one_lying_server_made_of_the_sum(make_trial: Callable) -> None:
    """What the documentation says of `shares`: one server alone can change the sum unnoticed."""
    trial = make_trial("shares", 3)
    trial.hooks[21] = _at(Request.OPEN, _signed(trial, lambda p: p[:32] + b"\x55" * 8 + p[40:]))
    opened = trial.run()
    assert not np.array_equal(opened.total, trial.vectors.sum(0))
    assert trial.log == Log()


@pytest.mark.parametrize("servers", [3, 4])
@pytest.mark.parametrize("stage", [Request.CLOSE, Request.SETTLE])
@pytest.mark.parametrize("after", range(5))
def test_a_server_may_be_lost_in_any_round(
    servers: int,
    stage: Request,
    after: int,
    make_trial: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each user's messages are a round of their own."""
    monkeypatch.setattr(portions, "BATCH_BYTES", 1)
    trial, asked = make_trial("shares-replicated", servers), []

    def hook(request: Request, messages: Messages) -> Messages | None:
        asked.append(request)
        return None if asked.count(stage) > after else messages

    trial.hooks[21] = hook
    opened = trial.run()
    assert asked.count(stage) == after + 1
    assert np.array_equal(opened.total, trial.vectors.sum(0))
    assert trial.log.refused[0] == f"{NAME}: left out: did not answer {stage.name}"


@pytest.mark.parametrize("servers", [3, 4])
def test_a_holding_of_an_earlier_round_is_no_holding(
    servers: int, make_trial: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "BATCH_BYTES", 1)
    trial, first = make_trial("shares-replicated", servers), []

    def hook(request: Request, messages: Messages) -> Messages:
        first.extend(messages[:1] if request == Request.CLOSE and not first else [])
        return first if request == Request.CLOSE else messages

    trial.hooks[21] = hook
    assert np.array_equal(trial.run().total, trial.vectors.sum(0))
    assert trial.log.refused[0] == f"{NAME}: left out: HOLDING must be of round 1, got 0"
