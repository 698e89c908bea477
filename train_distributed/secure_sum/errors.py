"""Every way a message or a request can be refused, by name.

A refusal never changes the state of the machine that refuses: the next good message is taken as
if the bad one had not been sent.
"""

from collections.abc import Mapping


class ProtocolError(ValueError):
    """A message or request was refused; nothing was revealed, counted or released."""


class TruncatedMessage(ProtocolError):
    """Shorter than its header says, or than a header is."""


class OversizedMessage(ProtocolError):
    """Longer than its header says, or than this kind of message may be."""


class MalformedMessage(ProtocolError):
    """Wrong magic, version or kind, or a payload that does not follow its layout."""


class WrongSession(ProtocolError):
    """Belongs to another session, or to other session parameters."""


class WrongSender(ProtocolError):
    """The named sender is unknown, or not the party that this message must come from."""


class WrongReceiver(ProtocolError):
    """Addressed to another party."""


class BadSignature(ProtocolError):
    """Not signed by the party that it names as its sender, or changed since."""


class BadSeal(ProtocolError):
    """Ciphertext that this party's key does not open."""


class ReplayedMessage(ProtocolError):
    """This party has already taken a message of this kind from this sender."""


class OutOfOrder(ProtocolError):
    """Does not belong to the stage that the protocol is in."""


class NotYet(ProtocolError):
    """Will be taken later; to be asked again."""


class SetMismatch(ProtocolError):
    """The parties do not speak of the same set of users."""


class ContradictoryRequest(ProtocolError):
    """A peer is named both as alive and as dropped: both of its secrets would be revealed."""


class TooFewUsers(ProtocolError):
    """Fewer users than the session's minimum, or than the threshold of shares."""


class InconsistentShares(ProtocolError):
    """Shares that do not reconstruct the secret its owner committed to."""


class Misbehaviour(ProtocolError):
    """Parties broke the protocol so that it cannot be completed; a session without them can.

    Attributes:
        culprits: party -> what it did, in words.
    """

    def __init__(self, culprits: Mapping[int, str]) -> None:
        self.culprits = dict(culprits)
        told = "; ".join(f"{party}: {what}" for party, what in sorted(self.culprits.items()))
        super().__init__(f"parties must follow the protocol, these did not: {told}")


class AlreadyOpened(ProtocolError):
    """This party has already taken this step of this session, perhaps before a restart."""


def check_enough(count: int, least: int, what: str) -> None:
    """Raises TooFewUsers where `what`, such as "survivors", are fewer than the least number."""
    if count < least:
        raise TooFewUsers(f"{what} must be >= {least}, got {count}")


def check_bytes(length: int, **values: bytes | memoryview) -> None:
    """Raises MalformedMessage unless each value has this many bytes."""
    for name, value in values.items():
        if len(value) != length:
            raise MalformedMessage(f"{name} must be {length} bytes, got {len(value)}")
