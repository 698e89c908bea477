"""Orders that the operator signs to a party, and a party's signature that it is present.

    PRESENT   challenge 32 | nonce 32 | node u64       who is here, and takes part in that session?
    START     nonce 32 | who is present, a bitmap      the session begins
    END       nonce 32 | opened u8                     the session is over

An order is a request byte, its body, and the operator's signature over both and the federation's
digest, so nobody else starts anything, and no order means anything in another federation. The
answer to PRESENT is signed with the party's own key over the whole order, which names the node it
was sent to: an answer shown from another node says so.
"""

import struct

from train_distributed.flower.documents.federation import Federation, name_of
from train_distributed.secure_sum.errors import BadSignature, MalformedMessage, WrongSender
from train_distributed.secure_sum.keys import SIGNATURE_BYTES, PrivateKeys, sign, verify
from train_distributed.secure_sum.parties import FIRST_SERVER

NONCE_BYTES = 32
PRESENT_BYTES = 2 * NONCE_BYTES + 8
_ORDER, _HERE = b"federation order, version 1", b"federation presence, version 1"
_NAME = struct.Struct(">IB")


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
    operator = bytes.fromhex(federation.servers[0]["verifying"])
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
