"""`federation start` of a party: everything is checked first, then it answers the operator."""

import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pretrain import check
from train_distributed.commands.federation.consent import consent
from train_distributed.commands.federation.embedding import own_set
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.invitation import Invitation
from train_distributed.flower.documents.ledger import Account, BudgetedJournal
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.run_log import RunLog
from train_distributed.flower.documents.sessions import remember, sessions_used
from train_distributed.flower.endpoint import Endpoint, UserEndpoint
from train_distributed.flower.round_endpoint import RoundsEndpoint
from train_distributed.flower.supernode import Node, serve
from train_distributed.ledger.entry import Entry, gaussian_fields, row_fields
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.journal import DurableJournal, Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER

CARRIER_LOG = "carrier.log"

if TYPE_CHECKING:
    from embed import EmbeddingSet
    from train_distributed.commands.federation import Start
    from train_distributed.commands.federation.reporting import Report
    from train_distributed.flower.evaluation_task import EvaluationTask
    from train_distributed.flower.model_task import ModelTask


def take_part(start: "Start") -> int:
    """Answers the operator until all agreed sessions are over, or it is gone for too long.

    Returns:
        0: the sessions are over; 1: the operator was gone.

    Raises:
        ValueError: a file or setting that does not fit; nothing was sent.
    """
    assert start.invitation is not None
    check.left_out("with an invitation", out=start.out, port=start.port)
    check.within("(0, inf]", patience=start.patience)
    user = Participant.of(start, start.invitation)
    invitation, party = user.invitation, user.party
    federation = invitation.federation
    if federation.protocol == "shares":
        raise ValueError("start must be of protocol secagg; of shares, a user reports")
    user.consent(start.accept)
    state = remember(start.folder, federation, party)
    journal = BudgetedJournal(user.account, DurableJournal(state))
    journal.check()
    log = RunLog.begin(start.folder, "start")
    with log.told():
        endpoint = _endpoint(user, journal)
        log.say(f"{federation.display_name(party)} of federation {federation.digest.hex()[:16]}")
        log.status(**_status(federation, party, state, "running"))
        address = start.superlink or invitation.superlink
        carrier, patience = log.directory / CARRIER_LOG, start.patience
        node = Node(endpoint, address, invitation.ca, start.folder, patience, carrier, log.say)
        code = serve(node)
    state_of = "over" if code == 0 else "the operator is gone"
    status = _status(federation, party, state, state_of)
    log.status(**status)
    log.say(f"{state_of}: {status['sessions used']} of {status['sessions']} sessions used")
    return code


def invited(
    given: str | Path, folder: Path, keys: PrivateKeys, accept: str, ca: Path | None = None
) -> Invitation:
    """Invitation in a folder or behind a link, with this party's place if it is a user's on a roll.

    Args:
        given: the folder, or the link.
        folder: the party's own; what a link names is kept there.
        keys: the party's own.
        accept: how the federation's digest must begin.
        ca: certificates of the authorities of the link's server.

    Raises:
        ValueError: a file that does not fit, or a place that is not proved.
        ConnectionError: the link's server is gone.
    """
    if isinstance(given, str) and "://" in given:
        check.installed("httpx", "a link", extra="flower")
        from train_distributed.flower.links import fetched

        given = fetched(given, folder, keys, authorities(ca)).folder
    return Invitation.read(Path(given), accept).placed(keys)


def authorities(ca: Path | None) -> ssl.SSLContext | None:
    """TLS context that trusts these authorities; None without any."""
    return None if ca is None else ssl.create_default_context(cafile=str(ca))


@dataclass(frozen=True)
class Participant:
    """A user that is about to take part: who it is in which federation, its task and its rows."""

    folder: Path
    keys: PrivateKeys
    invitation: Invitation
    party: int
    task: "ModelTask | EvaluationTask"
    rows: "EmbeddingSet"
    account: Account  # counts ε in the ledger next to the rows, unless another is named

    @classmethod
    def of(cls, options: "Start | Report", invitation: str | Path, ca: Path | None = None) -> Self:
        """Reads and checks everything; nothing is sent.

        Args:
            options: of the command.
            invitation: its folder, or the link to it.
            ca: certificates of the authorities of the link's server.

        Raises:
            ValueError: a file or setting that does not fit, or a server, which has no rows.
            ConnectionError: the link's server is gone.
        """
        folder, keys = options.folder, read_private(options.folder)
        found = invited(invitation, folder, keys, options.accept, ca)
        federation, party = found.federation, found.identify(keys, folder)
        who, embeddings = federation.display_name(party), own_set(folder, options.embeddings)
        if party >= FIRST_SERVER:
            raise ValueError(f"folder must be a user's, is of {who}: a server is an aggregator")
        if embeddings is None:
            raise ValueError(f"embeddings must be given for {who}, got none")
        from embed import EmbeddingSet
        from train_distributed.flower.evaluation_task import task_of

        task, rows = task_of(federation, found.agreed), EmbeddingSet.open(embeddings)
        entry = Entry.of(
            task.guarantee.privacy,
            row_fields(rows, task.part),
            gaussian_fields(*task.plans),
            users="",  # to the others this is one user
            kind=task.kind,
            method=task.terms.method,
            result=f"federation {federation.digest.hex()[:16]}",
        )
        ledger = Ledger.chosen(options.ledger, embeddings)
        account = Account(folder, federation, entry, ledger, options.limits)
        return cls(folder, keys, found, party, task, rows, account)

    def consent(self, accept: str) -> None:
        """See `consent.consent`."""
        consent(self.task, self.invitation, self.party, self.account, accept)


def _endpoint(user: Participant, journal: Journal) -> Endpoint:
    federation, party, task = user.invitation.federation, user.party, user.task
    first = partial(task.noised, task.encoded(party, user.rows))
    if federation.rounds:
        from train_distributed.flower.model_task import ModelTask

        if not isinstance(task, ModelTask):
            raise ValueError("rounds must be of a model, got those of an evaluation")
        rounds = task.rounds_of(party, user.rows)
        return RoundsEndpoint(federation, party, user.keys, journal, first, rounds)
    return UserEndpoint(federation, party, user.keys, first, journal)


def _status(federation: Federation, party: int, state: Path, what: str) -> dict[str, object]:
    return {
        "state": what,
        "party": federation.display_name(party),
        "federation": federation.digest.hex(),
        "sessions": federation.sessions,
        "sessions used": sessions_used(state, federation),
    }
