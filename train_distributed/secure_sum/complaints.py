"""Complaints of protocol B: a packet is said to be bad, and the server finds who is at fault."""

import hashlib
import struct
from collections.abc import Callable

from train_distributed.secure_sum.errors import BadSignature, MalformedMessage, SetMismatch
from train_distributed.secure_sum.keys import KEY_BYTES
from train_distributed.secure_sum.packets import Link, check_signature, is_sound, packet_bytes
from train_distributed.secure_sum.secagg import COMPLAINT_BYTES, unpack_entries
from train_distributed.secure_sum.wire import Envelope

Packet = Callable[[int, int], tuple[Link, bytes] | None]  # (sender, receiver) -> what was forwarded


class ComplaintResolver:
    """Takes complaints, then defences; names dealers that are guilty and users that lied."""

    def __init__(self, packet: Packet) -> None:
        self._packet = packet
        self._accused: dict[int, dict[int, bytes]] = {}  # dealer -> complainer -> its message
        self.guilty: dict[int, str] = {}
        self.liars: dict[int, str] = {}

    def complain(self, envelope: Envelope, message: bytes) -> None:
        """Takes a complaint; what needs no defence is decided at once.

        Raises:
            MalformedMessage: not a complaint about a packet that was forwarded to this user.
        """
        user, payload = envelope.sender, envelope.payload
        if len(payload) != COMPLAINT_BYTES:
            raise MalformedMessage(f"COMPLAINT must be {COMPLAINT_BYTES} bytes, got {len(payload)}")
        (accused,) = struct.unpack_from(">I", payload)
        found = self._packet(accused, user)
        if found is None or payload[4:] != hashlib.sha256(found[1]).digest():
            raise MalformedMessage(f"complaint must be about a packet sent on, got {accused}'s")
        link, packet = found
        try:
            check_signature(link, packet)
        except BadSignature:
            self.guilty[accused] = f"its packet for user {user} is not signed"
            return
        if len(packet) != packet_bytes(True):
            self.liars[user] = f"complained about the signed word of user {accused}"
            return
        self._accused.setdefault(accused, {})[user] = message

    def accusations(self) -> dict[int, bytes]:
        """Dealer -> the complaints that it must answer."""
        return {
            dealer: b"".join(message for _, message in sorted(messages.items()))
            for dealer, messages in self._accused.items()
            if dealer not in self.guilty
        }

    def defend(self, dealer: int, payload: bytes) -> None:
        """Takes a dealer's answer, which opens each packet complained about.

        Raises:
            SetMismatch: it does not answer each complaint.
        """
        opened = unpack_entries(payload, KEY_BYTES)
        if opened.keys() != self._accused[dealer].keys():
            raise SetMismatch(f"user {dealer} must answer each complaint once")
        for user, once in opened.items():
            found = self._packet(dealer, user)
            if found is not None and is_sound(*found, once):
                self.liars[user] = f"complained about a sound packet of user {dealer}"
            else:
                self.guilty[dealer] = f"dealt user {user} a packet that is not as it must be"
        del self._accused[dealer]

    def close(self) -> None:
        """Convicts dealers that have not answered."""
        for dealer, messages in self._accused.items():
            users = sorted(messages)
            self.guilty.setdefault(dealer, f"did not answer the complaints of users {users[:10]}")
