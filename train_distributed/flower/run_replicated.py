"""The operator's side of `shares-replicated`: goes on without one server that is lost or lies."""

import hashlib
import struct
from collections import Counter

from train_distributed.flower.blobs import join
from train_distributed.flower.connections import Connections
from train_distributed.flower.documents.federation import BATCH_USERS
from train_distributed.flower.portions import Shares, deliver, fetched, note, spoken
from train_distributed.flower.progress import Log
from train_distributed.flower.request_handler import Request, answer_bytes
from train_distributed.flower.share_endpoint import refusals_bytes
from train_distributed.secure_sum.errors import (
    MalformedMessage,
    OutOfOrder,
    ProtocolError,
    SetMismatch,
    TooFewUsers,
)
from train_distributed.secure_sum.opening import DIGEST_BYTES, Opened
from train_distributed.secure_sum.parties import name_of
from train_distributed.secure_sum.replicated import Replicated, manifest_digest
from train_distributed.secure_sum.replicated_server import holding_bytes, holding_of
from train_distributed.secure_sum.tally import tally
from train_distributed.secure_sum.wire import Kind, payload_of


def run_replicated(setup: Replicated, connections: Connections, log: Log) -> Opened:
    """One session.

    Args:
        setup: the session.
        connections: the parties, the operator's own endpoint among them.
        log: is told who went missing, what was refused, and which server is at fault.

    Raises:
        ProtocolError: the sum could not be opened; names the servers at fault, if any are.
    """
    session = setup.session
    users = sorted(user for user in connections.first if user in session.users)
    log.lost(set(session.users) - set(users), "submit")
    replicas = _Replicas(setup, connections, log)
    payload = {server: setup.share_bytes(server) for server in setup.servers}
    for shares in fetched(connections, session, users, 0, payload, log):
        if alike := _alike(setup, shares, log):
            replicas.round(alike)
    commits = replicas.commit()
    if len(commits) < len(setup.servers) and setup.witnesses:
        replicas.call_witnesses(users, commits)
    longest = answer_bytes(setup.opening_bytes)
    opens = connections.ask({s: bytes([Request.OPEN]) for s in replicas.live}, longest)
    openings = {s: messages[0] for s, messages in opens.items() if len(messages) == 1}
    found = tally(setup, next(iter(commits.values())), openings)
    for server, why in found.faults.items():
        if server not in replicas.lost:
            log.refuse(name_of(server), why)
    log.unchecked = found.unchecked
    if found.unchecked:
        log.refuse(f"parts {list(found.unchecked)}", "one server's word alone, unchecked")
    log.lost(set(users) - found.opened.users, "shares")
    return found.opened


def _alike(setup: Replicated, shares: Shares, log: Log) -> Shares:
    """The users that signed the same hashes for every server."""
    alike: Shares = {}
    for user, messages in shares.items():
        if len({manifest_digest(setup, payload_of(m)) for m in messages.values()}) == 1:
            alike[user] = messages
        else:
            log.refuse(name_of(user), "hashes of parts must be the same for every server")
    return alike


class _Replicas:
    """The servers, as long as at most one is lost."""

    def __init__(self, setup: Replicated, connections: Connections, log: Log) -> None:
        self._setup, self._session = setup, setup.session
        self._connections, self._log = connections, log
        self._round = 0
        self._users: set[int] = set()
        self.lost: dict[int, str] = {}

    @property
    def live(self) -> list[int]:
        """Servers to go on with."""
        return [server for server in self._setup.servers if server not in self.lost]

    def round(self, shares: Shares) -> None:
        """Users' messages to all servers, their HOLDINGs to each other, and on."""
        users = list(shares)
        expected = {
            u: manifest_digest(self._setup, payload_of(next(iter(m.values()))))
            for u, m in shares.items()
        }
        requests = {
            s: bytes([Request.CLOSE]) + join(shares[u][s] for u in users) for s in self.live
        }
        longest = answer_bytes(holding_bytes(len(users))) + refusals_bytes(len(users))
        holdings: dict[int, bytes] = {}
        held: list[set[int]] = []
        for server, messages in sorted(self._ask(requests, longest).items()):
            holding, *refused = messages or [b""]
            named = note(server, refused, lambda place: name_of(users[place]), self._log)
            try:
                held.append(self._held(server, holding, expected))
                unsaid = expected.keys() - held[-1] - {users[place] for place in named}
                for user in sorted(unsaid):
                    self._log.refuse(name_of(user), f"{name_of(server)} does not hold its share")
                holdings[server] = holding
            except ProtocolError as error:
                self._lose(server, str(error))
        gone = b"".join(struct.pack(">I", server) for server in self.lost)
        settle = {
            s: bytes([Request.SETTLE])
            + join([gone, *(holdings[other] for other in self.live if other != s)])
            for s in self.live
        }
        longest = refusals_bytes(len(self._setup.servers))
        for server, refused in self._ask(settle, longest).items():
            note(server, refused, lambda place: "a server's message", self._log)
        self._users |= set.intersection(*held)
        self._round += 1

    def commit(self) -> dict[int, bytes]:
        """Server -> its COMMIT, of those that signed the set of most; sent to all.

        Raises:
            TooFewUsers: fewer than the session's minimum.
            SetMismatch: no set that more than half of the servers signed.
        """
        session = self._session
        if len(self._users) < session.minimum:
            raise TooFewUsers(f"users must be >= {session.minimum}, got {len(self._users)}")
        longest = answer_bytes(self._setup.commit_bytes)
        commits, sets = {}, {}
        requests = {s: bytes([Request.COMMIT]) for s in self.live}
        for server, messages in sorted(self._ask(requests, longest).items()):
            try:
                sets[server] = self._commit(server, messages)
                commits[server] = messages[0]
            except ProtocolError as error:
                self._lose(server, str(error))
        common, count = Counter(sets.values()).most_common(1)[0]
        if 2 * count <= len(sets):
            names = ", ".join(map(name_of, sorted(sets)))
            raise SetMismatch(f"{names} must commit to the same set, did not")
        for server in [s for s, signed in sets.items() if signed != common]:
            del commits[server]
            self._lose(server, "committed to another set than the others")
        messages = {
            s: [commit for other, commit in sorted(commits.items()) if other != s]
            for s in self.live
        }
        answered = deliver(self._connections, messages, lambda place: "a COMMIT", self._log)
        for server in set(self.live) - answered:
            self._lose(server, "did not take the COMMITs")
        return dict(sorted(commits.items()))

    def call_witnesses(self, users: list[int], commits: dict[int, bytes]) -> None:
        """Has users sign the set, and tells the servers.

        Raises:
            TooFewUsers: too few of them answer.
        """
        request = bytes([Request.DELIVER]) + join(commits.values())
        signed = hashlib.sha256(payload_of(next(iter(commits.values())))).digest()
        count = 0
        for start in range(0, len(users), BATCH_USERS):
            batch = users[start : start + BATCH_USERS]
            answers = self._connections.ask(
                dict.fromkeys(batch, request), answer_bytes(DIGEST_BYTES)
            )
            words: dict[int, bytes] = {}
            for user, messages in sorted(answers.items()):
                try:
                    if len(messages) != 1:
                        raise MalformedMessage(f"answer must be a WITNESS, got {len(messages)}")
                    word = spoken(self._session, user, messages[0], Kind.WITNESS, DIGEST_BYTES)
                    if word.payload != signed:
                        raise SetMismatch("WITNESS must be of the committed set, is of another")
                    words[user] = messages[0]
                except ProtocolError as error:
                    self._log.refuse(name_of(user), f"{type(error).__name__}: {error}")
            names = list(words)
            everyone = {s: list(words.values()) for s in self.live}
            deliver(
                self._connections, everyone, lambda place, n=names: name_of(n[place]), self._log
            )
            count += len(words)
        if count < self._setup.witnesses:
            raise TooFewUsers(
                f"witnesses must be >= {self._setup.witnesses} without {self._faults()}, "
                f"got {count}"
            )

    def _held(self, server: int, holding: bytes, expected: dict[int, bytes]) -> set[int]:
        size = holding_bytes(len(expected))
        envelope = spoken(self._session, server, holding, Kind.HOLDING, size)
        number, held = holding_of(self._setup, envelope.payload)
        if number != self._round:
            raise OutOfOrder(f"HOLDING must be of round {self._round}, got {number}")
        for user, digest in held.items():
            if expected.get(user) != digest:
                raise MalformedMessage(f"HOLDING must have the hashes that user {user} signed")
        return set(held)

    def _commit(self, server: int, messages: list[bytes]) -> bytes:
        if len(messages) != 1:
            raise MalformedMessage(f"answer must be one COMMIT, got {len(messages)}")
        size = self._setup.commit_bytes
        payload = spoken(self._session, server, messages[0], Kind.COMMIT, size).payload
        if self._setup.users_of(payload) != self._users:
            raise SetMismatch("committed to another set than was held")
        return payload

    def _ask(self, requests: dict[int, bytes], longest: int) -> dict[int, list[bytes]]:
        answers = self._connections.ask(requests, longest)
        for server in requests.keys() - answers.keys():
            self._lose(server, f"did not answer {Request(requests[server][0]).name}")
        return answers

    def _lose(self, server: int, why: str) -> None:
        """Goes on without a server.

        Raises:
            OutOfOrder: it is the second.
        """
        if server not in self.lost:
            self.lost[server] = why
            self._log.refuse(name_of(server), f"left out: {why}")
        if len(self.lost) > 1:
            raise OutOfOrder(f"all servers but one must take part, got {self._faults()}")

    def _faults(self) -> str:
        return "; ".join(f"{name_of(server)}: {why}" for server, why in self.lost.items())
