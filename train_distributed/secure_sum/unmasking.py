"""How the server of protocol B has secrets opened, checks them, and removes the masks."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import InconsistentShares, SetMismatch, TooFewUsers
from train_distributed.secure_sum.keys import exchange_key
from train_distributed.secure_sum.packets import HASH_BYTES, KEY, SEED, hashes_of, share_hasher
from train_distributed.secure_sum.prg import add_stream, subtract_stream
from train_distributed.secure_sum.roster import Roster
from train_distributed.secure_sum.shamir import reconstruct


class Unmasking:
    """Collects shares, opens one secret per user, and takes its masks off the total."""

    def __init__(self, roster: Roster) -> None:
        self._roster, self._setup = roster, roster.setup
        self._hashes: dict[int, dict[int, bytes]] = {}  # dealer -> holder -> of both shares
        self._shares: dict[int, dict[int, bytes]] = {}  # dealer -> point -> share
        self.survivors = frozenset[int]()

    def expect(self, dealer: int, packets: Mapping[int, bytes]) -> None:
        """Keeps the hashes that a dealer showed of its shares (holder -> packet)."""
        points = self._roster.points[dealer]
        self._hashes[dealer] = {
            u: hashes_of(packet) for u, packet in packets.items() if u in points
        }

    def requests(
        self, agreed: Mapping[int, bytes], told: Mapping[int, bytes]
    ) -> Callable[[int], list[bytes]]:
        """What UNMASK tells a user: the story, and a quorum's signatures on it.

        Args:
            agreed: user -> its signature on the story, of at least `signers` users.
            told: user -> the witness of its vector's statement; shown where a dealer is no signer.
        """
        bitmap, dealt_to = self._setup.session.bitmap, self._roster.dealt_to
        signers = sorted(agreed)[: self._setup.graph.signers]
        dropped = self._roster.sharing - self.survivors
        story = bitmap(self.survivors) + bitmap(dropped) + bitmap(signers)
        signed = b"".join(agreed[user] for user in signers)
        others = self.survivors.difference(signers)

        def request(user: int) -> list[bytes]:
            witnesses = sorted(dealt_to[user] & others)
            return [story, bitmap(witnesses), signed, *(told[u] for u in witnesses)]

        return request

    def reveal(self, holder: int, shares: Mapping[int, bytes]) -> None:
        """Takes one holder's shares, of all users that dealt it some.

        Raises:
            SetMismatch: other dealers than those.
            InconsistentShares: a share that its dealer did not deal; none is taken.
        """
        expected = self._roster.dealt_to[holder]
        if shares.keys() != expected:
            wrong = sorted(shares.keys() ^ expected)[:10]
            raise SetMismatch(f"user {holder} must reveal one share per dealer, differs in {wrong}")
        survivors, hashes, digest = self.survivors, self._hashes, share_hasher(self._setup)
        for dealer, share in shares.items():
            which = SEED if dealer in survivors else KEY
            good = hashes[dealer][holder][which * HASH_BYTES : (which + 1) * HASH_BYTES]
            if digest(dealer, holder, which, share) != good:
                raise InconsistentShares(f"share of user {dealer} must be the one that it dealt")
        for dealer, share in shares.items():
            point = self._roster.points[dealer][holder]
            self._shares.setdefault(dealer, {})[point] = share

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
        secret = reconstruct(self._shares.get(user, {}), self._setup.graph.threshold)
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
        for peer in self._roster.partners[dropped]:
            if peer in self.survivors:
                public = self._roster.adverts[peer].masking
                seed = self._setup.pair_seed(private, public, dropped, peer)
                (subtract_stream if peer < dropped else add_stream)(total, seed)
