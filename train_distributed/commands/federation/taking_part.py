"""`federation start` of a party: everything is checked first, then it answers the operator."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain import check
from train_distributed.commands.federation.reporting import Participant
from train_distributed.federation.attendance import Attendance, alone, attend
from train_distributed.federation.centre import CentreEndpoint
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.ledger import BudgetedJournal
from train_distributed.federation.documents.run_log import RunLog
from train_distributed.federation.documents.sessions import (
    check_session_left,
    remember,
    sessions_used,
)
from train_distributed.federation.documents.window_file import split_address
from train_distributed.federation.endpoint import Endpoint, UserEndpoint
from train_distributed.federation.flower_app.party import UNIX, NodeLine
from train_distributed.federation.proxies import proxy_for
from train_distributed.secure_sum.journal import DurableJournal, Journal

if TYPE_CHECKING:
    from train_distributed.commands.federation import Start


def take_part(start: "Start") -> int:
    """Answers the operator until all agreed sessions are over, or it is gone for too long.

    Returns:
        0: the sessions are over; 1: the operator was gone.

    Raises:
        ValueError: a file or setting that does not fit; nothing was sent.
    """
    assert start.invitation is not None
    check.not_set("with an invitation", out=start.out, port=start.port)
    check.within("(0, inf]", patience=start.patience)
    by_flower = start.operator is not None and start.operator.startswith(UNIX)
    if start.operator is not None and not by_flower:
        split_address(start.operator)
    user = Participant.of(start, start.invitation)
    invitation, party = user.invitation, user.party
    federation = invitation.federation
    if federation.protocol == "shares":
        raise ValueError("start must be of protocol secagg; of shares, a user reports")
    address = start.operator or invitation.address
    proxy = None if by_flower else proxy_for(split_address(address)[0])
    through = f" through {proxy}" if proxy else ""
    at = f"the Flower node at {address}" if by_flower else f"the operator at {address}{through}"
    user.consent(start.accept, at)
    state = remember(start.folder, federation, party)
    journal = BudgetedJournal(user.account, DurableJournal(state))
    journal.check()
    check_session_left(journal, federation)
    log = RunLog.begin(start.folder, "start")
    with log.told(), alone(state):
        endpoint = _endpoint(user, journal)
        log.say(f"{federation.display_name(party)} of federation {federation.digest.hex()[:16]}")
        log.status(**_status(federation, party, state, "running"))
        attendance = Attendance(
            endpoint=endpoint,
            federation=federation,
            party=party,
            keys=user.keys,
            address=address,
            certificates=invitation.certificates,
            patience=start.patience,
            say=log.say,
        )
        code = attend(attendance, NodeLine(attendance) if by_flower else None)
    state_of = "over" if code == 0 else "the operator is gone"
    status = _status(federation, party, state, state_of)
    log.status(**status)
    log.say(f"{state_of}: {status['sessions used']} of {status['sessions']} sessions used")
    return code


def _endpoint(user: Participant, journal: Journal) -> Endpoint:
    federation, party, task = user.invitation.federation, user.party, user.task
    first = partial(task.noised, task.encoded(party, user.rows))
    if federation.second_dimension:
        from train_distributed.federation.model_task import ModelTask

        if not isinstance(task, ModelTask):
            raise ValueError("second_dimension must be 0 in an evaluation, is not")
        second = task.at_centre(party, user.rows)
        return CentreEndpoint(federation, party, user.keys, journal, first, second)
    return UserEndpoint(federation, party, user.keys, first, journal)


def _status(federation: Federation, party: int, state: Path, what: str) -> dict[str, object]:
    return {
        "state": what,
        "party": federation.display_name(party),
        "federation": federation.digest.hex(),
        "sessions": federation.sessions,
        "sessions used": sessions_used(state, federation),
    }
