"""Users' messages for computation servers: fetched in batches, checked, forwarded, forgotten.

The relay checks what it can before it forwards: that each message is signed by the user who sent
it, for the server it names, of the length that follows from d and S. So a user that sends anything
else is named and left out at once, and what a server refuses afterwards is between two parties:
the user's sealed content, and the server's word. One batch is all that the operator holds, and
all that a request carries.
"""

from collections.abc import Callable, Iterator, Mapping

from train_distributed.flower.blobs import join
from train_distributed.flower.connections import Connections
from train_distributed.flower.documents.federation import BATCH_BYTES, BATCH_USERS
from train_distributed.flower.progress import Log
from train_distributed.flower.request_handler import Request, answer_bytes
from train_distributed.flower.share_endpoint import read_refusal, refusals_bytes
from train_distributed.secure_sum.errors import MalformedMessage, ProtocolError, WrongSender
from train_distributed.secure_sum.parties import EVERYONE, name_of
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.wire import Envelope, Kind, read, receiver_of

Shares = dict[int, dict[int, bytes]]  # user -> server -> its message


def fetched(
    connections: Connections,
    session: Session,
    users: list[int],
    portion: int,
    payload: Mapping[int, int],
    log: Log,
) -> Iterator[Shares]:
    """A portion of the users' messages, batch by batch.

    Args:
        connections: the parties.
        session: the session.
        users: whom to ask.
        portion: its number, from 0 on.
        payload: server -> length of the payload of a message for it; one message for each.
        log: is told whose messages were refused, and why.

    Yields:
        Messages that are signed, addressed and measured as they must be, of the users whose
        messages all are.
    """
    longest = answer_bytes(*payload.values())
    size = min(BATCH_USERS, max(1, BATCH_BYTES // longest))
    shares: Shares = {}
    for user, messages in connections.ask_each(
        dict.fromkeys(users, bytes([Request.NEXT, portion])), longest
    ):
        try:
            shares[user] = checked(session, user, messages, payload)
        except ProtocolError as error:
            log.refuse(name_of(user), f"{type(error).__name__}: {error}")
        if len(shares) == size:
            yield shares
            shares = {}
    if shares:
        yield shares


def checked(
    session: Session, user: int, messages: list[bytes], payload: Mapping[int, int]
) -> dict[int, bytes]:
    """Server -> message, of one user.

    Raises:
        ProtocolError: not one valid message for each server.
    """
    found: dict[int, bytes] = {}
    for message in messages:
        server = receiver_of(message)
        if server not in payload or server in found:
            raise MalformedMessage(f"messages must be one for each server, got another {server}")
        envelope = read(session, message, server, {Kind.SHARE: payload[server]})
        if envelope.sender != user:
            raise WrongSender(f"sender must be user {user}, got {name_of(envelope.sender)}")
        if len(envelope.payload) != payload[server]:
            raise MalformedMessage(
                f"share must be {payload[server]} bytes, got {len(envelope.payload)}"
            )
        found[server] = message
    if len(found) != len(payload):
        raise MalformedMessage(f"messages must be {len(payload)}, got {len(found)}")
    return found


def spoken(session: Session, party: int, message: bytes, kind: Kind, payload: int) -> Envelope:
    """A party's message to everyone, checked before it is passed on.

    Raises:
        ProtocolError: it is not valid; names the party.
    """
    try:
        envelope = read(session, message, EVERYONE, {kind: payload})
    except ProtocolError as error:
        raise type(error)(f"{kind.name} of {name_of(party)}: {error}") from error
    if envelope.sender != party:
        raise WrongSender(
            f"{kind.name} of {name_of(party)} must be its own, is {name_of(envelope.sender)}'s"
        )
    return envelope


def deliver(
    connections: Connections,
    messages: Mapping[int, list[bytes]],
    name: Callable[[int], str],
    log: Log,
) -> set[int]:
    """Hands servers messages; logs what they refuse.

    Args:
        connections: the parties.
        messages: server -> messages, of at most one batch.
        name: whose message is at a place of that list.
        log: is told what was refused.

    Returns:
        The servers that answered.
    """
    requests = {s: bytes([Request.DELIVER]) + join(m) for s, m in messages.items() if m}
    longest = refusals_bytes(max(map(len, messages.values()), default=0))
    answers = connections.ask(requests, longest)
    for server, refused in answers.items():
        note(server, refused, name, log)
    return set(answers) | (messages.keys() - requests.keys())


def note(server: int, refused: list[bytes], name: Callable[[int], str], log: Log) -> set[int]:
    """Logs a server's refusals, each with the party whose message it refused; returns places."""
    places = set[int]()
    for refusal in refused:
        try:
            place, words = read_refusal(refusal)
            log.refuse(name(place), f"{name_of(server)} refused it: {words}")
            places.add(place)
        except (ProtocolError, IndexError, KeyError) as error:
            log.refuse(name_of(server), f"{type(error).__name__}: {error}")
    return places
