"""The server of protocol `secagg` has secrets opened, checks them, and removes the masks."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.conviction import opened
from train_distributed.secure_sum.errors import InconsistentShares, SetMismatch, TooFewUsers
from train_distributed.secure_sum.keys import KEY_BYTES
from train_distributed.secure_sum.masks import MASK, processes_for, sum_masks
from train_distributed.secure_sum.packets import HASH_BYTES, KEY, SEED, hash_shares
from train_distributed.secure_sum.roster import Roster
from train_distributed.secure_sum.secagg import read_entries
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import WITNESS_BYTES


class Unmasking:
    """Collects shares, opens one secret per user, and gives the masks that are in the total.

    All lists of the roster are known, the total is of the survivors' vectors, and `hashes` (w·k,)
    is what each list's owner showed of both shares, per slot.
    """

    def __init__(self, roster: Roster, survivors: frozenset[int], hashes: NDArray[np.void]) -> None:
        self._roster, self._setup, self.survivors = roster, roster.setup, survivors
        owners = roster.held // roster.degree
        self._dealers = roster.identities[owners]  # of each share that is held, by holder
        self._which = np.where(roster.among(survivors)[owners], SEED, KEY)
        shown = hashes.view(f"V{HASH_BYTES}").reshape(len(hashes), 2)
        self._hashes = shown[roster.held, self._which]
        self._shares = np.zeros(len(owners), f"V{SHARE_BYTES}")
        self._taken = np.zeros(len(owners), bool)

    def requests(
        self, agreed: Mapping[int, bytes], told: Mapping[int, bytes]
    ) -> Callable[[int], list[bytes]]:
        """Payload of UNMASK for a user: both sets, and a quorum's signatures on them.

        `agreed` has at least `signers` users' signatures on the story, `told` all survivors'
        witnesses of their vectors' statements, which are shown where a dealer is no signer.
        """
        roster, bitmap = self._roster, self._setup.session.bitmap
        signers = sorted(agreed)[: self._setup.graph.signers]
        dropped = roster.sharing - self.survivors
        story = bitmap(self.survivors) + bitmap(dropped) + bitmap(signers)
        signed = b"".join(agreed[user] for user in signers)
        others = sorted(self.survivors.difference(signers))
        among, shown = roster.among(others), np.zeros(len(roster.identities), f"V{WITNESS_BYTES}")
        shown[among] = np.frombuffer(b"".join([told[user] for user in others]), shown.dtype)

        def request(user: int) -> list[bytes]:
            dealers = roster.held[roster.holding(user)] // roster.degree
            witnesses = dealers[among[dealers]]
            users = bitmap(roster.identities[witnesses].tolist())
            return [story, users, signed, shown[witnesses].tobytes()]

        return request

    def reveal(self, holder: int, payload: bytes) -> None:
        """Takes one holder's shares, of all users that dealt it some, as `pack_entries` joins them.

        Raises:
            MalformedMessage: not such entries.
            SetMismatch: other dealers than those.
            InconsistentShares: a share that its dealer did not deal; none is taken.
        """
        entries, held = read_entries(payload, SHARE_BYTES), self._roster.holding(holder)
        dealers = self._dealers[held]
        if not np.array_equal(entries["user"], dealers):
            wrong = np.setxor1d(entries["user"], dealers)[:10].tolist()
            raise SetMismatch(f"user {holder} must reveal one share per dealer, differs in {wrong}")
        shares, dealt = entries["value"], self._hashes[held]
        found = hash_shares(self._setup, dealers, holder, self._which[held], shares)
        if found != dealt.tobytes():
            dealer = dealers[np.frombuffer(found, dealt.dtype) != dealt][0]
            raise InconsistentShares(f"share of user {dealer} must be the one that it dealt")
        self._shares[held], self._taken[held] = shares, True

    def secrets(self) -> tuple[dict[int, bytes], dict[int, dict[int, bytes]]]:
        """A survivor's self-mask seed or a dropped user's masking key; and whose are false.

        Of these, holder -> share, of those that prove it.

        Raises:
            TooFewUsers: too few shares of some secret.
        """
        secrets, wrong, setup = {}, {}, self._setup
        for user, shares in self._shares_by_dealer():
            advert, which = self._roster.adverts[user], SEED if user in self.survivors else KEY
            try:
                secrets[user] = opened(setup, user, advert, which, shares)
            except InconsistentShares:
                holders = setup.list_of(user, advert.list_seed)
                wrong[user] = {holders[x - 1]: share for x, share in shares.items()}
            except TooFewUsers as error:
                raise TooFewUsers(f"secret of user {user}: {error}") from error
        return secrets, wrong

    def masks(self, secrets: Mapping[int, bytes]) -> NDArray[np.uint64]:
        """(d,) all masks in the sum of the survivors' vectors, by all users' `secrets`.

        Raises:
            ChildProcessError: as `sum_masks`; there is no sum then.
        """
        roster, session, here = self._roster, self._setup.session, self.survivors
        among = roster.among(here)
        gone = roster.among(roster.sharing - here)
        shared = np.count_nonzero(gone[roster.sender] & among[roster.receiver])
        return sum_masks(
            session.dimension,
            session.digest,
            sorted(secrets, key=here.__contains__),  # first those with many masks
            lambda user: b"".join(self._masks(user, secrets[user])),
            processes_for(session.dimension, len(here), int(shared)),
        )

    def _shares_by_dealer(self) -> Iterator[tuple[int, dict[int, bytes]]]:
        """Shares by point of each user that shared keys, no more than are needed."""
        slots = self._roster.held[self._taken]
        rising = np.argsort(slots)
        octets = self._shares[self._taken][rising].tobytes()
        owners, nth = np.divmod(slots[rising], self._roster.degree)
        points = (nth + 1).tolist()
        for user in sorted(self._roster.sharing):
            place = self._setup.session.place[user]
            start, end = np.searchsorted(owners, (place, place + 1)).tolist()
            needed = range(start, min(end, start + self._setup.graph.threshold))
            yield (
                user,
                {points[i]: octets[i * SHARE_BYTES : (i + 1) * SHARE_BYTES] for i in needed},
            )

    def _masks(self, user: int, secret: bytes) -> Iterator[bytes]:
        """A survivor's own mask, or those that survivors share with a dropped user."""
        if user in self.survivors:
            yield MASK.pack(user, user, secret, bytes(KEY_BYTES))
            return
        for peer in self._roster.identities[self._roster.partners(user)].tolist():
            if peer in self.survivors:
                yield MASK.pack(user, peer, secret, self._roster.adverts[peer].masking)
