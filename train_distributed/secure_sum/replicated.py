"""Protocol A with replicated shares: S >= 3 computation servers, one of which may lie or be lost.

A vector is the sum of S parts modulo 2^64. Server number j holds every part except part j, so each
part is held, and later reported, by S-1 servers. Parts 0 to S-2 are 32-byte seeds, which give
their streams; part S-1 is the vector minus those streams, behind 32 salt bytes.

**Commitments.** Every message of a user carries the same list of S hashes, one per part, under its
signature. A server takes a share only if the parts in it are those of the list; servers tell each
other which list they hold of whom, and a user counts only where all of them hold the same one. So
all honest servers add the same parts of the same users: whatever a user sends to whom, two honest
servers never report different sums of a part, and no user can make an honest server look like a
liar or stop a session.

**One set.** A server opens after a *certificate* over a set of users and their lists: the COMMITs
of all S servers; or of S-1, for S >= 4; or, for S = 3, of two servers and the signatures of
`witnesses` users. An honest server commits to one set per session, ever (journal), and an honest
user is witness to one. Then two sets never both have a certificate, if at most one server and
floor(corrupt_fraction w) users leave the protocol, whatever the relay does: certificates by
servers alone, of at least S-1 >= 3 out of S >= 4 or of all three, have at least two servers in
common, one of them honest; so do one by all three servers and one by two. Two certificates by two
servers and n = floor((w + c)/2) + 1 users each have at least 2n - w >= c + 1 users in common, one
of them honest. (Two of three servers alone would not do: a relay that lies tells each of two
honest servers that the other is lost, and with a liar's COMMIT both open, one of them without
user i.)

**Privacy** against one server, the relay and such users together. Server j lacks part j of
every user. For j < S-1 that is a seed, whose stream masks every word of part S-1; for j = S-1 the
parts it holds are seeds drawn independently of the vector. The hash of a part it lacks hides it:
seed and salt are 32 random bytes (SHA-256 as a random oracle). All it ever learns of the missing
parts is their sum over the one certified set of at least `minimum` users: the sum that is to be
opened. **Two servers that collude hold all parts: they see every user's submission**, its noise
included; in protocol A without replicas all servers but one learn nothing.

**Exactness.** Let at most one server lie or be lost, and the relay carry what it is given. Every
honest server reports the true sums of its parts. If reports of a part differ, the liar is among
those who report it. Each part has a report of an honest server, so the parts' sums are right
wherever all reports agree once one server's are left out, and only one server can be left out so;
for S >= 4 this names the liar always (each part has two honest reports to outvote it), for S = 3
unless it lies about one of its two parts only: then nothing is released, and the two servers that
differ are named. One server that is lost leaves S-2 reports of each part or more. For S = 3 that
is one report of two of the parts: the sum opens, unchecked, and the log says so. An operator that
is relay and server in one and lies can always refuse to finish, or publish another number than
`tally` finds in the COMMIT and the OPENINGs: whoever is shown those can repeat it. A server can
also deny that it holds a user's share: the user is left out, and both are named.

A user's message is forgotten as soon as its parts are added: S-1 vectors, 40 bytes per user, and
one batch of messages, however many users.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    SetMismatch,
    TooFewUsers,
)
from train_distributed.secure_sum.graph import whole_users
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import SEAL_BYTES, PrivateKeys, PublicKeys, seal
from train_distributed.secure_sum.opening import DIGEST_BYTES
from train_distributed.secure_sum.parties import EVERYONE
from train_distributed.secure_sum.prg import SEED_BYTES, WORD, new_seed, subtract_stream
from train_distributed.secure_sum.session import Session, set_bytes
from train_distributed.secure_sum.shares import share_context
from train_distributed.secure_sum.wire import Kind, check_vector, read, words_to_bytes, write

FEWEST_SERVERS = 3


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """Agreement of all parties on a session; see `agree_on`."""

    session: Session
    witnesses: int  # users that must sign the set where a server's signature is missing

    @staticmethod
    def agree_on(
        *,
        nonce: bytes,
        dimension: int,
        minimum: int,
        users: Mapping[int, bytes],
        servers: Mapping[int, PublicKeys],
        corrupt_fraction: float = 0.1,
        context: bytes = b"",
    ) -> "Replicated":
        """A session of S = len(servers) replicas; all but `corrupt_fraction` as in `Session`.

        So many of the users may collude with a server that lies, which counts for S = 3 alone.

        Raises:
            ValueError: fewer than 3 servers, or a field that no session can have.
        """
        check.at_least(FEWEST_SERVERS, servers=len(servers))
        corrupt = whole_users(len(users), corrupt_fraction, "corrupt_fraction")
        witnesses = (len(users) + corrupt) // 2 + 1 if len(servers) == FEWEST_SERVERS else 0
        session = Session(
            nonce=nonce,
            dimension=dimension,
            minimum=minimum,
            users=users,
            servers=servers,
            context=b"shares-replicated" + witnesses.to_bytes(4, "big") + context,
        )
        return Replicated(session=session, witnesses=witnesses)

    @cached_property
    def servers(self) -> tuple[int, ...]:
        """Servers by rising identity; number j lacks part j."""
        return tuple(sorted(self.session.servers))

    def parts_of(self, server: int) -> tuple[int, ...]:
        """Numbers of the parts that a server holds, rising."""
        return tuple(j for j, lacks in enumerate(self.servers) if lacks != server)

    def part_bytes(self, part: int) -> int:
        """Length of a part: a seed, or a salted vector."""
        vector = WORD.itemsize * self.session.dimension
        return SEED_BYTES + vector * (part == len(self.servers) - 1)

    def share_bytes(self, server: int) -> int:
        """Length of a SHARE's payload for a server: S hashes and its sealed parts."""
        parts = sum(self.part_bytes(part) for part in self.parts_of(server))
        return DIGEST_BYTES * len(self.servers) + SEAL_BYTES + parts

    @property
    def commit_bytes(self) -> int:
        """Length of a COMMIT's payload."""
        return set_bytes(self.session) + DIGEST_BYTES

    @property
    def opening_bytes(self) -> int:
        """Length of an OPENING's payload: what it opens, and the sums of S-1 parts."""
        sums = (len(self.servers) - 1) * WORD.itemsize * self.session.dimension
        return DIGEST_BYTES + sums

    def hash_of(self, user: int, part: int, content: bytes) -> bytes:
        """Hash of a part that a user signs; hides the part, since 32 of its bytes are random."""
        label = user.to_bytes(4, "big") + part.to_bytes(4, "big")
        return hashlib.sha256(b"part" + self.session.digest + label + content).digest()

    def agrees(self, servers: int, witnesses: int) -> bool:
        """True where these numbers of servers and users that signed one set make a certificate."""
        if servers == len(self.servers):
            return True
        return servers == len(self.servers) - 1 and witnesses >= self.witnesses

    def users_of(self, commit: bytes) -> frozenset[int]:
        """The users that a COMMIT's payload names; raises MalformedMessage where it is none."""
        if len(commit) != self.commit_bytes:
            raise MalformedMessage(f"COMMIT must be {self.commit_bytes} bytes, got {len(commit)}")
        return self.session.users_of(commit[:-DIGEST_BYTES])


class ReplicatedUser:
    """A user: one message per server; later, if a server is lost, its word as a witness."""

    def __init__(self, setup: Replicated, user: int, keys: PrivateKeys, journal: Journal) -> None:
        self._setup, self._user, self._keys, self._journal = setup, user, keys, journal

    def submit(self, vector: NDArray[np.uint64]) -> Iterator[tuple[int, bytes]]:
        """Splits a vector (d,) uint64, integers plus noise, into a sealed message per server.

        Returns:
            (server identity, signed message) of every server, each made when it is asked for.

        Raises:
            ValueError: a vector of another shape or type.
            AlreadyOpened: this user has submitted to this session before.
        """
        check_vector(vector, self._setup.session.dimension)
        self._journal.claim(self._setup.session.digest, "submit", b"")
        parts = [new_seed() for _ in self._setup.servers[1:]]
        masked = vector.copy()
        for seed in parts:
            subtract_stream(masked, seed)
        return self._messages([*parts, new_seed() + words_to_bytes(masked)])

    def _messages(self, parts: list[bytes]) -> Iterator[tuple[int, bytes]]:
        setup, session = self._setup, self._setup.session
        hashes = b"".join(setup.hash_of(self._user, j, part) for j, part in enumerate(parts))
        for server in setup.servers:
            content = b"".join(parts[j] for j in setup.parts_of(server))
            context = share_context(session, self._user, server)
            payload = hashes + seal(session.servers[server].sealing, content, context)
            signing = self._keys.signing
            yield server, write(session, Kind.SHARE, self._user, server, payload, signing)

    def witness(self, commits: Sequence[bytes]) -> bytes:
        """Signs the set that all servers but one have signed; one set per session, ever.

        Raises:
            ProtocolError: not S-1 valid COMMITs to one set of at least the minimum.
            AlreadyOpened: this user has been asked before.
        """
        setup, session = self._setup, self._setup.session
        if len(commits) > len(setup.servers):
            raise MalformedMessage(f"COMMITs must be one per server, got {len(commits)}")
        signed: dict[int, bytes] = {}
        for commit in commits:
            envelope = read(session, commit, self._user, {Kind.COMMIT: setup.commit_bytes})
            envelope.check_server(session)
            signed[envelope.sender] = envelope.payload
        if len(signed) < len(setup.servers) - 1:
            raise OutOfOrder(f"servers must be all but one to commit first, got {sorted(signed)}")
        if len(set(signed.values())) != 1:
            raise SetMismatch(f"servers {sorted(signed)} must commit to the same set, did not")
        payload = next(iter(signed.values()))
        if len(users := setup.users_of(payload)) < session.minimum:
            raise TooFewUsers(f"users must be >= {session.minimum} to be opened, got {len(users)}")
        digest = hashlib.sha256(payload).digest()
        self._journal.claim(session.digest, "witness", digest)
        return write(session, Kind.WITNESS, self._user, EVERYONE, digest, self._keys.signing)


def manifest_digest(setup: Replicated, share: bytes) -> bytes:
    """Digest of the hashes of all parts, in clear at the head of a SHARE's payload."""
    return hashlib.sha256(share[: DIGEST_BYTES * len(setup.servers)]).digest()
