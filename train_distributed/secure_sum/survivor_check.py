"""Check of a user of `secagg` before it reveals anything: a quorum signed the same two sets."""

from collections.abc import Mapping
from dataclasses import dataclass

from train_distributed.secure_sum.errors import (
    ContradictoryRequest,
    SetMismatch,
    TooFewUsers,
    check_bytes,
    check_enough,
)
from train_distributed.secure_sum.keys import SIGNATURE_BYTES
from train_distributed.secure_sum.secagg import SecAgg
from train_distributed.secure_sum.session import set_bytes
from train_distributed.secure_sum.wire import WITNESS_BYTES, Kind, check_statement


@dataclass
class SurvivorCheck:
    """Sets of users that shared keys and that survived, as the server named them to one user.

    UNMASK is four sets (alive, dropped, who signs the story, whose word on its vector is shown) and
    the signatures of the last two, by rising user.
    """

    setup: SecAgg
    user: int
    sharing: frozenset[int]
    owners: Mapping[int, tuple[int, ...]]  # users that have this one on their list -> that list
    survivors: frozenset[int] | None = None

    def survive(self, survivors: frozenset[int]) -> bytes:
        """Takes the set of survivors; returns the statement to be signed.

        Raises:
            SetMismatch: a survivor that shared no keys.
        """
        if not survivors <= self.sharing:
            late = sorted(survivors - self.sharing)[:10]
            raise SetMismatch(f"survivors must have shared keys, got {late}")
        self.survivors = survivors
        session = self.setup.session
        return self.setup.agreed(session.bitmap(self.sharing), session.bitmap(survivors))

    def check(self, request: bytes) -> frozenset[int]:
        """Checks UNMASK; returns the survivors.

        Raises:
            ContradictoryRequest: a user named alive and dropped.
            SetMismatch: not the story that this user signed, or not what its users masked with.
            TooFewUsers: fewer signatures than a quorum, or too few of an owner's list survived.
            BadSignature: a signature that is not on this story.
        """
        session, size = self.setup.session, set_bytes(self.setup.session)
        sets = [session.users_of(request[i * size : (i + 1) * size]) for i in range(4)]
        alive, dropped, signers, witnesses = sets
        if alive & dropped:
            both = sorted(alive & dropped)[:10]
            raise ContradictoryRequest(f"users must be alive or dropped, got both for {both}")
        if alive != self.survivors or dropped != self.sharing - alive:
            raise SetMismatch("request must name the survivors and the dropped that were agreed on")
        self._check_sets(alive, signers, witnesses)
        signed, end = request[4 * size :], len(signers) * SIGNATURE_BYTES
        check_bytes(end + len(witnesses) * WITNESS_BYTES, signatures=signed)
        self._check_signatures(_each(signed[:end], signers), _each(signed[end:], witnesses))
        return alive

    def _check_sets(
        self, alive: frozenset[int], signers: frozenset[int], witnesses: frozenset[int]
    ) -> None:
        graph = self.setup.graph
        if len(signers) != graph.signers:
            raise TooFewUsers(f"signers must be {graph.signers}, got {len(signers)}")
        owned = alive & self.owners.keys()
        if not signers <= alive or witnesses != owned - signers:
            raise SetMismatch("signatures must be of survivors, and of all whose shares are asked")
        for owner in sorted(owned):
            kept = sum(user in alive for user in self.owners[owner])
            check_enough(kept, graph.threshold, f"survivors of user {owner}'s list")

    def _check_signatures(self, signed: dict[int, bytes], shown: dict[int, bytes]) -> None:
        session, sharing = self.setup.session, self.setup.session.bitmap(self.sharing)
        story = self.setup.agreed(sharing, session.bitmap(self.survivors or ()))
        for user, signature in signed.items():
            check_statement(session, Kind.AGREED, user, story, signature)
        told = self.setup.told(sharing)
        for user, witness in shown.items():
            check_statement(session, Kind.MASKED, user, told, witness)


def _each(joined: bytes, users: frozenset[int]) -> dict[int, bytes]:
    """User -> its part of what was joined by rising user, all parts of one length."""
    size = len(joined) // max(1, len(users))
    return {user: joined[i * size : (i + 1) * size] for i, user in enumerate(sorted(users))}
