"""The graph as the server of protocol `secagg` knows it: who has whom on its list.

Users are ordered in arrays by their place in the session's order, from 0 to w-1. A *slot* is a
place on a list: slot k·p + i is the (i+1)-th of the list of the user at place p, who holds the
share of Shamir point i+1 of its secrets.

Packets travel along its edges: they are laid into their receivers' inboxes as they come (`Mail`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import check_bytes, check_enough
from train_distributed.secure_sum.packets import HASHES, Link, packet_bytes
from train_distributed.secure_sum.secagg import ADVERTISE_BYTES, Advert, SecAgg
from train_distributed.secure_sum.wire import OVERHEAD

Places = NDArray[np.int64]


class Roster:
    """Lists of all users, and the partners that follow from them.

    Attributes:
        sender, receiver: (E,) places of every two partners, both ways, rising by sender, then by
            receiver.
        deals: (E,) bool, whether the receiver is on the sender's list.
        slots: of those, the receiver's on this list.
        held: (n,) slots of which both owner and holder shared keys, by holder, then by owner.
        sent: (w + 1,) where each sender's stretch of them begins, and where the last ends.
    """

    def __init__(self, setup: SecAgg) -> None:
        self.setup, self._order = setup, setup.session.order
        self.identities = np.array(self._order, np.int64)
        self.degree = setup.graph.degree  # k
        self.adverts: dict[int, Advert] = {}
        self._messages: dict[int, bytes] = {}  # of the advertisements
        self._lists = np.zeros((len(self._order), self.degree), np.int64)  # of who advertised
        self.sharing = frozenset[int]()  # who shared keys
        self.share(())
        self.pair(())

    def add(self, user: int, advert: Advert, message: bytes) -> None:
        """Takes a user's advertisement, and the message that it came in."""
        self.adverts[user], self._messages[user] = advert, message
        place = self.setup.session.place[user]
        self._lists[place] = self.setup.places_of(user, advert.list_seed)

    def messages_of(self, users: Collection[int]) -> NDArray[np.void]:
        """(w,) the advertisements of these users as they came, zeros of all others."""
        found = np.zeros(len(self._order), f"V{OVERHEAD + ADVERTISE_BYTES}")
        joined = b"".join([self._messages[user] for user in sorted(users)])
        found[self.among(users)] = np.frombuffer(joined, found.dtype)
        return found

    def among(self, users: Collection[int]) -> NDArray[np.bool_]:
        """(w,) which places are of these users."""
        found = np.zeros(len(self._order), bool)
        found[self.places(users)] = True
        return found

    def places(self, users: Collection[int]) -> Places:
        """The place of each user."""
        place = self.setup.session.place
        return np.fromiter((place[user] for user in users), np.int64, len(users))

    def connected(self, users: Iterable[int]) -> frozenset[int]:
        """The users left when those with too short lists are taken out, again and again."""
        left = self.among(frozenset(users))
        while True:
            keep = left & (self._kept(left) >= self.setup.graph.threshold)
            if np.array_equal(keep, left):
                return frozenset(self.identities[left].tolist())
            left = keep

    def check_lists(self, survivors: frozenset[int]) -> None:
        """Checks that enough of each list survived to open the secrets of all who shared keys.

        Raises:
            TooFewUsers: fewer than the threshold.
        """
        kept, least = self._kept(self.among(survivors)), self.setup.graph.threshold
        short = np.flatnonzero(self.among(self.sharing) & (kept < least))
        if len(short):
            what = f"survivors of user {self._order[short[0]]}'s list"
            check_enough(int(kept[short[0]]), least, what)

    def pair(self, users: Collection[int]) -> None:
        """Makes partners of all users that are on one another's list, either way."""
        count, among = len(self._order), self.among(users)
        rising = np.argsort(self._lists, axis=1)
        lists = np.take_along_axis(self._lists, rising, axis=1)
        owner, nth = np.nonzero(among[:, None] & among[lists])
        listed = owner * count + lists[owner, nth]
        both = np.sort(np.concatenate([listed, lists[owner, nth] * count + owner]))
        both = both[np.append(True, both[1:] != both[:-1])[: len(both)]]  # each once
        self.sender, self.receiver = np.divmod(both, count)
        self.sent = np.searchsorted(self.sender, np.arange(count + 1))
        self.deals = np.isin(both, listed, assume_unique=True)
        self.slots = owner * self.degree + rising[owner, nth]

    def edges(self, user: int) -> slice:
        """Slice of the arrays of partners in which a user is the sender."""
        place = self.setup.session.place[user]
        return slice(int(self.sent[place]), int(self.sent[place + 1]))

    def partners(self, user: int) -> Places:
        """Places of a user's partners, rising."""
        return self.receiver[self.edges(user)]

    def share(self, users: Collection[int]) -> None:
        """Fixes who shared keys."""
        among = self.among(users)
        slots = np.flatnonzero(among[:, None] & among[self._lists])
        holders = self._lists.ravel()[slots]
        self.held = slots[np.argsort(holders, kind="stable")]
        self._ends = np.append(0, np.cumsum(np.bincount(holders, minlength=len(among))))
        self.sharing = frozenset(users)

    def holding(self, user: int) -> slice:
        """Slice of `held` in which a user is the holder."""
        place = self.setup.session.place[user]
        return slice(int(self._ends[place]), int(self._ends[place + 1]))

    def _kept(self, among: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(w,) how many of each list are among these."""
        return np.count_nonzero(among[self._lists], axis=1)


class Made(Mapping[int, bytes]):
    """Messages that are made when they are read: all at once would be many times a vector."""

    def __init__(self, users: Sequence[int], make: Callable[[int], bytes]) -> None:
        self._users, self._make = dict.fromkeys(users), make

    def __getitem__(self, user: int) -> bytes:
        if user not in self._users:
            raise KeyError(user)
        return self._make(user)

    def __iter__(self) -> Iterator[int]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)


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
        check_bytes(int(self._sizes[edges].sum()), parts=payload)
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
        """Packets for a user, joined by rising sender, from the places in `among`, (w,) bool."""
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
