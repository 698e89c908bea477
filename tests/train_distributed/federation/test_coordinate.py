"""A session over a relay that loses, garbles and invents: the exact sum, or nothing."""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation.coordinator import Log
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, Request, join, split, write_order
from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    TooFewUsers,
)
from train_distributed.secure_sum.journal import DurableJournal, VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys


def test_the_sum_is_exact() -> None:
    federation, log = fake.agreement(), Log()
    opened = fake.operate(fake.volatile(federation), log)
    assert np.array_equal(opened.total, fake.VECTORS.sum(0))
    assert opened.users == frozenset(range(fake.W))
    assert (log.missing, log.refused) == ({}, [])


@pytest.mark.parametrize("stage", range(6))
def test_secagg_completes_without_a_user_that_dies(stage: int) -> None:
    federation, log = fake.agreement(), Log()
    relay = fake.volatile(federation)
    relay.dies_at[12] = stage
    opened = fake.operate(relay, log)
    left = [i for i in range(fake.W) if i != 2 or stage >= 4]
    assert sorted(opened.users) == left
    assert np.array_equal(opened.total, fake.VECTORS[left].sum(0))
    steps = [
        "be present",
        "advertise keys",
        "share keys",
        "masked input",
        "agree on survivors",
        "unmask",
    ]
    assert log.missing == {2: steps[stage]}


def test_below_the_minimum_nothing_is_released() -> None:
    federation, log = fake.agreement(), Log()
    relay = fake.volatile(federation)
    relay.dies_at = {10: 0, 11: 0, 12: 0}
    with pytest.raises((TooFewUsers, OutOfOrder)):
        fake.operate(relay, log)
    assert set(log.missing) == {0, 1, 2}


@pytest.mark.parametrize(
    "garbled",
    [b"", DONE, DONE + b"\0\0\0\1", DONE + join([b"\0\0\0\2"]), DONE + join([b"\0\0\0\2", b"x"])],
)
def test_a_node_that_talks_nonsense_is_a_node_that_is_missing(garbled: bytes) -> None:
    federation, log = fake.agreement(), Log()
    relay = fake.volatile(federation)
    relay.garble = lambda node, answer: garbled if node == 12 else answer
    opened = fake.operate(relay, log)
    assert np.array_equal(opened.total, fake.VECTORS[[0, 1, 3, 4]].sum(0))
    assert set(log.missing) == {2}


def test_a_restarted_user_submits_no_second_time(tmp_path: Path) -> None:
    for sessions, runs in ((1, 1), (2, 2)):
        federation = fake.agreement(sessions=sessions)
        folder = tmp_path / str(sessions)
        for _ in range(runs):
            relay = fake.FakeRelay(federation, lambda i, f=folder: DurableJournal(f / str(i)))
            opened = fake.operate(relay, Log(), None, DurableJournal(folder / "operator"))
            assert np.array_equal(opened.total, fake.VECTORS.sum(0))
        log = Log()
        relay = fake.FakeRelay(federation, lambda i, f=folder: DurableJournal(f / str(i)))
        with pytest.raises((TooFewUsers, OutOfOrder)):
            fake.operate(relay, log, None, DurableJournal(folder / "operator"))
        assert sum("all agreed sessions are used up" in text for text in log.refused) == fake.W


def test_an_endpoint_survives_any_request() -> None:
    federation = fake.agreement()
    endpoint = UserEndpoint(federation, 0, fake.KEYS[0], lambda: fake.VECTORS[0], VolatileJournal())
    for request in (b"", b"\xff", b"\0short", bytes([Request.DELIVER]) + join([b"x"]), b"\2"):
        assert endpoint.answer(request)[:1] != DONE
    body = bytes(32) + federation.session(bytes(32)).bitmap(range(fake.W))
    start = write_order(federation, Request.START, body, fake.KEYS[FIRST_SERVER])
    assert endpoint.answer(start)[:1] == DONE
    assert b"TruncatedMessage" in endpoint.answer(bytes([Request.DELIVER]) + join([b"x"]))
    with pytest.raises(ValueError, match="keys must be those that the federation lists"):
        UserEndpoint(federation, 1, fake.KEYS[0], lambda: fake.VECTORS[0], VolatileJournal())


def test_lists_of_bytes_are_read_strictly() -> None:
    blobs = [b"", b"ab", b"\0" * 9]
    assert split(join(blobs)) == blobs
    joined = join(blobs)
    for bad in (b"", joined[:-1], joined + b"\0", struct.pack(">I", 9) + joined[4:]):
        with pytest.raises(MalformedMessage):
            split(bad)


def test_a_federation_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    federation = fake.agreement(task={"step": 0.5, "method": "x"})
    federation.save(tmp_path / "federation.json")
    again = Federation.load(tmp_path / "federation.json")
    assert again == federation
    assert again.session(b"n" * 32).digest == federation.session(b"n" * 32).digest
    changed = fake.agreement(task={"step": 0.25, "method": "x"})
    assert changed.session(b"n" * 32).digest != federation.session(b"n" * 32).digest
    (tmp_path / "bad.json").write_text('{"protocol": "secagg"}')
    with pytest.raises(ValueError, match=r"bad\.json: version must be given, got nothing"):
        Federation.load(tmp_path / "bad.json")
    (operator,) = federation.servers
    weak = operator.fields | {"sealing": bytes(32).hex()}  # anyone could open what is sealed to it
    path = tmp_path / "changed.json"
    for changes, message in [
        ({"protocol": "plain"}, "protocol must be"),
        ({"servers": ()}, "servers must be"),
        ({"sessions": 0}, "sessions must be a whole number >= 1, got 0"),
        ({"servers": (weak,)}, r"servers\.0\.sealing must be a key of full order, .* small order"),
        ({"users": {}}, "users must be on a roll with protocol shares, listed with secagg"),
        (
            {"roll": {"root": "00" * 32, "sizes": {3: 5}}},
            "users must be on a roll with protocol shares",
        ),
        ({"minimum": 99}, "minimum must be <= "),
    ]:
        path.write_text(json.dumps(federation.fields | changes))
        with pytest.raises(ValueError, match=message):
            Federation.load(path)


def test_the_digest_of_a_federation_stays(tmp_path: Path) -> None:
    def public(number: int):
        seeds = [hashlib.sha256(b"%s%d" % (label, number)).digest() for label in (b"", b"s")]
        return PrivateKeys(*seeds).public

    server, path = public(9), tmp_path / "federation.json"
    federation = Federation(
        version=3,
        protocol="secagg",
        dimension=7,
        minimum=2,
        users={i: public(i).verifying.hex() for i in range(3)},
        servers=(Keys.of(server),),
        names={0: "hospital-a"},
        task={"method": "x", "sizes": {"0": 3}},
    )
    federation.save(path)
    assert Federation.load(path).digest.hex() == (
        "cee3accd2673663e20c4c60d20fdf68a8f94ff9b7946364714ab5087646f86c4"
    )
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nodes": {"0": "ab" * 32}}))
    with pytest.raises(ValueError, match="nodes"):  # of a version whose parties had node keys
        Federation.load(path)
