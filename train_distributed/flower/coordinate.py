"""The operator's side: runs one session over a relay that may lose anyone at any time."""

from collections.abc import Callable, Iterable

from train_distributed.flower.blobs import join
from train_distributed.flower.clerk import words
from train_distributed.flower.desk import ComputationDesk, Request
from train_distributed.flower.federation import Federation, name_of
from train_distributed.flower.present import Present, Relay
from train_distributed.flower.record import CannotResume, Record
from train_distributed.flower.status import Log, Status
from train_distributed.secure_sum.errors import OutOfOrder, ProtocolError, TooFewUsers
from train_distributed.secure_sum.journal import Journal, ResumedJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.session import FIRST_SERVER, Session
from train_distributed.secure_sum.wire import Kind, receiver_of

_STEPS = {
    Kind.ADVERTISE: "advertise keys",
    Kind.KEY_SHARES: "share keys",
    Kind.MASKED: "masked input",
    Kind.DEFENCE: "answer complaints",
    Kind.AGREED: "agree on survivors",
    Kind.REVEAL: "unmask",
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
    status: Status | None = None,
    seconds: float = 0.0,
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
        status: is told how it goes.
        seconds: to wait for parties.

    Raises:
        ProtocolError: the sum could not be opened; nothing is released.
        ConnectionError, OSError: the relay is gone, or the disk full: it can be resumed.
        CannotResume: the record is of another protocol.
    """
    status = Status(log) if status is None else status
    resumed = None if record is None else record.session
    if resumed is not None and record is not None:
        nonce, journal = resumed[:32], ResumedJournal(journal)
        record.rewind()
    log.session = nonce.hex()
    session = federation.session(nonce)
    present = Present(federation, nonce, keys, relay, record, status, log, seconds)
    if resumed is None:
        users = _enough(federation, present, log)
        if record is not None:
            record.begin(nonce + session.bitmap(users))
    else:
        users = session.users_of(resumed[32:])
        log.lost(set(federation.users) - users, "be present")
    try:
        opened = _run(federation, nonce, keys, journal, present, users, log)
    except (ProtocolError, CannotResume):  # given up; whatever else happens, it can be resumed
        _say_goodbye(federation, present, opened=False)
        raise
    _say_goodbye(federation, present, opened=True)
    return opened


def _enough(federation: Federation, present: Present, log: Log) -> frozenset[int]:
    """The users that are here.

    Raises:
        TooFewUsers: fewer than the minimum; nobody has spent anything.
        OutOfOrder: a computation server is not here.
    """
    servers = [FIRST_SERVER + j for j in range(len(federation.servers))][1:]
    present.gather(frozenset([*federation.users, *servers]))
    users = frozenset(present.here & federation.users.keys())
    log.lost(federation.users.keys() - users, "be present")
    absent = [name_of(server) for server in servers if server not in present.here]
    if absent:
        raise OutOfOrder(f"all computation servers must be present, missing {', '.join(absent)}")
    if len(users) < federation.minimum:
        raise TooFewUsers(f"users present must be >= {federation.minimum}, got {len(users)}")
    return users


def _run(
    federation: Federation,
    nonce: bytes,
    keys: PrivateKeys,
    journal: Journal,
    present: Present,
    users: frozenset[int],
    log: Log,
) -> Opened:
    if federation.protocol == "secagg":
        present.start(users)
        server = SecAggServer(federation.secagg(nonce), keys, journal)
        return _run_secagg(federation, server, present, log)
    desk = ComputationDesk(federation, FIRST_SERVER, keys, journal)
    present.host(FIRST_SERVER, desk)
    present.start(users)
    return _run_shares(federation.session(nonce), present, log)


def _say_goodbye(federation: Federation, present: Present, *, opened: bool) -> None:
    """END to whoever is here; a relay that is gone is no reason to lose a sum."""
    try:
        if opened and not present.here:
            present.gather(frozenset(federation.users), END_SECONDS)
        present.end(opened)
    except (OSError, ProtocolError):
        return


def _run_secagg(federation: Federation, server: SecAggServer, present: Present, log: Log) -> Opened:
    answers: Iterable[tuple[int, list[bytes]]] = present.first.items()
    while True:  # every answer is taken as it comes: one vector at a time is in memory
        _take(server.receive, answers, log)
        log.lost(server.waiting_for, _STEPS[server.expects])
        if server.expects is Kind.REVEAL:
            return server.finish()
        questions = server.advance()
        answers = present.ask_each(
            {u: bytes([Request.DELIVER]) + join([q]) for u, q in questions.items()}
        )


def _take(
    receive: Callable[[bytes], None], answers: Iterable[tuple[int, list[bytes]]], log: Log
) -> None:
    for party, messages in answers:
        for message in messages:
            try:
                receive(message)
            except ProtocolError as error:
                log.refuse(name_of(party), words(error))


def _run_shares(session: Session, present: Present, log: Log) -> Opened:
    *seeds, last = sorted(session.servers)
    users = {user for user in present.first if user in session.users}
    parts = _sort({user: present.first[user] for user in users}, session, log)
    log.lost(set(session.users) - users, "submit")
    for server in seeds:
        _deliver(present, {server: parts[server]}, log)
    held = _signed(present, seeds, Request.CLOSE)
    _deliver(present, {last: [*held.values(), *parts[last]]}, log)
    commits: dict[int, bytes] = {}
    for server in (last, *seeds):
        commits |= _signed(present, [server], Request.COMMIT)
        others = [s for s in session.servers if s != server]
        _deliver(present, {s: [commits[server]] for s in others}, log)
    openings = _signed(present, sorted(session.servers), Request.OPEN)
    opened = combine(session, commits[last], list(openings.values()))
    log.lost(users - opened.users, "shares")
    return opened


def _sort(first: dict[int, list[bytes]], session: Session, log: Log) -> dict[int, list[bytes]]:
    """Server -> the users' messages for it."""
    parts: dict[int, list[bytes]] = {server: [] for server in session.servers}
    for user, messages in sorted(first.items()):
        for message in messages:
            try:
                parts.get(receiver_of(message), []).append(message)
            except ProtocolError as error:
                log.refuse(name_of(user), words(error))
    return parts


def _signed(present: Present, servers: list[int], request: Request) -> dict[int, bytes]:
    """The one message of each server; without any of them the session ends."""
    answers = present.ask({server: bytes([request]) for server in servers})
    missing = [name_of(server) for server in servers if len(answers.get(server, [])) != 1]
    if missing:
        raise OutOfOrder(f"all servers must answer {request.name}, missing {', '.join(missing)}")
    return {server: answers[server][0] for server in servers}


def _deliver(present: Present, messages: dict[int, list[bytes]], log: Log) -> None:
    """Messages to servers, in as many requests as the limit of one needs."""
    while any(messages.values()):
        now = {server: _portion(given, present.largest) for server, given in messages.items()}
        messages = {server: given[len(now[server]) :] for server, given in messages.items()}
        requests = {s: bytes([Request.DELIVER]) + join(part) for s, part in now.items() if part}
        for server, refused in present.ask_each(requests):
            for text in refused:
                log.refuse(name_of(server), text)


def _portion(messages: list[bytes], largest: int) -> list[bytes]:
    """The first messages that fit into one request; one at least."""
    size, count = 5, 0
    for message in messages:
        size += 8 + len(message)
        if size > largest and count:
            break
        count += 1
    return messages[:count]
