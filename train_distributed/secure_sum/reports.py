"""A user's report to the aggregators of a window, and how an aggregator checks what arrives.

As in `shares.py`, the first aggregators get a seed each and the last one the vector minus their
streams, sealed and signed. Reports come at any time and are sent again until they are acknowledged,
so:

* all parts of a report carry the same 16 random bytes, its *tag*: parts of two reports of one user
  (of a user that forgot its first one) never meet in a sum, which they would make meaningless;
* an aggregator of seeds answers, once the seed is on its disk, with a *receipt*: a MAC for the last
  aggregator over user and tag. The last aggregator takes a vector with the receipts of all others
  only. So it holds none that another lacks: its set is the intersection of all sets.

Every aggregator signs its acknowledgement, so that nobody else can make a user believe that its
report is held. A receipt's key is derived from the two aggregators' X25519 keys (static
Diffie-Hellman), so that it costs a hash and not a signature. An aggregator that forges receipts, or
forgets what it gave one for, ends the window at its commitment (`aggregator.py`); it opens nothing.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.errors import BadSignature, MalformedMessage, ProtocolError
from train_distributed.secure_sum.keys import (
    SEAL_BYTES,
    SIGNATURE_BYTES,
    PrivateKeys,
    agree,
    exchange_key,
    open_seal,
    seal,
    sign,
    verify,
)
from train_distributed.secure_sum.prg import (
    SEED_BYTES,
    Words,
    add_stream,
    derive,
    new_seed,
    subtract_stream,
)
from train_distributed.secure_sum.session import Agreement
from train_distributed.secure_sum.shares import share_context
from train_distributed.secure_sum.window import Window, WindowWithKeys
from train_distributed.secure_sum.wire import (
    OVERHEAD,
    Kind,
    bytes_to_words,
    check_vector,
    read,
    words_to_bytes,
    write,
)

TAG_BYTES = 16
RECEIPT_BYTES = 32


def make_report(
    window: Window, user: int, keys: PrivateKeys, vector: NDArray[np.uint64]
) -> dict[int, bytes]:
    """Splits a vector into one message per aggregator; to send again is to send these again.

    The vector is (d,) uint64, integers plus this user's noise, and taken modulo 2^bits. The last
    aggregator's message is to be sent with the receipts of all others.

    Raises:
        ValueError: a vector of another shape or type, or a user that is not on the roll.
    """
    check_vector(vector, window.dimension)
    check.within(f"[0, {window.enrolled - 1}]", user=user)
    *first, last = sorted(window.servers)
    tag, masked = secrets.token_bytes(TAG_BYTES), vector.astype(window.word)
    parts: dict[int, bytes] = {aggregator: new_seed() for aggregator in first}
    for seed in parts.values():
        subtract_stream(masked, seed)
    parts[last] = words_to_bytes(masked)
    messages = {}
    for aggregator, part in parts.items():
        context = share_context(window, user, aggregator) + tag
        sealed = tag + seal(window.servers[aggregator].sealing, part, context)
        messages[aggregator] = write(window, Kind.SHARE, user, aggregator, sealed, keys.signing)
    return messages


def part_bytes(window: Agreement, aggregator: int) -> int:
    """Length of what an aggregator is sent: a seed, or the vector."""
    last = aggregator == max(window.servers)
    return window.word.itemsize * window.dimension if last else SEED_BYTES


def message_bytes(window: Agreement, aggregator: int) -> int:
    """Length of the message in which it comes, without receipts."""
    return OVERHEAD + TAG_BYTES + SEAL_BYTES + part_bytes(window, aggregator)


def acknowledge(window: Agreement, user: int, message: bytes, keys: PrivateKeys) -> bytes:
    """An aggregator's signature that it holds a user's message, of which this is the SHA-256."""
    return sign(keys.signing, _held(window, user, message))


def check_acknowledgement(
    window: Window, aggregator: int, user: int, message: bytes, answer: bytes
) -> bytes:
    """The receipt after an acknowledgement, in an answer without its first byte.

    Raises:
        BadSignature: the aggregator has not signed that it holds this message.
    """
    held = _held(window, user, hashlib.sha256(message).digest())
    try:
        verify(window.servers[aggregator].verifying, answer[:SIGNATURE_BYTES], held)
    except BadSignature as error:
        raise BadSignature("acknowledgement must be signed with its pinned key, is not") from error
    return answer[SIGNATURE_BYTES:]


def _held(window: Agreement, user: int, message: bytes) -> bytes:
    return b"report held, version 1" + window.digest + user.to_bytes(4, "big") + message


@dataclass(frozen=True)
class Part:
    """One report's part that passed all checks."""

    user: int
    tag: bytes
    message: bytes  # SHA-256 of the message: the same again is no other report
    seed: bytes  # empty at the last aggregator, which keeps no vector


@dataclass(frozen=True)
class Checked:
    """Parts found in a slice of the messages that arrived."""

    found: list[Part | str]  # for each message its part, or why it is refused
    total: Words  # (d,) sum of the parts


class Receipts:
    """The receipts that an aggregator gives, or those that the last one checks."""

    def __init__(self, window: Agreement, aggregator: int, keys: PrivateKeys) -> None:
        last, own = max(window.servers), exchange_key(keys.opening)
        others = sorted(set(window.servers) - {last}) if aggregator == last else [last]
        self._keys = []
        for other in others:
            pair = (other if aggregator == last else aggregator).to_bytes(4, "big")
            shared = agree(own, window.servers[other].sealing)
            self._keys.append(derive(shared, b"receipt" + window.digest + pair))
        self.length = RECEIPT_BYTES * len(others) if aggregator == last else 0  # with a message

    def give(self, user: int, tag: bytes) -> bytes:
        """The receipts for a report: an aggregator of seeds gives one."""
        text = user.to_bytes(4, "big") + tag
        return b"".join(hmac.digest(key, text, "sha256") for key in self._keys)

    def check(self, user: int, tag: bytes, receipts: bytes) -> None:
        """Raises BadSignature unless these are the receipts of all aggregators of seeds."""
        if not hmac.compare_digest(self.give(user, tag), receipts):
            raise BadSignature(f"report of user {user} must have all other aggregators' receipts")


class Checker:
    """Checks messages, opens and adds their parts: all that costs time, and needs no state."""

    def __init__(self, window: WindowWithKeys, aggregator: int, keys: PrivateKeys) -> None:
        self._window, self._aggregator = window, aggregator
        self._opening = exchange_key(keys.opening)
        self._receipts = Receipts(window, aggregator, keys)
        self._size = part_bytes(window, aggregator)

    def __call__(self, messages: Sequence[bytes]) -> Checked:
        """Looks at messages, each followed by its receipts; no user may be named twice."""
        total = np.zeros(self._window.dimension, self._window.word)
        found: list[Part | str] = []
        for message in messages:
            try:
                found.append(self._add(message, total))
            except ProtocolError as error:
                found.append(f"{type(error).__name__}: {error}")
        return Checked(found, total)

    def _add(self, request: bytes, total: Words) -> Part:
        end = len(request) - self._receipts.length
        message, receipts = request[: max(0, end)], request[max(0, end) :]
        longest = TAG_BYTES + SEAL_BYTES + self._size
        envelope = read(self._window, message, self._aggregator, {Kind.SHARE: longest})
        user, payload = envelope.sender, envelope.payload
        if user not in self._window.users or len(payload) != longest:
            raise MalformedMessage(f"report must be {longest} bytes of a user, got {len(payload)}")
        tag = payload[:TAG_BYTES]
        if self._receipts.length:
            self._receipts.check(user, tag, receipts)
        context = share_context(self._window, user, self._aggregator) + tag
        part = open_seal(self._opening, payload[TAG_BYTES:], context)
        if self._receipts.length:
            total += bytes_to_words(part, self._window.dimension, self._window.word)
            part = b""
        else:
            add_stream(total, part)
        return Part(user, tag, hashlib.sha256(message).digest(), part)
