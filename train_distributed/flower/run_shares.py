"""The operator's side of `shares`: seeds, then vectors batch by batch, then one opening."""

from train_distributed.flower.connections import Connections
from train_distributed.flower.portions import deliver, fetched, spoken
from train_distributed.flower.progress import Log
from train_distributed.flower.request_handler import Request, answer_bytes
from train_distributed.secure_sum.errors import OutOfOrder, ProtocolError, SetMismatch
from train_distributed.secure_sum.keys import SEAL_BYTES
from train_distributed.secure_sum.opening import DIGEST_BYTES, Opened, combine
from train_distributed.secure_sum.parties import name_of
from train_distributed.secure_sum.prg import SEED_BYTES, WORD
from train_distributed.secure_sum.session import Session, set_bytes
from train_distributed.secure_sum.wire import Kind, bytes_to_words


def run_shares(session: Session, connections: Connections, log: Log) -> Opened:
    """One session; all servers must follow it to its end.

    Args:
        session: the session.
        connections: the parties, the operator's own endpoint among them.
        log: is told who went missing and what was refused.

    Raises:
        ProtocolError: the sum could not be opened; names the server at fault, if one is.
    """
    *seeds, last = sorted(session.servers)
    users = sorted(user for user in connections.first if user in session.users)
    log.lost(set(session.users) - set(users), "submit")
    held = _seeds(session, seeds, users, connections, log)
    holding = _signed(session, connections, seeds, Request.CLOSE)
    _hand(connections, {last: list(holding.values())}, log)
    payload = {last: SEAL_BYTES + WORD.itemsize * session.dimension}
    for shares in fetched(connections, session, held, 1, payload, log):
        _forward(connections, [last], shares, log)
    commits: dict[int, bytes] = {}
    for server in (last, *seeds):
        commits |= _signed(session, connections, [server], Request.COMMIT)
        _agreed(session, commits, server, last)
        others = [s for s in session.servers if s != server]
        _hand(connections, {s: [commits[server]] for s in others}, log)
    openings = _signed(session, connections, sorted(session.servers), Request.OPEN)
    opened = combine(session, commits[last], list(openings.values()))
    log.lost(set(users) - opened.users, "shares")
    return opened


def _seeds(
    session: Session, servers: list[int], users: list[int], connections: Connections, log: Log
) -> list[int]:
    """Forwards all seeds; returns the users who sent one to each server."""
    held = list[int]()
    payload = dict.fromkeys(servers, SEAL_BYTES + SEED_BYTES)
    for shares in fetched(connections, session, users, 0, payload, log):
        _forward(connections, servers, shares, log)
        held += shares
    return held


def _forward(
    connections: Connections, servers: list[int], shares: dict[int, dict[int, bytes]], log: Log
) -> None:
    users = list(shares)
    messages = {s: [shares[user][s] for user in users] for s in servers}
    answered = deliver(connections, messages, lambda place: name_of(users[place]), log)
    _all_of(servers, answered, Request.DELIVER)


def _hand(connections: Connections, messages: dict[int, list[bytes]], log: Log) -> None:
    answered = deliver(connections, messages, lambda place: "a server's message", log)
    _all_of(sorted(messages), answered, Request.DELIVER)


def _signed(
    session: Session, connections: Connections, servers: list[int], request: Request
) -> dict[int, bytes]:
    """The one message of each server; without any of them the session ends."""
    kind, payload = {
        Request.CLOSE: (Kind.HOLDING, set_bytes(session)),
        Request.COMMIT: (Kind.COMMIT, set_bytes(session)),
        Request.OPEN: (Kind.OPENING, DIGEST_BYTES + WORD.itemsize * session.dimension),
    }[request]
    answers = connections.ask({s: bytes([request]) for s in servers}, answer_bytes(payload))
    _all_of(servers, {s for s, messages in answers.items() if len(messages) == 1}, request)
    for server in servers:
        content = spoken(session, server, answers[server][0], kind, payload).payload
        try:
            if kind == Kind.OPENING:
                bytes_to_words(content[DIGEST_BYTES:], session.dimension)
            else:
                session.users_of(content)
        except ProtocolError as error:
            raise type(error)(f"{kind.name} of {name_of(server)}: {error}") from error
    return {server: answers[server][0] for server in servers}


def _agreed(session: Session, commits: dict[int, bytes], server: int, last: int) -> None:
    size = set_bytes(session)
    sets = [spoken(session, s, commits[s], Kind.COMMIT, size).payload for s in (server, last)]
    if sets[0] != sets[1]:
        raise SetMismatch(
            f"{name_of(server)} must commit to the set that the last server signed, signed another"
        )


def _all_of(servers: list[int], answered: set[int], request: Request) -> None:
    missing = ", ".join(name_of(server) for server in servers if server not in answered)
    if missing:
        raise OutOfOrder(f"all servers must answer {request.name}, missing {missing}")
