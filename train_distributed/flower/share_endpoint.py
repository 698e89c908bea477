"""Endpoint steps of both kinds of `shares`, in addition to the protocol's own."""

import itertools
import struct
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from train_distributed.flower.blobs import split
from train_distributed.flower.documents.federation import BATCH_USERS, Federation
from train_distributed.flower.request_handler import answer_bytes
from train_distributed.secure_sum.errors import MalformedMessage, OutOfOrder, ProtocolError
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.replicated import ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.shares import SeedServer, SharesUser, VectorServer

Machine = SeedServer | VectorServer | ReplicaServer
REFUSAL_BYTES = 400  # of a refusal in words, at most
_PLACE = struct.Struct(">I")


class Submitter:
    """A user's side: its messages in portions, each when it is asked for, then its word as witness.

    `shares` has two portions: the seeds, and the vector once all servers hold those. So neither
    the relay nor a server ever keeps a vector that it cannot use yet. Replicas have one.
    """

    def __init__(
        self,
        federation: Federation,
        nonce: bytes,
        identity: int,
        keys: PrivateKeys,
        journal: Journal,
        vector: Callable[[], NDArray[np.uint64]],
    ) -> None:
        """Reveals nothing yet, and calls `vector` when the first portion is asked for."""
        servers = len(federation.servers)
        if federation.protocol == "shares-replicated":
            user = ReplicatedUser(federation.replicated(nonce), identity, keys, journal)
            self._sizes = [servers]
        else:
            user = SharesUser(federation.session(nonce), identity, keys, journal)
            self._sizes = [servers - 1, 1]
        self._user, self._vector, self._given = user, vector, 0
        self._messages: Iterator[tuple[int, bytes]] = iter(())

    def portion(self, number: bytes) -> list[bytes]:
        """A portion; `number` is one byte, from 0 on.

        Raises:
            OutOfOrder: it is not the next one, or the one before could not be made.
        """
        if number != bytes([self._given]) or self._given == len(self._sizes):
            raise OutOfOrder(f"NEXT must be of portion {self._given}, got {number[:4]!r}")
        if self._given == 0:
            self._messages = self._user.submit(self._vector())
        size = self._sizes[self._given]
        self._given += 1
        made = [message for _, message in itertools.islice(self._messages, size)]
        if len(made) < size:  # an earlier one has failed half-way
            raise OutOfOrder(f"portion must be made as a whole, got {len(made)} of {size} messages")
        return made

    def receive(self, commits: list[bytes]) -> list[bytes]:
        """Its word for a set that servers have signed; see `ReplicatedUser.witness`."""
        if not isinstance(self._user, ReplicatedUser):
            raise OutOfOrder("witnesses must be asked in shares-replicated alone")
        return [self._user.witness(commits)]


def receive_all(machine: Machine, messages: list[bytes]) -> list[bytes]:
    """Takes messages one by one.

    Returns:
        For each that is refused, its place in the list (u32) and why.

    Raises:
        MalformedMessage: more of them than a batch has, whose refusals would be longer than they.
    """
    if len(messages) > BATCH_USERS:
        raise MalformedMessage(f"messages must be <= {BATCH_USERS}, got {len(messages)}")
    refused = []
    for place, message in enumerate(messages):
        try:
            machine.receive(message)
        except ProtocolError as error:
            text = f"{type(error).__name__}: {error}".encode()
            refused.append(_PLACE.pack(place) + text[:REFUSAL_BYTES])
    return refused


def refusals_bytes(messages: int) -> int:
    """The longest answer that refuses so many messages, one by one."""
    return answer_bytes(*[_PLACE.size + REFUSAL_BYTES] * messages, overhead=0)


def read_refusal(refusal: bytes) -> tuple[int, str]:
    """Place and words of a refusal; whatever a server sends, printable.

    Raises:
        MalformedMessage: too short or too long.
    """
    if not _PLACE.size <= len(refusal) <= _PLACE.size + REFUSAL_BYTES:
        raise MalformedMessage(f"refusal must be 4 to {REFUSAL_BYTES} bytes, got {len(refusal)}")
    return _PLACE.unpack_from(refusal)[0], ascii(refusal[_PLACE.size :])[2:-1]


def close(machine: Machine, body: bytes) -> list[bytes]:
    """A server's HOLDING; a replicated one first takes a round's messages, and reports refusals."""
    if isinstance(machine, ReplicaServer):
        refused = receive_all(machine, split(body))
        return [machine.hold(), *refused]
    if isinstance(machine, VectorServer):
        raise OutOfOrder("CLOSE must go to a server of seeds, got the last")
    return [machine.close()]


def settle(machine: Machine, body: bytes) -> list[bytes]:
    """Ends a round of a replicated server: body is the lost servers (u32 each), then messages."""
    if not isinstance(machine, ReplicaServer):
        raise OutOfOrder("SETTLE must go to a replicated server")
    blobs = split(body)
    if not blobs or len(blobs[0]) % _PLACE.size:
        raise MalformedMessage("SETTLE must begin with the lost servers, does not")
    refused = receive_all(machine, blobs[1:])
    machine.settle([server for (server,) in _PLACE.iter_unpack(blobs[0])])
    return refused
