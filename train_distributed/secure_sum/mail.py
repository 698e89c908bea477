"""Packets of protocol B on their way: laid into their receivers' inboxes as they come."""

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import MalformedMessage
from train_distributed.secure_sum.packets import HASHES, Link, packet_bytes
from train_distributed.secure_sum.roster import Roster


class Mail:
    """Takes what each sender packed for its partners, as the roster has them.

    Attributes:
        hashes: (w·k,) one record per slot, the hashes that the list's owner shows of both shares.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._sizes = np.where(roster.deals, packet_bytes(True), packet_bytes(False))
        ends = np.append(0, np.cumsum(self._sizes))  # if all payloads were joined
        self._begin = ends[:-1] - ends[roster.sent[roster.sender]]  # in the sender's payload
        # Partners are partners both ways, so edges by receiver are as many as those by sender.
        self._inward = np.argsort(roster.receiver, kind="stable")
        after = np.cumsum(self._sizes[self._inward])
        self._laid = np.empty_like(ends[:-1])  # where a packet lies
        self._laid[self._inward] = after - self._sizes[self._inward]
        self._inboxes = np.zeros(ends[-1], np.uint8)  # by receiver, then by sender
        self._dealt = np.append(0, np.cumsum(roster.deals))  # deals before each packet
        lists = len(roster.identities) * roster.degree
        self.hashes = np.zeros(lists, f"V{HASHES.stop - HASHES.start}")

    def post(self, user: int, payload: bytes) -> None:
        """Takes a user's packets, joined by rising receiver.

        Raises:
            MalformedMessage: a length that does not fit.
        """
        roster, edges = self._roster, self._roster.edges(user)
        expected = int(self._sizes[edges].sum())
        if len(payload) != expected:
            count = edges.stop - edges.start
            raise MalformedMessage(f"{count} parts must be {expected} bytes, got {len(payload)}")
        deals, begin, laid = roster.deals[edges], self._begin[edges], self._laid[edges]
        octets = np.frombuffer(payload, np.uint8)
        for which, size in ((deals, packet_bytes(True)), (~deals, packet_bytes(False))):
            if which.any():
                packets = _anywhere(octets, f"V{size}")[begin[which]]
                _anywhere(self._inboxes, f"V{size}")[laid[which]] = packets
        if deals.any():
            slots = roster.slots[self._dealt[edges.start] : self._dealt[edges.stop]]
            shown = _anywhere(octets, self.hashes.dtype)
            self.hashes[slots] = shown[begin[deals] + HASHES.start]

    def inbox(self, user: int, among: NDArray[np.bool_]) -> bytes:
        """The packets for a user, joined by rising sender.

        Args:
            user: the receiver.
            among: (w,) the places whose packets are sent on.
        """
        edges = self._roster.edges(user)
        inward = self._inward[edges]
        first, last = inward[0], inward[-1]
        inbox = self._inboxes[self._laid[first] : self._laid[last] + self._sizes[last]]
        sent = among[self._roster.sender[inward]]
        return (inbox if sent.all() else inbox[np.repeat(sent, self._sizes[inward])]).tobytes()

    def packet(self, sender: int, receiver: int) -> tuple[Link, bytes] | None:
        """Packet of a user that shared keys for another; None if there is none, or once cleared."""
        sharing, place = self._roster.sharing, self._roster.setup.session.place
        if sender not in sharing or receiver not in sharing:
            return None
        edges = self._roster.edges(sender)
        found = np.flatnonzero(self._roster.receiver[edges] == place[receiver])
        if not len(found) or not len(self._inboxes):
            return None
        edge, adverts = edges.start + int(found[0]), self._roster.adverts
        link = Link(self._roster.setup, sender, receiver, (adverts[sender], adverts[receiver]))
        packet = self._inboxes[self._laid[edge] : self._laid[edge] + self._sizes[edge]]
        return link, packet.tobytes()

    def clear(self) -> None:
        """Forgets the packets; nobody may complain any more. The hashes stay."""
        self._inboxes = np.zeros(0, np.uint8)


def _anywhere(octets: NDArray[np.uint8], record: str | np.dtype[np.void]) -> NDArray[np.void]:
    """Octets (n,) as records that may start at any of them: they overlap."""
    dtype = np.dtype(record)
    return np.ndarray(len(octets) - dtype.itemsize + 1, dtype, octets, strides=(1,))
