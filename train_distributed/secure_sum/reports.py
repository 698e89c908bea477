"""A user's report to the two aggregators of a window, and what they say to each other about it.

    report   message to the leader | message to the helper, each sealed to its reader and signed
    message  nonce 16 | public share | sealed input share of `proofs.Pine`
    job      leader -> helper: for each report, the helper's message and the leader's prepare share
    verdicts helper -> leader: for each report, the prepare message, or why it is refused

A user sends its report to the leader, which passes the helper's message on. Both aggregators derive
the verify key of the proofs, which users must not know, from their own two keys.

The leader signs its acknowledgement, so that nobody else can make a user believe that its report is
held; the helper signs its verdicts, so that nothing between them can change what is added.
"""

import hashlib
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.proofs.field import Elements
from train_distributed.proofs.pine import (
    HELPER_BYTES,
    NONCE_BYTES,
    PUBLIC_BYTES,
    Pine,
    PrepareState,
)
from train_distributed.secure_sum.errors import BadSignature, MalformedMessage, WrongSender
from train_distributed.secure_sum.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    PrivateKeys,
    agree,
    exchange_key,
    open_seal,
    seal,
    sign,
    verify,
)
from train_distributed.secure_sum.prg import derive
from train_distributed.secure_sum.window import HELPER, LEADER, Window, WindowWithKeys
from train_distributed.secure_sum.wire import OVERHEAD, Envelope, Kind, payload_of, read, write

_HEAD = NONCE_BYTES + PUBLIC_BYTES
HELPER_MESSAGE_BYTES = OVERHEAD + _HEAD + SEAL_BYTES + HELPER_BYTES
MOST_JOB = 64  # reports in a job
_LENGTH = struct.Struct(">I")
Verdict = bytes | str  # the prepare message, or why the report is refused


@lru_cache(maxsize=256)
def proof_of(dimension: int, norm_bound: int) -> Pine:
    """The proof of a vector (d,) of whole numbers whose length is within the bound."""
    return Pine.for_bound(dimension=dimension, norm_bound=norm_bound)


def make_report(
    window: Window, user: int, keys: PrivateKeys, vector: NDArray[np.int64], norm_bound: int
) -> bytes:
    """Splits a vector (d,) int64, without noise; to send a report again is to send these bytes.

    Raises:
        ValueError: another shape, a vector longer than its bound, or a user beyond the roll.
    """
    check.within(f"[0, {window.enrolled - 1}]", user=user)
    nonce = secrets.token_bytes(NONCE_BYTES)
    public, shares = proof_of(window.dimension, norm_bound).shard(vector, nonce)
    messages = []
    for aggregator, share in zip((LEADER, HELPER), shares, strict=True):
        context = _context(window, user, aggregator, nonce + public)
        sealed = seal(window.servers[aggregator].sealing, share, context)
        payload = nonce + public + sealed
        messages.append(write(window, Kind.SHARE, user, aggregator, payload, keys.signing))
    return b"".join(messages)


def report_bytes(dimension: int, norm_bound: int) -> int:
    """Length of a report of a vector (d,), sealed, signed and proved."""
    share = proof_of(dimension, norm_bound).leader_bytes
    return OVERHEAD + _HEAD + SEAL_BYTES + share + HELPER_MESSAGE_BYTES


def check_report(window: WindowWithKeys, report: bytes) -> tuple[int, bytes, bytes]:
    """The user of a report, and its messages to leader and helper, whose signatures are checked.

    Raises:
        ProtocolError: no report of a user of this window.
    """
    messages = report[:-HELPER_MESSAGE_BYTES], report[-HELPER_MESSAGE_BYTES:]
    leader, helper = (
        _read(window, each, to) for each, to in zip(messages, (LEADER, HELPER), strict=True)
    )
    if leader.sender != helper.sender:
        raise WrongSender(f"report must be of one user, got {leader.sender} and {helper.sender}")
    return leader.sender, *messages


def acknowledge(window: Window, user: int, report: bytes, keys: PrivateKeys) -> bytes:
    """The leader's signature that it holds a user's report, of which this is the SHA-256."""
    return sign(keys.signing, _held(window, user, report))


def check_acknowledgement(window: Window, user: int, report: bytes, answer: bytes) -> None:
    """Raises BadSignature unless the leader has signed that it holds this report."""
    held = _held(window, user, hashlib.sha256(report).digest())
    try:
        verify(window.servers[LEADER].verifying, answer, held)
    except BadSignature as error:
        raise BadSignature("acknowledgement must be signed with its pinned key, is not") from error


@dataclass(frozen=True)
class Prepared:
    """A report's share at one aggregator, whose proof is not decided yet."""

    proof: Pine
    state: PrepareState
    share: bytes  # for the other aggregator
    seed: bytes  # of the helper's out share; the leader's is no seed

    def finish(self, message: bytes) -> Elements:
        """The out share (d,); raises InvalidShare unless the message is of both shares."""
        return self.proof.prepare_next(self.state, message)


class Preparer:
    """Opens and prepares the shares of one aggregator; it has no state.

    Raises:
        ValueError: keys that are not those of the window's aggregator.
    """

    def __init__(self, window: WindowWithKeys, aggregator: int, keys: PrivateKeys) -> None:
        if window.servers.get(aggregator) != keys.public:
            raise ValueError(
                f"keys must be those of aggregator {aggregator - LEADER} of the window"
            )
        self._window, self._aggregator = window, aggregator
        self._opening = exchange_key(keys.opening)
        other = LEADER if aggregator == HELPER else HELPER
        shared = agree(self._opening, window.servers[other].sealing)
        self._verify_key = derive(shared, b"verify key" + window.digest)

    def user_of(self, message: bytes) -> int:
        """The user that has signed a message to this aggregator; raises ProtocolError."""
        return _read(self._window, message, self._aggregator).sender

    def prepare(self, user: int, message: bytes) -> Prepared:
        """Prepares a message that `user_of` has checked.

        Raises:
            BadSeal, InvalidShare: the user made no share that can be added.
        """
        payload = payload_of(message)
        nonce, public = payload[:NONCE_BYTES], payload[NONCE_BYTES:_HEAD]
        context = _context(self._window, user, self._aggregator, payload[:_HEAD])
        share = open_seal(self._opening, payload[_HEAD:], context)
        proof = proof_of(self._window.dimension, self._window.norm_bound(user))
        place = self._aggregator - LEADER
        state, sent = proof.prepare_init(self._verify_key, place, nonce, public, share)
        return Prepared(proof, state, sent, share[:KEY_BYTES] if place else b"")

    def decide(self, own: Prepared, leader: bytes) -> tuple[bytes, Elements]:
        """The prepare message of a proof that holds, and the helper's out share.

        Raises:
            InvalidShare: it does not hold.
        """
        message = own.proof.prepare_message(leader, own.share)
        return message, own.finish(message)


def write_job(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Payload of a job: (the helper's message, the leader's prepare share) of each report."""
    return b"".join(message + _LENGTH.pack(len(share)) + share for message, share in items)


def read_job(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(The helper's message, the leader's prepare share) of each report in a job's payload.

    Raises:
        MalformedMessage: cut off.
    """
    while payload:
        message, rest = payload[:HELPER_MESSAGE_BYTES], payload[HELPER_MESSAGE_BYTES:]
        share, payload = _piece(rest)
        yield message, share


def write_verdicts(job: bytes, verdicts: Sequence[Verdict]) -> bytes:
    """Payload of the answer to a job, of which this is the message."""
    found = [b"d" + v if isinstance(v, bytes) else b"r" + v.encode()[:400] for v in verdicts]
    return hashlib.sha256(job).digest() + b"".join(_LENGTH.pack(len(v)) + v for v in found)


def read_verdicts(payload: bytes, job: bytes, count: int) -> list[Verdict]:
    """The helper's verdicts in the answer to this job of `count` reports, in their order.

    Raises:
        MalformedMessage: of another job, or not one verdict for each report.
    """
    verdicts, rest = list[Verdict](), payload[32:]
    while rest:
        piece, rest = _piece(rest)
        verdicts.append(piece[1:] if piece[:1] == b"d" else piece[1:].decode(errors="replace"))
    if payload[:32] != hashlib.sha256(job).digest() or len(verdicts) != count:
        raise MalformedMessage(f"verdicts must be of this job's {count} reports, are not")
    return verdicts


def job_bytes(window: WindowWithKeys) -> int:
    """Length of the longest payload of a job."""
    share = proof_of(window.dimension, window.longest).prepare_bytes
    return MOST_JOB * (HELPER_MESSAGE_BYTES + _LENGTH.size + 2 * share)


def seed_share(window: WindowWithKeys, user: int, seed: bytes) -> Elements:
    """The helper's out share (d,) again, from the seed that it kept."""
    proof = proof_of(window.dimension, window.norm_bound(user))
    return proof.helper_share(seed)[: window.dimension]


def _piece(rest: bytes) -> tuple[bytes, bytes]:
    if len(rest) < _LENGTH.size or len(rest) < _LENGTH.size + (n := _LENGTH.unpack(rest[:4])[0]):
        raise MalformedMessage("pieces must be whole, one is cut off")
    return rest[_LENGTH.size : _LENGTH.size + n], rest[_LENGTH.size + n :]


def _read(window: WindowWithKeys, message: bytes, aggregator: int) -> Envelope:
    """A message to an aggregator, of just the length that its user's must have."""
    if aggregator == HELPER:
        longest = HELPER_BYTES
    else:
        longest = proof_of(window.dimension, window.longest).leader_bytes
    envelope = read(window, message, aggregator, {Kind.SHARE: _HEAD + SEAL_BYTES + longest})
    if envelope.sender not in window.users:
        raise WrongSender(f"report must be of a user, got {envelope.sender}")
    return envelope


def _context(window: Window | WindowWithKeys, user: int, aggregator: int, head: bytes) -> bytes:
    """Bytes that a sealed share is bound to: its window, its parties and its head."""
    parties = user.to_bytes(4, "big") + aggregator.to_bytes(4, "big")
    return b"report, version 2" + window.digest + parties + head


def _held(window: Window, user: int, report: bytes) -> bytes:
    return b"report held, version 2" + window.digest + user.to_bytes(4, "big") + report
