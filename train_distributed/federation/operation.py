"""The operator's process: its service listens, and one session is run or resumed over it."""

import hashlib
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.routing import Route

from pretrain.cli.waiting import to_terminal
from train_distributed.federation.aggregator_watch import logged
from train_distributed.federation.centre import OpenedSums, Publish
from train_distributed.federation.connections import Operator
from train_distributed.federation.coordinator import coordinate
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.orders import Request, words, write_order
from train_distributed.federation.polling import open_relay
from train_distributed.federation.progress import Log
from train_distributed.federation.record import CannotResume, SessionLog
from train_distributed.secure_sum.errors import Misbehaviour, ProtocolError
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.keys import PrivateKeys, name_of
from train_distributed.secure_sum.opening import Opened

JOURNAL = "journal"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Federation that the operator runs, and where it keeps its files."""

    federation: Federation
    keys: PrivateKeys
    tls: ssl.SSLContext | None  # of the service; None: plain HTTP, as a proxy has it
    host: str
    port: int
    state: Path  # absolute directory that outlives this process: see `party_state`
    run: Path  # directory for status.json and the service's log
    routes: Iterable[Route] = ()  # more that the service answers
    ready: Callable[[], None] = lambda: None  # called when the parties may connect
    say: Callable[[str], None] = to_terminal  # a line per stage
    publish: Publish | None = None  # of a federation of two sums: the centre of the second one


def operate(operation: Operation) -> tuple[list[Opened], Log]:
    """Runs one session, of one sum or two; resumes what an earlier process did not finish.

    The sum stays in `operation.state` until `record.settle` forgets it: after a crash, or where the
    model could not be saved, the same call opens the same sum again.

    Returns:
        The sums and what went wrong on the way.

    Raises:
        ValueError: no sum; the message names who is missing. Nothing is released.
    """
    operation.run.mkdir(parents=True, exist_ok=True)
    log = Log(operation.run, operation.say)
    try:
        journal = DurableJournal(operation.state / JOURNAL)
        journal.check()
        with (
            SessionLog(operation.state) as record,
            logged(operation.run),
            _relay(operation) as relay,
        ):
            operation.ready()
            operator = Operator(
                federation=operation.federation,
                keys=operation.keys,
                journal=journal,
                relay=relay,
                record=record,
                log=log,
            )
            opened = run_sums(operator, operation.state, operation.publish)
    except (ValueError, OSError) as error:
        lost = ", ".join(f"{name_of(u)} ({step})" for u, step in sorted(log.missing.items()))
        refused = "; ".join(log.refused[:20])
        text = f"{words(error)}; missing: {lost or 'nobody'}; refused: {refused or 'nothing'}"
        log.outcome(text)
        raise ValueError(text) from error
    log.outcome(f"opened: the sum of {len(opened[0].users)} users")
    return opened, log


def run_sums(operator: Operator, state: Path, publish: Publish | None) -> list[Opened]:
    """The session under way or a new one, then the second sum where one was agreed on.

    Args:
        operator: who runs the first sum.
        state: its directory, see `Operation`.
        publish: the centre of the second sum; None without one.

    Raises:
        ProtocolError, CannotResume, OSError: as `coordinate`; a first sum that was opened is kept.
    """
    federation, log = operator.federation, operator.log
    if not federation.second_dimension or publish is None:
        return [run_session(operator)]
    sums = OpenedSums(state, federation)
    if not sums.opened:
        sums.keep(0, run_session(operator))
    centre = sums.centre(publish)
    if len(sums.opened) == 1:
        log.say("the second sum, about the centre of the first")
        preface = write_order(federation, Request.CENTRE, centre, operator.keys)
        with SessionLog(sums.directory) as record:
            at = replace(operator, federation=federation.at(centre), record=record, preface=preface)
            sums.keep(1, run_session(at))
    log.session = hashlib.sha256(centre).hexdigest()
    return sums.opened


def _relay(operation: Operation):
    return open_relay(
        operation.federation,
        operation.tls,
        operation.host,
        operation.port,
        operation.routes,
    )


def run_session(operator: Operator) -> Opened:
    """The session under way, if there is one, and if it cannot be finished or was none, a new one.

    A session that fails is given up: its nonce is never used again. Where users have spent a ticket
    on it they will not take part in more than was agreed, and say so. Users by whose fault a
    session failed are left out of the next ones, also where the operator is killed between two of
    them, until there is a sum or the operator gives up.
    """
    record, log = operator.record, operator.log
    _tell_left_out(record.left_out, log)
    while True:
        resumed, excluded = record.session is not None, frozenset(record.left_out)
        try:
            return coordinate(operator, excluded)
        except Misbehaviour as error:
            if not resumed and error.culprits.keys() <= excluded:
                record.forget()
                record.pardon()
                raise
            record.leave_out(error.culprits)  # before it is forgotten why
            record.forget()
            _tell_left_out(error.culprits, log)
            names = ", ".join(name_of(user) for user in sorted(error.culprits))
            log.say(f"a new session starts without {names}")
        except (ProtocolError, CannotResume) as error:
            record.forget()
            if not resumed:
                record.pardon()
                raise
            log.missing.clear()
            log.refuse("operator", f"could not finish session {log.session}: {words(error)}")
            log.say("the session that was interrupted cannot be finished; a new one starts")


def _tell_left_out(culprits: Mapping[int, str], log: Log) -> None:
    for user, what in culprits.items():
        log.refuse(name_of(user), f"left out: {what}")
