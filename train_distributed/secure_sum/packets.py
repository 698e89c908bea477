"""Packets between partners in protocol `secagg`: a signed word that they mask together, and shares.

A *word* is the sender's signature over the session, both users and both advertisements. To a user
on its list the sender *deals*: the same signature covers

    X25519 key used once 32 | AES-256-GCM of both shares 82 | SHA-256 of either share 64

sealed to the receiver's advertised key. The receiver sees at once whether its shares are what the
server has the hashes of. If not, it names the packet's SHA-256 in a signed COMPLAINT. The dealer
answers it with the private half of the key used once, which opens this packet and no other; an
honest dealer does so only for the very packet that it sent, whose honest receiver never complains,
so only a corrupt receiver's own shares are exposed. Whoever has that key can tell who was wrong.
"""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import ArrayLike

from train_distributed.secure_sum import keys
from train_distributed.secure_sum.errors import BadSeal, BadSignature, InconsistentShares
from train_distributed.secure_sum.prg import derive
from train_distributed.secure_sum.secagg import Advert, SecAgg
from train_distributed.secure_sum.shamir import SHARE_BYTES

HASH_BYTES = 32
WORD_BYTES = keys.SIGNATURE_BYTES
_SEALED = keys.KEY_BYTES + 2 * SHARE_BYTES + keys.TAG_BYTES
DEAL_BYTES = _SEALED + 2 * HASH_BYTES + keys.SIGNATURE_BYTES
HASHES = slice(_SEALED, _SEALED + 2 * HASH_BYTES)  # the part of a deal that shows both hashes
_HASHED = np.dtype(
    [
        ("session", f"V{len(b'share') + 32}"),
        *(("dealer", ">u4"), ("holder", ">u4"), ("which", "u1")),
        ("share", f"V{SHARE_BYTES}"),
    ]
)
SEED, KEY = 0, 1  # the two secrets that a deal holds shares of


@dataclass(frozen=True)
class Link:
    """From whom a packet is, and for whom."""

    setup: SecAgg
    sender: int
    receiver: int
    adverts: tuple[Advert, Advert]  # the sender's, the receiver's

    @property
    def context(self) -> bytes:
        """Bytes that signature and seal are bound to."""
        ends = struct.pack(">II", self.sender, self.receiver)
        adverts = hashlib.sha256(self.adverts[0].payload + self.adverts[1].payload).digest()
        return b"secure sum, packet" + self.setup.session.digest + ends + adverts


def write_deal(
    link: Link, shares: tuple[bytes, bytes], once: bytes, signing: Ed25519PrivateKey
) -> bytes:
    """A signed word with shares of the seed and of the key, 33 bytes each.

    `once` are 32 private bytes for this packet alone.

    Raises:
        BadSeal: the receiver's key is of small order.
    """
    private, context = keys.exchange_key(once), link.context
    key = derive(keys.agree(private, link.adverts[1].sealing), context)
    hashes = hash_shares(link.setup, link.sender, link.receiver, (SEED, KEY), shares)
    public = private.public_key().public_bytes_raw()
    body = public + keys.encrypt(key, b"".join(shares)) + hashes
    return body + signing.sign(context + body)


def check_signature(link: Link, packet: bytes) -> None:
    """Raises BadSignature unless the sender signed this packet, of either kind."""
    body, signature = packet[: -keys.SIGNATURE_BYTES], packet[-keys.SIGNATURE_BYTES :]
    keys.verify(link.setup.session.users[link.sender], signature, link.context + body)


def open_deal(link: Link, packet: bytes, sealing: X25519PrivateKey) -> tuple[bytes, bytes]:
    """Both shares, as the receiver opens them.

    Raises:
        BadSignature: not signed by the sender.
        BadSeal: the receiver's key does not open it.
        InconsistentShares: the shares are not those whose hashes it shows.
    """
    check_signature(link, packet)
    key = derive(keys.agree(sealing, packet[: keys.KEY_BYTES]), link.context)
    return _checked(link, packet, key)


def is_sound(link: Link, packet: bytes, once: bytes) -> bool:
    """Whether a packet, opened by its dealer with the key used once, is as it must be."""
    try:
        check_signature(link, packet)
        private = keys.exchange_key(once)
        if private.public_key().public_bytes_raw() != packet[: keys.KEY_BYTES]:
            return False
        _checked(link, packet, derive(keys.agree(private, link.adverts[1].sealing), link.context))
    except (BadSignature, BadSeal, InconsistentShares):
        return False
    return True


def hash_shares(
    setup: SecAgg, dealers: ArrayLike, holders: ArrayLike, which: ArrayLike, shares: ArrayLike
) -> bytes:
    """SHA-256 of each of n shares with its session, dealer, holder and secret, joined.

    A share has 256 bits of entropy. Dealers and holders are (n,) identities or one for all,
    `which` is (n,) SEED or KEY, and shares are (n,) of SHARE_BYTES.
    """
    values = np.asarray(shares, f"V{SHARE_BYTES}")
    records = np.zeros(len(values), _HASHED)
    records["session"] = np.void(b"share" + setup.session.digest)
    records["dealer"], records["holder"], records["which"] = dealers, holders, which
    records["share"] = values
    size, octets, sha256 = records.itemsize, records.tobytes(), hashlib.sha256
    starts = range(0, len(octets), size)
    return b"".join([sha256(octets[start : start + size]).digest() for start in starts])


def packet_bytes(deals: bool) -> int:
    """Length of a packet with or without shares."""
    return DEAL_BYTES if deals else WORD_BYTES


def _checked(link: Link, packet: bytes, key: bytes) -> tuple[bytes, bytes]:
    plain = keys.decrypt(key, packet[keys.KEY_BYTES : _SEALED])
    shares = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
    hashes = hash_shares(link.setup, link.sender, link.receiver, (SEED, KEY), shares)
    if hashes != packet[HASHES]:
        raise InconsistentShares(f"shares of user {link.sender} must have the hashes it shows")
    return shares
