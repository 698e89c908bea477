"""One envelope for every message: versioned, length-checked, addressed and signed.

    magic 4 | version 1 | kind 1 | session digest 32 | sender 4 | receiver 4 | length 8 | payload
    | Ed25519 signature 64, over the header and the payload's SHA-256

MASKED is signed over its statement (its first 32 bytes) and the SHA-256 of the rest, so that the
statement can be shown to others, as signed, without the vector.

Numbers are big-endian; vectors are little-endian 64-bit words. Nothing is optional, nothing may
follow, and a message is refused before its payload is read.
"""

import hashlib
import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum import errors
from train_distributed.secure_sum.keys import EVERYONE, SIGNATURE_BYTES, sign, verify
from train_distributed.secure_sum.prg import WORD
from train_distributed.secure_sum.session import Agreement, Session

MAGIC, VERSION = b"BSUM", 1
_HEADER = struct.Struct(">4sBB32sIIQ")
_DOMAIN = b"secure sum, version 1"
OVERHEAD = _HEADER.size + SIGNATURE_BYTES
STATEMENT_BYTES = 32
WITNESS_BYTES = 32 + SIGNATURE_BYTES
SUMMARY_BYTES = OVERHEAD + 32
Octets = bytes | memoryview


class Kind(IntEnum):
    """Kinds of payload; both protocols."""

    SHARE = 1  # user -> one aggregator of a window: its share of a report
    COMMIT = 3  # aggregator -> everyone: the set it agrees to open
    OPENING = 4  # aggregator -> everyone: its noised share of the sum over that set
    ORDER = 6  # operator -> aggregators: what to do
    JOB = 7  # leader -> helper: reports to be prepared
    VERDICTS = 8  # helper -> leader: what became of them
    ADVERTISE = 16  # user -> everyone: two public keys, a commitment, the seed of its list
    NEIGHBOURS = 17  # server -> user: its partners' ADVERTISE messages
    KEY_SHARES = 18  # user -> server: a packet for each partner
    INBOX = 19  # server -> user: who shared keys, and its partners' packets
    MASKED = 20  # user -> server: its vector under all masks
    SURVIVORS = 21  # server -> user: who sent a masked vector
    AGREED = 22  # user -> everyone: its signature on both sets
    UNMASK = 23  # server -> user: what to reveal, and the signatures that allow it
    REVEAL = 24  # user -> server: one share per user that dealt it some
    COMPLAINT = 25  # user -> everyone, in place of MASKED: a packet that is not as it must be
    ACCUSED = 26  # server -> user: the complaints about its packets
    DEFENCE = 27  # user -> server: what opens those packets
    CONVICTED = 28  # server -> user: proof that partners of its shared false secrets
    EXPOSED = 29  # user -> server: the seeds of its masks with these


@dataclass(frozen=True)
class Envelope:
    """A message whose header and signature have been checked."""

    kind: Kind
    sender: int
    content: memoryview  # the payload where it lies in the message
    rest: bytes = b""  # MASKED: SHA-256 of what follows the statement

    @cached_property
    def payload(self) -> bytes:
        """A copy of it; of vectors, better none is made."""
        return bytes(self.content)

    def check_once(self, taken: Container[int]) -> None:
        """Raises ReplayedMessage where one was taken of this sender before."""
        if self.sender in taken:
            raise errors.ReplayedMessage(
                f"{self.kind.name} must come once, got another of {self.sender}"
            )

    def check_server(self, session: Agreement) -> None:
        """Raises WrongSender unless a server has sent it."""
        if self.sender not in session.servers:
            raise errors.WrongSender(f"{self.kind.name} must come from a server, got {self.sender}")


def write(
    session: Agreement, kind: Kind, sender: int, receiver: int, payload: bytes, signing: bytes
) -> bytes:
    """A message to a party, or `EVERYONE`, signed with the sender's private Ed25519 key."""
    header = _HEADER.pack(MAGIC, VERSION, kind, session.digest, sender, receiver, len(payload))
    return b"".join((header, payload, sign(signing, _signed(header, *_digest(kind, payload)))))


def read(
    session: Agreement, message: bytes, receiver: int, largest: Mapping[Kind, int]
) -> Envelope:
    """Checks a message to this receiver from the outside in.

    `largest` holds the kinds that it takes, and the longest payload of each, in bytes.

    Raises:
        ProtocolError: the subclass that names what is wrong; the session is left as it was.
    """
    kind, sender, length = _checked(session, message, receiver, largest)
    limit = largest[kind]
    if len(message) > OVERHEAD + min(length, limit):
        raise errors.OversizedMessage(
            f"{kind.name} payload must be <= {limit} bytes and {length} as its header says, "
            f"got {len(message) - OVERHEAD}"
        )
    if len(message) < OVERHEAD + length:
        raise errors.TruncatedMessage(
            f"payload must be {length} bytes, got {len(message) - OVERHEAD}"
        )
    key = _key(session, sender, receiver)
    content = memoryview(message)[_HEADER.size : -SIGNATURE_BYTES]
    shown, rest = _digest(kind, content)
    verify(key, message[-SIGNATURE_BYTES:], _signed(message[: _HEADER.size], shown, rest))
    return Envelope(kind, sender, content, rest)


def summary(message: bytes) -> bytes:
    """Header, SHA-256 of the payload and signature: they show who has signed a message.

    Not of MASKED, whose signature is over two parts.
    """
    payload = hashlib.sha256(memoryview(message)[_HEADER.size : -SIGNATURE_BYTES]).digest()
    return message[: _HEADER.size] + payload + message[-SIGNATURE_BYTES:]


def check_summary(
    session: Agreement, shown: bytes, receiver: int, largest: Mapping[Kind, int]
) -> int:
    """Sender that has signed the message of which this is the `summary`.

    Raises:
        ProtocolError: nobody has, or not a message that `read` would take.
    """
    errors.check_bytes(SUMMARY_BYTES, summary=shown)
    kind, sender, length = _checked(session, shown, receiver, largest)
    if length > largest[kind]:
        raise errors.OversizedMessage(f"payload must be <= {largest[kind]} bytes, got {length}")
    key = _key(session, sender, receiver)
    statement = _DOMAIN + shown[:-SIGNATURE_BYTES]
    verify(key, shown[-SIGNATURE_BYTES:], statement)
    return sender


def split_messages(joined: bytes, size: int) -> list[bytes]:
    """Splits messages that were joined, each with a payload of `size` bytes.

    Raises:
        MalformedMessage: a length that does not fit.
    """
    step = OVERHEAD + size
    if len(joined) % step:
        raise errors.MalformedMessage(f"messages must be {step} bytes each, got {len(joined)}")
    return [joined[start : start + step] for start in range(0, len(joined), step)]


def payload_of(message: bytes) -> bytes:
    """Payload of a message that `read` has checked before."""
    return message[_HEADER.size : -SIGNATURE_BYTES]


def signature_of(message: bytes) -> bytes:
    """The signature of a message that `read` has checked before."""
    return message[-SIGNATURE_BYTES:]


def kind_of(message: bytes) -> str:
    """Kind that a message claims, in lower case.

    Raises:
        ProtocolError: too short to say, or no known kind.
    """
    kind = _claimed(message)[2]
    try:
        return Kind(kind).name.lower()
    except ValueError as error:
        raise errors.MalformedMessage(f"kind must be a known one, got {error}") from error


def _claimed(message: bytes) -> tuple[Any, ...]:
    """The fields of a header as it lies there, nothing checked but that it is whole."""
    if len(message) < OVERHEAD:
        raise errors.TruncatedMessage(f"message must be >= {OVERHEAD} bytes, got {len(message)}")
    return _HEADER.unpack_from(message)


def _checked(
    session: Agreement, message: bytes, receiver: int, largest: Mapping[Kind, int]
) -> tuple[Kind, int, int]:
    """Kind, sender and length of payload that a header claims, if such a message may come here."""
    magic, version, kind, digest, sender, to, length = _claimed(message)
    if (magic, version) != (MAGIC, VERSION):
        raise errors.MalformedMessage(
            f"message must be {MAGIC!r} version {VERSION}, got {magic!r} {version}"
        )
    if kind not in largest:
        expected = ", ".join(k.name for k in largest)
        raise errors.MalformedMessage(f"kind must be one of {expected}, got {kind}")
    if digest != session.digest:
        raise errors.WrongSession(f"session must be {session.digest.hex()}, got {digest.hex()}")
    if to not in (receiver, EVERYONE):
        raise errors.WrongReceiver(f"receiver must be {receiver}, got {to}")
    return Kind(kind), sender, length


def _key(session: Agreement, sender: int, receiver: int) -> bytes:
    key = session.verifying_key(sender)
    if key is None or sender == receiver:
        raise errors.WrongSender(f"sender must be another party of the session, got {sender}")
    return key


def words_to_bytes(words: NDArray[np.unsignedinteger]) -> bytes:
    """A vector as it travels."""
    return words.astype(words.dtype.newbyteorder("<"), copy=False).tobytes()


def bytes_to_words(payload: Octets, count: int) -> NDArray[np.uint64]:
    """The inverse of `words_to_bytes`; the result is read-only.

    Raises:
        MalformedMessage: not `count` words long.
    """
    errors.check_bytes(count * WORD.itemsize, vector=payload)
    return np.frombuffer(payload, WORD)


def check_vector(vector: NDArray[np.uint64], dimension: int) -> None:
    """Raises ValueError where a vector to be submitted is not (d,) uint64."""
    if vector.shape != (dimension,) or vector.dtype != np.uint64:
        raise ValueError(f"vector must be ({dimension},) uint64, got {vector.shape} {vector.dtype}")


def check_statement(
    session: Session, kind: Kind, sender: int, statement: bytes, witness: bytes
) -> None:
    """Checks that a user signed this statement (32 bytes) in its AGREED or MASKED message.

    The witness is the SHA-256 of what follows the statement in MASKED, and the signature.

    Raises:
        BadSignature: it did not.
    """
    receiver, length = EVERYONE, STATEMENT_BYTES
    if kind is Kind.MASKED:
        receiver, length = min(session.servers), length + WORD.itemsize * session.dimension
    header = _HEADER.pack(MAGIC, VERSION, kind, session.digest, sender, receiver, length)
    rest, signature = witness[:-SIGNATURE_BYTES], witness[-SIGNATURE_BYTES:]
    verify(session.users[sender], signature, _signed(header, statement, rest))


def _digest(kind: int, payload: Octets) -> tuple[Octets, bytes]:
    """Part of a payload that is signed as it is, and the hash of the rest (or nothing)."""
    if kind != Kind.MASKED:
        return payload, b""
    rest = hashlib.sha256(memoryview(payload)[STATEMENT_BYTES:]).digest()
    return payload[:STATEMENT_BYTES], rest


def _signed(header: bytes, shown: Octets, rest: bytes) -> bytes:
    digest = hashlib.sha256(shown)
    digest.update(rest)
    return _DOMAIN + header + digest.digest()
