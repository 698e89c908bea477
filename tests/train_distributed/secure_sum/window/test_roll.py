"""A roll's hash is the Merkle tree hash of RFC 9162, and a proof is of one line at one place."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.train_distributed.secure_sum.window.conftest import make_roll
from train_distributed.secure_sum import roll as module
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.roll import USER, Roll, User
from train_distributed.secure_sum.window import HELPER, LEADER, WindowWithKeys

LABEL = b"blind averaging, roll, version 1\n"


def a_roll(w: int, seed: int = 0) -> Roll:
    draw = np.random.default_rng(seed)
    keys = [draw.bytes(32) for _ in range(w)]
    return make_roll(keys, draw.integers(1, 4, w).tolist(), [f"user-{i}" for i in range(w)])


def merkle_tree_hash(lines: list[bytes]) -> bytes:
    """MTH of RFC 9162, Sec. 2.1.1, as it is written there."""
    n = len(lines)
    if n == 1:
        return hashlib.sha256(b"\0" + lines[0]).digest()
    k = 1
    while 2 * k < n:
        k *= 2
    both = merkle_tree_hash(lines[:k]) + merkle_tree_hash(lines[k:])
    return hashlib.sha256(b"\1" + both).digest()


@pytest.mark.parametrize("block", [2, 4, 256])
def test_the_hash_is_that_of_the_rfc_and_every_place_is_proved(block, monkeypatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    for w in [*range(1, 35), 64, 65, 257] if block < 256 else [1, 255, 256, 257, 513, 1000]:
        roll = a_roll(w)
        lines = [LABEL + line.tobytes() for line in roll.lines]
        assert roll.root == merkle_tree_hash(lines)
        for number in {*range(min(w, 40)), w - 1}:
            user = roll.placed(number)
            assert len(user.proof) <= int(w - 1).bit_length()
            assert user.root(number, w) == roll.root
            key, rows, _ = roll.lines[number]
            assert (user.key, user.rows, user.name) == (key.tobytes(), rows, f"user-{number}")


@pytest.mark.parametrize("w", [1, 2, 3, 6, 7, 8, 13])
def test_nothing_else_is_proved(w: int) -> None:
    """Not another place, number of users, key, size or name, nor a longer or shorter proof."""
    roll = a_roll(w)
    for number in range(w):
        user = roll.placed(number)
        forged = [
            replace(user, rows=user.rows + 1),
            replace(user, name="other"),
            replace(user, key=bytes(32)),
            replace(user, proof=(*user.proof, bytes(32))),
            replace(user, proof=user.proof[1:] if user.proof else (roll.root,)),
            *(replace(user, proof=user.proof[:-1]) for _ in user.proof[:1]),
            *(replace(user, proof=(*user.proof[::-1],)) for _ in user.proof[1:]),
            *(replace(user, proof=(bytes(32), *user.proof[1:])) for _ in user.proof[:1]),
        ]
        assert all(each.root(number, w) != roll.root for each in forged)
        places = set(range(-2, w + 3)) - {number}
        assert all(user.root(place, w) != roll.root for place in places)
        shorter = [count for count in range(1, 2 * w + 2) if count != w]
        same = [count for count in shorter if user.root(number, count) == roll.root]
        # the same path in a tree of another number of leaves: the number is agreed on
        assert all(_path_of(number, count) == _path_of(number, w) for count in same)


def _path_of(place: int, count: int) -> list[int]:
    sides = []
    while count > 1:
        sides += [place % 2] if place ^ 1 < count else []
        place, count = place // 2, (count + 1) // 2
    return sides


def test_a_node_is_no_line() -> None:
    """A line is longer than two hashes, and hashed after another first byte and a label."""
    assert USER.itemsize > 64
    roll = a_roll(2)
    leaves = b"".join(merkle_tree_hash([LABEL + each.tobytes()]) for each in roll.lines)
    assert roll.root == hashlib.sha256(b"\1" + leaves).digest()
    assert roll.root != hashlib.sha256(b"\0" + leaves).digest()


def test_a_key_or_a_name_twice_is_found_and_others_are_told_apart(monkeypatch) -> None:
    monkeypatch.setattr(module, "PIECE", 8)
    for first, second in [(0, 1), (3, 19), (18, 20), (0, 20)]:
        for what, words in (("key", "a key"), ("name", "a name")):
            lines = a_roll(21).lines.copy()
            lines[what][second] = lines[what][first]
            with pytest.raises(ValueError, match=rf"{words} of its own, user {first} \(.*\) and u"):
                Roll(lines).check_distinct(what)
    lines = a_roll(21).lines.copy()
    lines["key"][:, :8] = 7  # heads alike, keys not
    Roll(lines).check_distinct("key")
    assert [Roll(lines).find(line["key"].tobytes()) for line in lines] == list(range(21))
    assert Roll(lines).find(lines["key"][0, :8].tobytes() + bytes(24)) is None
    names = [f"{'x' * 30}-{number:05d}" for number in range(2000)]
    roll = make_roll(list(a_roll(2000).lines["key"]), [1] * 2000, names)
    roll.check_distinct("name")
    assert roll.has_name(names[-1])
    assert not roll.has_name("x")


def test_an_aggregator_has_the_roll_that_was_agreed_on(make_service) -> None:
    service = make_service(4)
    window, roll, leader = service.window, service.enrolled.roll, service.keys[LEADER]
    line = User(leader.public.verifying, 4, "user-3").line
    with_server = Roll(np.concatenate([roll.lines[:3], np.frombuffer(line, USER)]))
    twice = roll.lines.copy()
    twice["key"][2] = twice["key"][0]
    other = replace(window, sizes=window.sizes | {4: (2, 9)}, minimum=1)
    regrouped = replace(window, sizes={3: (1, 9), 4: (1, 9), 5: (2, 9)})
    for changed, lines, words in (
        (window, roll.lines[::-1].copy(), "roll must have the hash"),
        (window, roll.lines[:3], "users on the roll must be 4, got 3"),
        (replace(window, roll=Roll(twice).root), twice, "a key of its own"),
        (replace(window, roll=with_server.root), with_server.lines, "one is user 3's"),
        (other, roll.lines, "users on the roll must be 5"),
        (regrouped, roll.lines, "as many users of each size"),
    ):
        with pytest.raises(ValueError, match=words):
            WindowWithKeys(changed, Roll(lines))
    assert replace(window, sizes=window.sizes | {4: (1, 9)}).digest != window.digest
    assert HELPER in window.servers


def test_a_roll_is_mapped(tmp_path: Path) -> None:
    roll = make_roll([PrivateKeys.generate().public.verifying for _ in range(5)], [3, 1, 3, 2, 2])
    (tmp_path / "roll").write_bytes(roll.lines.tobytes())
    read = Roll.read(tmp_path / "roll")
    assert isinstance(read.lines, np.memmap)
    assert (read.root, len(read), list(read)) == (roll.root, 5, [0, 1, 2, 3, 4])
    assert read.sizes == {1: 1, 2: 2, 3: 2}
    assert read.rows_of({4, 0}).tolist() == [3, 2]
    assert 5 not in read
    assert -1 not in read
