"""A party's number and keys: Ed25519 to sign, X25519 to agree; sealing to a pinned public key.

Signatures are libsodium's, which checks one in half the time of OpenSSL: a server of many users
does little else. Key agreement is too, which then lets other threads run.

Sealing is a fresh X25519 exchange with the receiver's pinned key, HKDF-SHA256 over both public
keys and the context, and AES-256-GCM; every key seals once, so its nonce may be zero.
"""

from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from train_distributed.secure_sum.errors import BadSeal, BadSignature
from train_distributed.secure_sum.prg import derive, new_seed

KEY_BYTES = 32
SIGNATURE_BYTES = 64
TAG_BYTES = 16
SEAL_BYTES = KEY_BYTES + TAG_BYTES  # what a seal adds to its plaintext
_NONCE = bytes(12)
_PRIME = 2**255 - 19
_SMALL_ORDER = {  # of both the curve and its twist, with their unreduced forms (RFC 7748, 6.1)
    *(0, 1, _PRIME - 1, _PRIME, _PRIME + 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
}
FIRST_SERVER = 2**31  # users have smaller identities; server j has FIRST_SERVER + j
EVERYONE = 2**32 - 1


def name_of(party: int) -> str:
    """A party as people say it."""
    if party < FIRST_SERVER:
        return f"user {party}"
    return f"computation server {party - FIRST_SERVER}" if party > FIRST_SERVER else "operator"


@dataclass(frozen=True)
class PublicKeys:
    """Public keys of a party, which others pin."""

    verifying: bytes  # Ed25519, 32 bytes
    sealing: bytes  # X25519, 32 bytes


@dataclass(frozen=True)
class PrivateKeys:
    """Private keys of a party; both are 32-byte seeds."""

    signing: bytes
    opening: bytes

    @staticmethod
    def generate() -> "PrivateKeys":
        """Draws both halves from the operating system."""
        return PrivateKeys(new_seed(), new_seed())

    @property
    def public(self) -> PublicKeys:
        """The halves to publish."""
        return PublicKeys(
            bytes(_signer(self.signing).verify_key),
            exchange_key(self.opening).public_key().public_bytes_raw(),
        )


def exchange_key(private: bytes) -> X25519PrivateKey:
    """The X25519 key pair of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(private)


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The X25519 shared secret (RFC 7748), to be passed through `derive`.

    Raises:
        BadSeal: a public key that is not 32 bytes, or is of small order, whose secret anyone could
            know.
    """
    if len(public) != KEY_BYTES:  # nobody looks at this further on
        raise BadSeal(f"public key must be {KEY_BYTES} bytes, got {len(public)}")
    try:
        return crypto_scalarmult(private.private_bytes_raw(), public)
    except CryptoError as error:
        raise BadSeal(f"public key must not be of small order, got {public.hex()}") from error


def check_order(public: bytes) -> None:
    """Raises BadSeal for X25519 public keys of small order: every exchange with them gives zero."""
    if int.from_bytes(public, "little") % 2**255 in _SMALL_ORDER:
        raise BadSeal(f"public key must not be of small order, got {public.hex()}")


def sign(signing: bytes, message: bytes) -> bytes:
    """Ed25519 signature (RFC 8032), 64 bytes."""
    return _signer(signing).sign(message).signature


def verify(verifying: bytes, signature: bytes, message: bytes) -> None:
    """Raises BadSignature unless this is the key's Ed25519 signature of the message."""
    try:
        VerifyKey(verifying).verify(message, signature)
    except (CryptoError, ValueError) as error:
        raise BadSignature(f"must be signed by key {verifying.hex()}, is not") from error


def seal(receiver: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Encrypts so that only the holder of the receiver's X25519 key reads it; adds 48 bytes.

    The ciphertext is bound to the context (session, sender, receiver).
    """
    once = exchange_key(new_seed())
    public = once.public_key().public_bytes_raw()
    key = derive(agree(once, receiver), b"seal" + public + receiver + context)
    return public + encrypt(key, plaintext)


def open_seal(opening: bytes | X25519PrivateKey, sealed: bytes, context: bytes) -> bytes:
    """Decrypts what `seal` made for this key and context.

    Whoever opens many seals passes the key, which takes as long to make from its bytes as to use.

    Raises:
        BadSeal: it was not, or was changed.
    """
    if len(sealed) < SEAL_BYTES:
        raise BadSeal(f"seal must be >= {SEAL_BYTES} bytes, got {len(sealed)}")
    key = exchange_key(opening) if isinstance(opening, bytes) else opening
    public = sealed[:KEY_BYTES]
    info = b"seal" + public + key.public_key().public_bytes_raw() + context
    return decrypt(derive(agree(key, public), info), sealed[KEY_BYTES:])


def encrypt(key: bytes, plaintext: bytes) -> bytes:
    """AES-256-GCM under a key that encrypts this one message; adds 16 bytes."""
    return AESGCM(key).encrypt(_NONCE, plaintext, None)


def decrypt(key: bytes, ciphertext: bytes) -> bytes:
    """Opens what `encrypt` made with this key; raises BadSeal where it was not, or was changed."""
    try:
        return AESGCM(key).decrypt(_NONCE, ciphertext, None)
    except InvalidTag as error:
        raise BadSeal(f"ciphertext of {len(ciphertext)} bytes must open, does not") from error


@lru_cache(maxsize=4)
def _signer(signing: bytes) -> SigningKey:
    return SigningKey(signing)
