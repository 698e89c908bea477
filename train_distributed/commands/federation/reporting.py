"""`federation report`: everything is checked first, then one report is made, kept and sent."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pretrain import check
from train_distributed.commands.federation.taking_part import Participant, authorities
from train_distributed.flower.documents.ledger import BudgetedJournal, Limits
from train_distributed.flower.documents.sessions import remember, spend_session, state_of
from train_distributed.flower.documents.window_file import WINDOW, WindowFile
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import Window

if TYPE_CHECKING:
    from train_distributed.flower.sum_task import SumTask

KEPT = "report"  # the step of the journal that holds what is sent, as it is sent


@dataclass(frozen=True)
class Report:
    """User: compute the agreed vector and send it to the aggregators of a window, in shares."""

    folder: Path
    """Folder of `join`."""
    invitation: str | Path
    """The folder that the operator handed out, or the link to it
    (http://HOST:PORT/invitations/DIGEST)."""
    embeddings: Path | None = None
    """The embedding set (default: FOLDER/embeddings, which `join --pictures` has made)."""
    window: Path | None = None
    """The window.json that the operator handed out (default: the one behind the link)."""
    accept: str = ""
    """The federation's digest, or its first characters, which you have received over another
    channel. Without it you are shown the terms and asked, once per federation."""
    limits: Limits = field(default_factory=Limits)
    ledger: Path | None = None
    """File that counts what is given away, or `none` (default: beside the embedding set)."""
    ca: Path | None = None
    """Certificates of the authorities of the aggregators, where they have TLS."""
    patience: float = 600.0
    """Seconds after which an aggregator that is gone is an error; then report again."""

    def run(self) -> None:
        """Makes a report, keeps it and sends it; called again, it sends the same one.

        Raises:
            ValueError: a file or setting does not fit and nothing was made, or a refusal.
            OSError: an aggregator is gone; the same report can be sent again.
        """
        check.installed("httpx", "a report", extra="flower")
        from train_distributed.flower.aggregator_client import Aggregators

        me = Participant.of(self, self.invitation, self.ca)
        invitation, user, task = me.invitation, me.party, me.task
        federation = invitation.federation
        beside = invitation.folder / WINDOW
        if self.window is None and not beside.exists():
            raise ValueError(f"window must be given where {invitation.folder} holds none, got none")
        file = WindowFile.load(self.window or beside)
        window = agreed(file.window, task)
        plain = DurableJournal(state_of(self.folder, federation, user))
        journal = BudgetedJournal(me.account, plain)
        with Aggregators(
            window, file.addresses, authorities(self.ca), self.patience
        ) as aggregators:
            if journal.detail(window.digest, KEPT) is None:
                _check_time(window)
                me.consent(self.accept)
                remember(self.folder, federation, user)
                journal.check()
                encoded = task.encoded(user, me.rows)
                aggregators.connect()
                spend_session(journal, federation, window.digest, resume=True)
                norm_bound = task.norm_bounds[federation.known[user].rows]
                made = make_report(window, user, me.keys, encoded.view(np.int64), norm_bound)
                journal.claim(window.digest, KEPT, made)
            kept = journal.detail(window.digest, KEPT) or b""
            aggregators.report(user, kept)
        name = federation.display_name(user)
        print(f"reported as {name}: {len(kept)} bytes, acknowledged by the operator's aggregator")


def agreed(window: Window, task: "SumTask") -> Window:
    """The window, if it is one of this task's federation.

    Raises:
        ValueError: something in it is not as the federation says.
    """
    federation = task.federation
    expected = task.window(window.nonce, window.opens, window.closes)
    if expected.digest != window.digest:
        raise ValueError(f"window must be of federation {federation.digest.hex()}, is not")
    return window


def _check_time(window: Window) -> None:
    now = time.time()
    if not window.opens <= now < window.closes:
        moments = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(t)) for t in (window.opens, now)]
        closes = time.strftime("%Y-%m-%d %H:%M", time.gmtime(window.closes))
        raise ValueError(
            f"report must come from {moments[0]} to {closes} UTC, this clock says {moments[1]}"
        )
