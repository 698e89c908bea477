"""How the server of protocol B has secrets opened, checks them, and removes the masks."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import InconsistentShares, SetMismatch, TooFewUsers
from train_distributed.secure_sum.keys import exchange_key
from train_distributed.secure_sum.packets import HASH_BYTES, KEY, SEED, share_hashes
from train_distributed.secure_sum.prg import add_stream, subtract_stream
from train_distributed.secure_sum.roster import Roster
from train_distributed.secure_sum.secagg import read_entries
from train_distributed.secure_sum.shamir import SHARE_BYTES, reconstruct
from train_distributed.secure_sum.wire import WITNESS_BYTES


class Unmasking:
    """Collects shares, opens one secret per user, and takes its masks off the total.

    Args:
        roster: of the session, all of whose lists are known.
        survivors: users whose vectors are in the total.
        hashes: (w·k,) per slot, what the list's owner showed of both shares.
    """

    def __init__(self, roster: Roster, survivors: frozenset[int], hashes: NDArray[np.void]) -> None:
        self._roster, self._setup, self.survivors = roster, roster.setup, survivors
        self._which = np.where(roster.among(survivors), SEED, KEY)  # of each user's secrets
        self._hashes = hashes.view(f"V{HASH_BYTES}").reshape(len(hashes), 2)
        self._shares = np.zeros(len(hashes), f"V{SHARE_BYTES}")  # by slot
        self._taken = np.zeros(len(hashes), bool)

    def requests(
        self, agreed: Mapping[int, bytes], told: Mapping[int, bytes]
    ) -> Callable[[int], list[bytes]]:
        """What UNMASK tells a user: the story, and a quorum's signatures on it.

        Args:
            agreed: user -> its signature on the story, of at least `signers` users.
            told: user -> the witness of its vector's statement; shown where a dealer is no signer.
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
            dealers = roster.held(user) // roster.degree
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
        entries, slots = read_entries(payload, SHARE_BYTES), self._roster.held(holder)
        places = slots // self._roster.degree
        dealers, shares = self._roster.identities[places], entries["value"]
        if not np.array_equal(entries["user"], dealers):
            wrong = np.setxor1d(entries["user"], dealers)[:10].tolist()
            raise SetMismatch(f"user {holder} must reveal one share per dealer, differs in {wrong}")
        which = self._which[places]
        found = share_hashes(self._setup, dealers, holder, which, shares)
        dealt = self._hashes[slots, which]
        if found != dealt.tobytes():
            differ = np.frombuffer(found, dealt.dtype) != dealt
            raise InconsistentShares(
                f"share of user {dealers[differ][0]} must be the one that it dealt"
            )
        self._shares[slots], self._taken[slots] = shares, True

    def secrets(self) -> tuple[dict[int, bytes], dict[int, str]]:
        """A survivor's self-mask seed or a dropped user's masking key; and whose are wrong.

        Raises:
            TooFewUsers: too few shares of some secret.
        """
        secrets, wrong = {}, {}
        for user in sorted(self._roster.sharing):
            try:
                secrets[user] = self._secret(user)
            except InconsistentShares as error:
                wrong[user] = str(error)
            except TooFewUsers as error:
                raise TooFewUsers(f"secret of user {user}: {error}") from error
        return secrets, wrong

    def apply(self, total: NDArray[np.uint64], secrets: Mapping[int, bytes]) -> None:
        """Takes all masks off the sum of the survivors' masked vectors (d,), in place."""
        for user, secret in secrets.items():
            if user in self.survivors:
                subtract_stream(total, secret)
            else:
                self._cancel(total, user, secret)

    def _secret(self, user: int) -> bytes:
        degree, threshold = self._roster.degree, self._setup.graph.threshold
        first = self._setup.session.place[user] * degree
        points = np.flatnonzero(self._taken[first : first + degree])[:threshold]
        values = [share.tobytes() for share in self._shares[first + points]]
        secret = reconstruct(dict(zip((points + 1).tolist(), values, strict=True)), threshold)
        advert = self._roster.adverts[user]
        if user in self.survivors:
            good = self._setup.commitment(user, secret) == advert.commitment
        else:
            good = exchange_key(secret).public_key().public_bytes_raw() == advert.masking
        if not good:
            raise InconsistentShares("the shares it dealt must give what it advertised, do not")
        return secret

    def _cancel(self, total: NDArray[np.uint64], dropped: int, key: bytes) -> None:
        """Takes out what the survivors added for the masks they share with a dropped user."""
        private = exchange_key(key)
        for peer in self._roster.identities[self._roster.partners(dropped)].tolist():
            if peer in self.survivors:
                public = self._roster.adverts[peer].masking
                seed = self._setup.pair_seed(private, public, dropped, peer)
                (subtract_stream if peer < dropped else add_stream)(total, seed)
