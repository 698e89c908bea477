"""The operator's side: runs one session over a relay that may lose anyone at any time."""

from collections.abc import Mapping
from functools import partial

from train_distributed.federation.connections import Connections, Operator
from train_distributed.federation.orders import DONE, Request, join, split, words
from train_distributed.federation.progress import Log
from train_distributed.federation.record import CannotResume, SessionLog
from train_distributed.secure_sum.errors import OutOfOrder, ProtocolError, TooFewUsers
from train_distributed.secure_sum.journal import ResumedJournal
from train_distributed.secure_sum.keys import name_of
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
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


def coordinate(operator: Operator, exclude: frozenset[int] = frozenset()) -> Opened:
    """One session: parties are counted, the protocol runs, the sum is opened once.

    Nothing is spent before enough parties have proven that they are here. With a record that has
    a session under way, that session goes on instead of a new one.

    Args:
        operator: who runs it.
        exclude: users that a new session does without: culprits of an earlier one.

    Raises:
        Misbehaviour: users' fault; a session without them may succeed. Nothing is released.
        ProtocolError: the sum could not be opened; nothing is released.
        ConnectionError, OSError: the relay is gone, or the disk full: it can be resumed.
        CannotResume: the record is of another protocol.
    """
    federation, record, log = operator.federation, operator.record, operator.log
    nonce, journal, resumed = new_seed(), operator.journal, record.session
    if resumed is not None:
        nonce, journal = resumed[:32], ResumedJournal(journal)
        record.rewind()
    log.session = nonce.hex()
    setup = federation.secagg(nonce)
    connections = Connections(operator, nonce)
    if resumed is None:
        users = _enough(operator, connections, exclude)
        record.begin(nonce + setup.session.bitmap(users))
    else:
        users = setup.session.users_of(resumed[32:])
        log.lost(set(federation.users) - users, "be present")
    absent = federation.users.keys() - users
    try:
        recall = partial(_recalled, record)
        server = SecAggServer(setup, operator.keys, journal, absent, recall)
        opened = _run(server, connections, users, log)
    except (ProtocolError, CannotResume):  # given up; whatever else happens, it can be resumed
        _say_goodbye(operator, connections, opened=False)
        raise
    _say_goodbye(operator, connections, opened=True)
    return opened


def _enough(
    operator: Operator, connections: Connections, exclude: frozenset[int]
) -> frozenset[int]:
    """The users that are here.

    Raises:
        TooFewUsers: fewer than the minimum; nobody has spent anything.
    """
    minimum, wanted = operator.federation.minimum, operator.federation.users.keys() - exclude
    connections.gather(frozenset(wanted), needed=minimum)
    users = frozenset(connections.here & wanted)
    operator.log.lost(wanted - users, "be present")
    if len(users) < minimum:
        raise TooFewUsers(f"users present must be >= {minimum}, got {len(users)}")
    return users


def _say_goodbye(operator: Operator, connections: Connections, *, opened: bool) -> None:
    """END to whoever is here; a relay that is gone is no reason to lose a sum."""
    try:
        if opened and not connections.here:
            connections.gather(
                frozenset(operator.federation.users), operator.federation.deadlines.again
            )
        connections.end(opened)
    except (OSError, ProtocolError):
        return


def _recalled(record: SessionLog, user: int, kind: Kind) -> bytes:
    """A message that a user has sent in this session, as it was written down."""
    for answer in record.answers_of(user):
        for message in split(answer[1:]) if answer[:1] == DONE else []:
            if kind_of(message) == kind.name.lower():
                return message
    raise OutOfOrder(f"{kind.name} of user {user} must be written down, is not")


def _run(server: SecAggServer, connections: Connections, users: frozenset[int], log: Log) -> Opened:
    """One message per user and round; a message is taken as it comes, then forgotten."""
    answers = connections.start(users)
    while True:
        for party, messages in answers:
            for message in messages:
                try:
                    server.receive(message)
                except ProtocolError as error:
                    log.refuse(name_of(party), words(error))
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
