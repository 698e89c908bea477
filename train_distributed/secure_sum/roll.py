"""Roll of a sum's users: one line each, in a file that is mapped, under one hash.

The hash is the Merkle tree hash of RFC 9162, Sec. 2.1, over the lines: leaves and nodes are hashed
with different first bytes, so that no node passes for a leaf, and the number of lines, which is
agreed on, gives the tree its shape. A user proves to itself with about log2(w) hashes that its key,
its rows and its name are at its place; whoever has the whole roll computes the hash again.

That no key is on the roll twice, and how many users have how many rows, only the whole roll shows:
both aggregators look, and refuse another.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.keys import KEY_BYTES

NAME_BYTES = 40
USER = np.dtype([("key", np.uint8, KEY_BYTES), ("rows", "<u8"), ("name", f"S{NAME_BYTES}")])
BLOCK = 2**8  # lines under one hash that is kept; a power of two, so a node of the tree
PIECE = 2**16  # lines that are looked at together
_LEAF, _NODE = b"\0blind averaging, roll, version 1\n", b"\1"


@dataclass(frozen=True)
class User:
    """One line of a roll."""

    key: bytes  # Ed25519
    rows: int
    name: str
    proof: tuple[bytes, ...] = ()  # that the line is at its place; empty where the roll is at hand

    @property
    def line(self) -> bytes:
        """The line as it is written and hashed."""
        entry = np.zeros(1, USER)
        entry["key"], entry["rows"] = np.frombuffer(self.key, np.uint8), self.rows
        entry["name"] = self.name.encode()
        return entry.tobytes()

    def root(self, place: int, count: int) -> bytes | None:
        """Hash of the roll of `count` lines in which this one is at `place`; None: no proof."""
        node, proof = _leaf(self.line), list(self.proof)
        if not 0 <= place < count:
            return None
        while count > 1:
            if place ^ 1 < count:  # else it has no neighbour, and is the node above as it is
                if not proof:
                    return None
                pair = (proof.pop(0), node) if place % 2 else (node, proof.pop(0))
                node = _node(*pair)
            place, count = place // 2, (count + 1) // 2
        return None if proof else node


class Roll(Mapping[int, User]):
    """All users by their numbers, from 0.

    Args:
        lines: (w,) `USER`, w >= 1; mapped or in memory.
    """

    def __init__(self, lines: NDArray[np.void]) -> None:
        self.lines = lines

    @staticmethod
    def read(path: Path) -> "Roll":
        """The roll in a file, which is mapped.

        Raises:
            ValueError: not a whole number of lines.
        """
        size = path.stat().st_size
        if not size or size % USER.itemsize:
            raise ValueError(f"{path} must hold lines of {USER.itemsize} bytes, got {size} bytes")
        return Roll(np.memmap(path, USER, "r"))

    def __getitem__(self, number: int) -> User:
        if not 0 <= number < len(self.lines):
            raise KeyError(number)
        line = self.lines[number]
        return User(line["key"].tobytes(), int(line["rows"]), line["name"].decode(errors="replace"))

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.lines)))

    def rows_of(self, users: Iterable[int]) -> NDArray[np.int64]:
        """(m,) rows of these users, in the order of their numbers."""
        return self.lines["rows"][sorted(users)].astype(np.int64)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Rows -> number of users that have so many."""
        found: dict[int, int] = {}
        for piece in self._pieces():
            for rows, users in zip(*np.unique(piece["rows"], return_counts=True), strict=True):
                found[int(rows)] = found.get(int(rows), 0) + int(users)
        return dict(sorted(found.items()))

    @property
    def root(self) -> bytes:
        """Merkle tree hash of all lines."""
        return self._top[-1][0]

    def placed(self, number: int) -> User:
        """A user's line with the proof of its place."""
        block, place = divmod(number, BLOCK)
        proof = *_path(self._levels(block), place), *_path(self._top, block)
        return replace(self[number], proof=proof)

    def find(self, key: bytes) -> int | None:
        """Number of the user with this key; None for a stranger."""
        heads, order = self._by_head
        head = np.frombuffer(key[:8], np.uint64)
        for place in range(*(np.searchsorted(heads, head, side)[0] for side in ("left", "right"))):
            if self.lines[order[place]]["key"].tobytes() == key:
                return int(order[place])
        return None

    def has_name(self, name: str) -> bool:
        """Whether a user is called so."""
        return any((piece["name"] == name.encode()).any() for piece in self._pieces())

    def check(self, root: bytes, sizes: Mapping[int, int], others: Sequence[bytes] = ()) -> None:
        """Compares the roll with what was agreed on.

        Args:
            root: its hash.
            sizes: rows -> users.
            others: keys that are no user's.

        Raises:
            ValueError: another roll, or a key that is on it twice.
        """
        if self.root != root:
            raise ValueError(f"roll must have the hash {root.hex()}, has {self.root.hex()}")
        if self.sizes != dict(sizes):
            raise ValueError("roll must have as many users of each size as agreed, has others")
        self.check_distinct("key")
        for key in others:
            if (user := self.find(key)) is not None:
                raise ValueError(f"servers must have keys of their own, one is user {user}'s")

    def check_distinct(self, what: str) -> None:
        """Raises ValueError where two lines have the same key, which counts twice, or name."""
        words = self.lines.dtype[what].itemsize // 8
        odd = np.array([secrets.randbits(64) | 1 for _ in range(words)], np.uint64)
        hashes = np.empty(len(self.lines), np.uint64)
        for start, piece in zip(range(0, len(self.lines), PIECE), self._pieces(), strict=True):
            mixed = np.ascontiguousarray(piece[what]).view(np.uint64).reshape(-1, words) * odd
            hashes[start : start + PIECE] = (mixed ^ mixed >> np.uint64(32)).sum(1)
        rising = np.sort(hashes)
        alike = np.unique(rising[1:][rising[1:] == rising[:-1]])
        first: dict[bytes, int] = {}
        for place in np.flatnonzero(np.isin(hashes, alike)).tolist() if len(alike) else ():
            other = first.setdefault(self.lines[place][what].tobytes(), place)
            if other != place:
                names = " and ".join(f"user {n} ({self[n].name})" for n in (other, place))
                raise ValueError(f"every user must have a {what} of its own, {names} share one")

    def _pieces(self) -> Iterator[NDArray[np.void]]:
        for start in range(0, len(self.lines), PIECE):
            yield self.lines[start : start + PIECE]

    @cached_property
    def _by_head(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """First eight bytes of all keys, rising, and whose they are."""
        keys = (np.ascontiguousarray(piece["key"][:, :8]) for piece in self._pieces())
        heads = np.concatenate([each.view(np.uint64).ravel() for each in keys])
        order = np.argsort(heads)
        return heads[order], order

    @cached_property
    def _top(self) -> list[list[bytes]]:
        blocks = range(-(-len(self.lines) // BLOCK))
        return _levels([self._levels(block)[-1][0] for block in blocks])

    def _levels(self, block: int) -> list[list[bytes]]:
        octets, size = self.lines[block * BLOCK : (block + 1) * BLOCK].tobytes(), USER.itemsize
        return _levels([_leaf(octets[i : i + size]) for i in range(0, len(octets), size)])


def _levels(nodes: list[bytes]) -> list[list[bytes]]:
    """Hashes from these up to the one at the top; one without a neighbour goes up as it is."""
    levels = [nodes]
    while len(nodes) > 1:
        paired, single = len(nodes) // 2 * 2, nodes[len(nodes) // 2 * 2 :]
        nodes = [_node(nodes[i], nodes[i + 1]) for i in range(0, paired, 2)] + single
        levels.append(nodes)
    return levels


def _path(levels: list[list[bytes]], place: int) -> Iterator[bytes]:
    for nodes in levels[:-1]:
        if place ^ 1 < len(nodes):
            yield nodes[place ^ 1]
        place //= 2


def _leaf(line: bytes) -> bytes:
    return hashlib.sha256(_LEAF + line).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
