"""Requests to a party and its answers: their bytes, and the orders that the operator signs.

    START     nonce 32 | who is present, a bitmap      the session begins; answer: first messages
    DELIVER   messages for this party                  answer: its messages
    PRESENT   challenge 32 | nonce 32 | node u64       who is here, and takes part in that session?
    END       nonce 32 | opened u8                     the session is over
    CENTRE    centre, float64                          the second sum begins (`centre.py`)

A request is one byte (what to do) and its body; an answer is one byte (done or refused) and a list
of messages, or the refusal in words. All but DELIVER are orders: they end with the operator's
signature over request and the federation's digest, so nobody else starts anything, and no order
means anything in another federation. The answer to PRESENT is signed with the party's own key over
the whole order, which names the node it was sent to: an answer shown from another node says so.

A party fetches requests by polls. A poll is `party u32 | name 32 | signature 64 | answer`: the name
is the SHA-256 of the request answered, zeros without one, and the signature is the party's over the
federation's digest, party, name and the SHA-256 of the answer.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from train_distributed.federation.documents.federation import Federation
from train_distributed.secure_sum.errors import BadSignature, MalformedMessage, WrongSender
from train_distributed.secure_sum.keys import (
    FIRST_SERVER,
    SIGNATURE_BYTES,
    PrivateKeys,
    name_of,
    sign,
    verify,
)

NONCE_BYTES = 32
PRESENT_BYTES = 2 * NONCE_BYTES + 8
DONE, REFUSED = b"\0", b"\1"
_ORDER, _HERE = b"federation order, version 1", b"federation presence, version 1"
_NAME = struct.Struct(">IB")
POLL_SECONDS = 20.0  # that a poll waits for a request
QUESTION_BYTES = 32  # of a request's name
NO_QUESTION = bytes(QUESTION_BYTES)
_POLL, _PARTY = b"federation relay, version 1", struct.Struct(">I")
_SIGNED = _PARTY.size + QUESTION_BYTES
POLL_HEAD_BYTES = _SIGNED + SIGNATURE_BYTES


class Request(IntEnum):
    """First byte of a request."""

    START = 0
    DELIVER = 1
    PRESENT = 5
    END = 6
    CENTRE = 10


def join(blobs: Iterable[bytes]) -> bytes:
    """Joins as count u32 | (length u64 | content)*.

    Examples:
        >>> split(join([b"seed", b""]))
        [b'seed', b'']
    """
    items = list(blobs)
    parts = [struct.pack(">I", len(items))]
    for blob in items:
        parts += [struct.pack(">Q", len(blob)), blob]
    return b"".join(parts)


def split(joined: bytes) -> list[bytes]:
    """The inverse of `join`.

    Raises:
        MalformedMessage: lengths that do not add up.
    """
    if len(joined) < 4:
        raise MalformedMessage(f"list must be >= 4 bytes, got {len(joined)}")
    (count,) = struct.unpack_from(">I", joined)
    at, blobs = 4, list[bytes]()
    for _ in range(count):
        if at + 8 > len(joined):
            raise MalformedMessage(f"list must hold {count} items, got {len(blobs)}")
        (length,) = struct.unpack_from(">Q", joined, at)
        blobs.append(joined[at + 8 : at + 8 + length])
        at += 8 + length
    if at != len(joined):
        raise MalformedMessage(f"list must be {at} bytes, got {len(joined)}")
    return blobs


def words(error: Exception) -> str:
    """An error as it is reported: its name and what it says."""
    return f"{type(error).__name__}: {error}"


def write_order(federation: Federation, kind: int, body: bytes, keys: PrivateKeys) -> bytes:
    """A signed request; the operator's."""
    return (
        bytes([kind]) + body + sign(keys.signing, _ORDER + federation.digest + bytes([kind]) + body)
    )


def read_order(federation: Federation, kind: int, signed: bytes, size: int) -> bytes:
    """The body of an order, without its kind and signature.

    Args:
        federation: whose operator must have signed.
        kind: of the request.
        signed: what followed the kind.
        size: bytes that the body must have.

    Raises:
        MalformedMessage: another length.
        BadSignature: not this federation's operator's, or changed since.
    """
    if len(signed) != size + SIGNATURE_BYTES:
        raise MalformedMessage(f"order must be {size + SIGNATURE_BYTES} bytes, got {len(signed)}")
    body, signature = signed[:size], signed[size:]
    operator = bytes.fromhex(federation.servers[0].verifying)
    try:
        verify(operator, signature, _ORDER + federation.digest + bytes([kind]) + body)
    except BadSignature as error:
        raise BadSignature(
            f"order must be signed by the operator of federation {federation.digest.hex()[:16]}, "
            "is not: has the operator another copy of federation.json? Compare digests"
        ) from error
    return body


def write_presence(
    federation: Federation, order: bytes, party: int, willing: bool, keys: PrivateKeys
) -> bytes:
    """A party's answer to PRESENT: who it is, and whether it can take part."""
    head = _NAME.pack(party, willing)
    return head + sign(keys.signing, _HERE + federation.digest + order + head)


def read_presence(federation: Federation, order: bytes, answer: bytes) -> tuple[int, bool]:
    """Party that is present, proven by its signature, and whether it can take part.

    Raises:
        MalformedMessage: another length.
        WrongSender: no party of the federation.
        BadSignature: not signed by that party over this order.
    """
    if len(answer) != _NAME.size + SIGNATURE_BYTES:
        raise MalformedMessage(f"presence must be {_NAME.size + SIGNATURE_BYTES} bytes")
    head, signature = answer[: _NAME.size], answer[_NAME.size :]
    party, willing = _NAME.unpack(head)
    key = federation.verifying_key(party)
    if key is None or party == FIRST_SERVER:
        raise WrongSender(f"presence must be of another party, got {name_of(party)}")
    verify(key, signature, _HERE + federation.digest + order + head)
    return party, bool(willing)


@dataclass(frozen=True)
class Poll:
    """A party's poll: it is here, and brings the answer to the request of this name."""

    party: int
    name: bytes
    answer: bytes


def name_of_question(request: bytes) -> bytes:
    """SHA-256 of a request, by which its answer names it."""
    return hashlib.sha256(request).digest()


def write_poll(federation: Federation, poll: Poll, keys: PrivateKeys) -> tuple[bytes, bytes]:
    """A poll's body, and what its header shows: the hash of the answer in place of the answer."""
    signed = _PARTY.pack(poll.party) + poll.name + hashlib.sha256(poll.answer).digest()
    signature = sign(keys.signing, _POLL + federation.digest + signed)
    return signed[:_SIGNED] + signature + poll.answer, signed + signature


def read_poll(federation: Federation, body: bytes) -> Poll:
    """A poll that one of the federation's users has signed.

    Raises:
        MalformedMessage, BadSignature: as `poll_signer`.
    """
    head, answer = body[:POLL_HEAD_BYTES], body[POLL_HEAD_BYTES:]
    hashed = hashlib.sha256(answer).digest()
    party = poll_signer(federation, head[:_SIGNED] + hashed + head[_SIGNED:])
    return Poll(party, head[_PARTY.size : _SIGNED], answer)


def poll_signer(federation: Federation, shown: bytes) -> int:
    """The user that has signed a poll, from what its header shows.

    Raises:
        MalformedMessage: another length.
        BadSignature: no user of the federation, or not signed by it.
    """
    if len(shown) != POLL_HEAD_BYTES + QUESTION_BYTES:
        raise MalformedMessage(f"poll must be >= {POLL_HEAD_BYTES} bytes, got fewer")
    (party,) = _PARTY.unpack_from(shown)
    key = None if party >= FIRST_SERVER else federation.verifying_key(party)
    if key is None:
        raise BadSignature(f"poll must be of a user of the federation, got {party}")
    signed, signature = shown[:-SIGNATURE_BYTES], shown[-SIGNATURE_BYTES:]
    verify(key, signature, _POLL + federation.digest + signed)
    return party
