"""A session over a relay that loses, garbles and invents: the exact sum, or nothing.

Whoever waits is told for whom, and who refused and why, in one line each time that changes.
"""

import hashlib
import json
import struct
from pathlib import Path

import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import ALL
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import DONE, Request, join, split
from train_distributed.federation.progress import MOST_SHOWN, Log
from train_distributed.secure_sum.errors import MalformedMessage, OutOfOrder, TooFewUsers
from train_distributed.secure_sum.journal import DurableJournal, VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys

STEPS = [
    *("be present", "advertise keys", "share keys"),
    *("masked input", "agree on survivors", "unmask"),
]


@pytest.mark.parametrize("stage", range(len(STEPS) + 1))
def test_secagg_completes_without_a_user_that_dies(stage: int) -> None:
    """And with one that dies when it has answered everything."""
    relay, log = fake.FakeRelay(), Log()
    relay.dies_at[12] = stage
    assert fake.operate(relay, log) == (ALL if stage >= 4 else ALL - {2})
    assert log.missing == dict.fromkeys([2] * (stage < len(STEPS)), (*STEPS, "")[stage])
    assert log.refused == []


@pytest.mark.parametrize(
    "garbled",
    [b"", DONE, DONE + b"\0\0\0\1", DONE + join([b"\0\0\0\2"]), DONE + join([b"\0\0\0\2", b"x"])],
)
def test_a_node_that_talks_nonsense_is_a_node_that_is_missing(garbled: bytes) -> None:
    relay, log = fake.FakeRelay(), Log()
    relay.garble = lambda node, asked, answer: garbled if node == 12 else answer
    assert fake.operate(relay, log) == ALL - {2}
    assert set(log.missing) == {2}


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_restarted_user_submits_no_second_time(sessions: int, tmp_path: Path) -> None:
    def again(log: Log) -> set[int]:
        relay = fake.FakeRelay(federation, lambda user: DurableJournal(tmp_path / str(user)))
        return fake.operate(relay, log, None, DurableJournal(tmp_path / "operator"))

    federation, log = fake.agreement(sessions=sessions), Log()
    for _ in range(sessions):
        assert again(Log()) == ALL
    with pytest.raises((TooFewUsers, OutOfOrder)):
        again(log)
    assert sum("all agreed sessions are used up" in text for text in log.refused) == fake.W


def test_an_endpoint_survives_any_request() -> None:
    federation, vector = fake.agreement(), lambda: fake.VECTORS[0]
    endpoint = UserEndpoint(federation, 0, fake.KEYS[0], vector, VolatileJournal())
    deliver = bytes([Request.DELIVER]) + join([b"x"])
    for request in (b"", b"\xff", b"\0short", deliver, b"\2"):
        assert endpoint.answer(request)[:1] != DONE
    assert endpoint.answer(fake.start(federation))[:1] == DONE
    assert b"TruncatedMessage" in endpoint.answer(deliver)
    with pytest.raises(ValueError, match="keys must be those that the federation lists"):
        UserEndpoint(federation, 1, fake.KEYS[0], vector, VolatileJournal())


def test_lists_of_bytes_are_read_strictly() -> None:
    joined = join(blobs := [b"", b"ab", b"\0" * 9])
    assert split(joined) == blobs
    for bad in (b"", joined[:-1], joined + b"\0", struct.pack(">I", 9) + joined[4:]):
        with pytest.raises(MalformedMessage):
            split(bad)


def test_a_federation_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    federation, path = fake.agreement(task={"step": 0.5, "method": "x"}), tmp_path / "f.json"
    federation.save(path)
    again = Federation.load(path)
    assert again == federation
    digest = federation.session(b"n" * 32).digest
    assert again.session(b"n" * 32).digest == digest
    changed = fake.agreement(task={"step": 0.25, "method": "x"})
    assert changed.session(b"n" * 32).digest != digest
    path.write_text('{"protocol": "secagg"}')
    with pytest.raises(ValueError, match=r"f\.json: version must be given, got nothing"):
        Federation.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "plain"}, "protocol must be"),
        ({"servers": ()}, "servers must be"),
        ({"sessions": 0}, "sessions must be a whole number >= 1, got 0"),
        # anyone could open what is sealed to it
        ({"sealing": "0" * 64}, r"servers\.0\.sealing must be a key of full order, .* small order"),
        ({"users": {}}, "users must be on a roll with protocol shares, listed with secagg"),
        ({"roll": {"root": "0" * 64, "sizes": {3: 5}}}, "users must be on a roll with protocol sh"),
        ({"minimum": 99}, "minimum must be <= "),
        ({"nodes": {"0": "ab" * 32}}, "nodes"),  # of a version whose parties had node keys
    ],
)
def test_a_federation_that_protects_nobody_is_refused(
    changes: dict, message: str, tmp_path: Path
) -> None:
    federation, path = fake.agreement(), tmp_path / "federation.json"
    if "sealing" in changes:
        changes = {"servers": (federation.servers[0].fields | changes,)}
    path.write_text(json.dumps(federation.fields | changes))
    with pytest.raises(ValueError, match=message):
        Federation.load(path)


def test_the_digest_of_a_federation_stays(tmp_path: Path) -> None:
    def public(number: int):
        seeds = [hashlib.sha256(b"%s%d" % (label, number)).digest() for label in (b"", b"s")]
        return PrivateKeys(*seeds).public

    federation = Federation(
        version=3,
        protocol="secagg",
        dimension=7,
        minimum=2,
        users={i: public(i).verifying.hex() for i in range(3)},
        servers=(Keys.of(public(9)),),
        names={0: "hospital-a"},
        task={"method": "x", "sizes": {"0": 3}},
    )
    federation.save(tmp_path / "federation.json")
    assert Federation.load(tmp_path / "federation.json").digest.hex() == (
        "cee3accd2673663e20c4c60d20fdf68a8f94ff9b7946364714ab5087646f86c4"
    )


def test_an_operator_that_waits_is_told_for_whom_and_why() -> None:
    said = list[str]()
    log = Log(say=lambda line: said.append(line.partition(" s  ")[2]))
    log.present([], 3, ["a", "b", "c"])
    log.present([], 3, ["a", "b", "c"])
    log.refuse("user 1 (b)", "refused: budget")
    log.present([0], 3, ["c"])
    log.present([0, 2], 3)
    log.stage("start", [0, 2])
    log.refuse("user 2 (c)", b"refused: \x1b")
    log.answered(1, 2)
    log.answered(1, 2)
    assert said == [
        "0 of 3 present; waiting for a, b, c",
        "1 of 3 present; user 1 (b): refused: budget; waiting for c",
        "2 of 3 present; user 1 (b): refused: budget",
        "start: 1 of 2; user 2 (c): refused: \\x1b",
        "start: 1 of 2",
    ]


def test_a_crowd_does_not_fill_the_line() -> None:
    said = list[str]()
    log = Log(say=said.append)
    for number in range(50):
        log.refuse(f"user {number}", "refused")
    log.present([], 100, map(str, range(100)))
    assert said[0].endswith("waiting for 0, 1, 2, 3, 4, ...")
    assert said[0].count("refused") == MOST_SHOWN
