"""The operator's side: runs one session over a relay that may lose anyone at any time."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from train_distributed.flower.blobs import join, split
from train_distributed.flower.connections import Connections, Relay
from train_distributed.flower.documents.federation import Federation, name_of
from train_distributed.flower.endpoint import Request
from train_distributed.flower.progress import Log, Progress
from train_distributed.flower.record import CannotResume, Record
from train_distributed.flower.request_handler import DONE, words
from train_distributed.secure_sum.errors import OutOfOrder, ProtocolError, TooFewUsers
from train_distributed.secure_sum.journal import Journal, ResumedJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.wire import Kind, kind_of

_STEPS = {
    Kind.ADVERTISE: "advertise keys",
    Kind.KEY_SHARES: "share keys",
    Kind.MASKED: "masked input",
    Kind.DEFENCE: "answer complaints",
    Kind.AGREED: "agree on survivors",
    Kind.REVEAL: "unmask",
    Kind.EXPOSED: "unmask without dealers of false shares",
}

__all__ = ["Log", "Relay", "coordinate"]

END_SECONDS = 15.0  # that parties have to come once more, if only to hear that it is over


def coordinate(
    federation: Federation,
    nonce: bytes,
    keys: PrivateKeys,
    journal: Journal,
    relay: Relay,
    log: Log,
    *,
    record: Record | None = None,
    progress: Progress | None = None,
    seconds: float = 0.0,
    exclude: frozenset[int] = frozenset(),
    preface: bytes | None = None,
) -> Opened:
    """One session: parties are counted, the protocol runs, the sum is opened once.

    Nothing is spent before enough parties have proven that they are here. With a record that has
    a session under way, that session goes on instead of a new one.

    Args:
        federation: what was agreed.
        nonce: 32 fresh bytes.
        keys: the operator's, server 0 of the federation.
        journal: the operator's, durable.
        relay: to the nodes.
        log: is told who went missing and what was refused, also when the session fails.
        record: where the session is written down, to be resumed after a crash.
        progress: is told how it goes.
        seconds: to wait for parties.
        exclude: users that a new session does without: culprits of an earlier one.
        preface: what a node is told before it is asked who is there: of a further round.

    Raises:
        Misbehaviour: users' fault; a session without them may succeed. Nothing is released.
        ProtocolError: the sum could not be opened; nothing is released.
        ConnectionError, OSError: the relay is gone, or the disk full: it can be resumed.
        CannotResume: the record is of another protocol.
    """
    progress = Progress(log) if progress is None else progress
    resumed = None if record is None else record.session
    if resumed is not None and record is not None:
        nonce, journal = resumed[:32], ResumedJournal(journal)
        record.rewind()
    log.session = nonce.hex()
    session = federation.session(nonce)
    connections = Connections(
        federation, nonce, keys, relay, record, progress, log, seconds, preface
    )
    if resumed is None:
        users = _enough(federation, connections, log, exclude)
        if record is not None:
            record.begin(nonce + session.bitmap(users))
    else:
        users = session.users_of(resumed[32:])
        log.lost(set(federation.users) - users, "be present")
    try:
        opened = _run(federation, nonce, keys, journal, connections, users, log, record)
    except (ProtocolError, CannotResume):  # given up; whatever else happens, it can be resumed
        _say_goodbye(federation, connections, opened=False)
        raise
    _say_goodbye(federation, connections, opened=True)
    return opened


def _enough(
    federation: Federation, connections: Connections, log: Log, exclude: frozenset[int]
) -> frozenset[int]:
    """The users that are here.

    Raises:
        TooFewUsers: fewer than the minimum; nobody has spent anything.
    """
    wanted = federation.users.keys() - exclude
    connections.gather(frozenset(wanted))
    users = frozenset(connections.here & wanted)
    log.lost(wanted - users, "be present")
    if len(users) < federation.minimum:
        raise TooFewUsers(f"users present must be >= {federation.minimum}, got {len(users)}")
    return users


def _run(
    federation: Federation,
    nonce: bytes,
    keys: PrivateKeys,
    journal: Journal,
    connections: Connections,
    users: frozenset[int],
    log: Log,
    record: Record | None,
) -> Opened:
    connections.start(users)
    absent = federation.users.keys() - users
    recall = None if record is None else partial(_recalled, record)
    server = SecAggServer(federation.secagg(nonce), keys, journal, absent, recall)
    return _run_secagg(server, connections, log)


def _say_goodbye(federation: Federation, connections: Connections, *, opened: bool) -> None:
    """END to whoever is here; a relay that is gone is no reason to lose a sum."""
    try:
        if opened and not connections.here:
            connections.gather(frozenset(federation.users), END_SECONDS)
        connections.end(opened)
    except (OSError, ProtocolError):
        return


def _recalled(record: Record, user: int, kind: Kind) -> bytes:
    """A message that a user has sent in this session, as it was written down."""
    for answer in record.answers_of(user):
        for message in split(answer[1:]) if answer[:1] == DONE else []:
            if kind_of(message) == kind.name.lower():
                return message
    raise OutOfOrder(f"{kind.name} of user {user} must be written down, is not")


def _run_secagg(server: SecAggServer, connections: Connections, log: Log) -> Opened:
    """One message per user and round; a message is taken as it comes, then forgotten."""
    answers: Iterable[tuple[int, list[bytes]]] = connections.first.items()
    while True:
        for party, messages in answers:
            _take(server.receive, party, messages, log)
        log.lost(server.waiting_for, _STEPS[server.expects])
        if server.expects is Kind.EXPOSED:
            return server.finish()
        if server.expects is not Kind.REVEAL:
            questions = server.advance()
        elif not (questions := _convict(server, log)):
            return server.finish()
        answers = connections.ask_each(
            {u: bytes([Request.DELIVER]) + join([q]) for u, q in questions.items()}
        )


def _convict(server: SecAggServer, log: Log) -> Mapping[int, bytes]:
    """Names dealers of false shares; what their partners are asked."""
    named = set(server.culprits)
    questions = server.convict()
    for user in server.culprits.keys() - named:
        log.refuse(name_of(user), f"left out: {server.culprits[user]}".encode())
        log.lost({user}, "unmask")
    return questions


def _take(receive: Callable[[bytes], None], party: int, messages: list[bytes], log: Log) -> None:
    for message in messages:
        try:
            receive(message)
        except ProtocolError as error:
            log.refuse(name_of(party), words(error))
