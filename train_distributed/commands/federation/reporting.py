"""A user that takes part: who it is, its terms and its consent; and `federation report`.

Everything is checked first. The terms are shown, compared with the user's own limits, and accepted.
Then one report is made, kept and sent.
"""

import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from pretrain.public import function
from train_distributed.commands.federation.embedding import own_set
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.ledger import BudgetedJournal, FederationAccount, Limits
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.sessions import (
    accepted,
    check_session_left,
    remember,
    spend_session,
    state_of,
)
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.ledger.entry import Entry, row_fields
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.aggregator import read_centre
from train_distributed.secure_sum.journal import DurableJournal, ResumedJournal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import Window

if TYPE_CHECKING:
    from embed import EmbeddingSet
    from train_distributed.commands.federation import Start
    from train_distributed.federation.aggregator_client import Aggregators
    from train_distributed.federation.evaluation_task import EvaluationTask
    from train_distributed.federation.model_task import ModelTask
    from train_distributed.federation.sum_task import SumTask

LINKED = re.compile("/invitations/[0-9a-f]{64}")  # in what is meant as a link
MOST_CLASSES = 20  # that are shown
KEPT = "report"  # the step of the journal that holds what is sent, as it is sent


@dataclass(frozen=True)
class Report:
    """User: compute the agreed vector and send it to the aggregators of a window, in shares."""

    folder: Path
    """Folder of `join`."""
    invitation: str | Path
    """The folder that the operator handed out, or the link to it
    (https://HOST:PORT/invitations/DIGEST)."""
    embeddings: Path | None = None
    """The embedding set (default: FOLDER/embeddings, which `join --pictures` has made)."""
    window: Path | None = None
    """The window.json that the operator handed out, or its folder (default: the one behind the
    link)."""
    accept: str = ""
    """The federation's digest, or its first characters, which you have received over another
    channel. Without it you are shown the terms and asked, once per federation."""
    limits: Limits = field(default_factory=Limits)
    ledger: Path | None = None
    """Ledger that counts the epsilon spent, or `none` (default: beside the embedding set)."""
    patience: float = 600.0
    """Seconds to wait for an aggregator that does not answer, and for the centre of a second sum;
    after that, report again."""
    passphrase_file: Path | None = None
    """File with the passphrase of the keys in FOLDER (default: asked for if they have one)."""

    def run(self) -> None:
        """Makes a report, keeps it and sends it; called again, it sends the same one.

        Of two sums it waits for the centre of the second one, and reports to that, too; a user
        that comes when the centre is published reports to the second sum alone.

        Raises:
            ValueError: a file or setting does not fit and nothing was made, or a refusal.
            OSError: an aggregator is gone; the same report can be sent again.
        """
        check.within("[0, inf)", patience=self.patience)
        check.installed("httpx", "a report", extra="federation")
        from train_distributed.federation.aggregator_client import Aggregators, Refused
        from train_distributed.federation.model_task import ModelTask

        file = None if self.window is None else _window(self.window)
        me = Participant.of(self, self.invitation)
        invitation, user, task = me.invitation, me.party, me.task
        federation = invitation.federation
        if file is None and not (invitation.folder / WINDOW).exists():
            raise ValueError(f"window must be given where {invitation.folder} holds none, got none")
        file = file or _window(invitation.folder)
        window = agreed(file.window, task)
        journal = BudgetedJournal(
            me.account, DurableJournal(state_of(self.folder, federation, user))
        )
        lines = partial(
            Aggregators,
            addresses=file.addresses,
            tls=trust(invitation.certificates),
            patience=self.patience,
        )
        with lines(window) as aggregators:
            if journal.detail(window.digest, KEPT) is None:
                _check_time(window)
                check_session_left(journal, federation, window.digest)
                me.consent(self.accept, aggregators.called(FIRST_SERVER))
                remember(self.folder, federation, user)
                journal.check()
            order = aggregators.published() if window.second else b""
            if not order:
                try:
                    encoded = partial(task.encoded, user, me.rows)
                    me.report(journal, aggregators, window, window, encoded)
                except Refused as error:  # it may be closed, and its centre not yet published
                    if window.second is None:
                        raise
                    print(f"not in the first sum: {error}")
            if window.second and not order and not (order := aggregators.await_centre()):
                return print("there is a second sum: once its centre is published, report again")
        if order:
            assert isinstance(task, ModelTask)
            journal.check()
            centre = read_centre(window, order)
            vector = task.encoded_at(user, me.rows)(centre)  # looks at its bounds, before it counts
            ResumedJournal(journal).claim(window.digest, "centre", hashlib.sha256(centre).digest())
            with lines(window.at(centre)) as aggregators:
                me.report(journal, aggregators, window, window.at(centre), lambda: vector)
        return None


federation_report = function("federation_report", Report)


def _window(path: Path) -> WindowFile:
    return WindowFile.load(path / WINDOW if path.is_dir() else path)


def agreed(window: Window, task: "SumTask") -> Window:
    """The window, if it is one of this task's federation.

    Raises:
        ValueError: something in it is not as the federation says.
    """
    federation = task.federation
    expected = task.window(window.nonce, window.opens, window.closes)
    if expected.digest != window.digest:
        raise ValueError(f"window must be of federation {federation.digest.hex()}, is not")
    return expected


def _check_time(window: Window) -> None:
    now = time.time()
    if not window.opens <= now < window.closes:
        moments = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(t)) for t in (window.opens, now)]
        closes = time.strftime("%Y-%m-%d %H:%M", time.gmtime(window.closes))
        raise ValueError(
            f"report must come from {moments[0]} to {closes} UTC, this clock says {moments[1]}"
        )


def invited(given: str | Path, folder: Path, keys: PrivateKeys, accept: str) -> Invitation:
    """Invitation in a folder or behind a link, with this party's place if it is a user's on a roll.

    Args:
        given: the folder, or the link.
        folder: the party's own; what a link names is kept there.
        keys: the party's own.
        accept: how the federation's digest must begin.

    Raises:
        ValueError: a file that does not fit, or a place that is not proved.
        ConnectionError: the link's server is gone.
    """
    if isinstance(given, str) and ("://" in given or LINKED.search(given)):
        check.installed("httpx", "a link", extra="federation")
        from train_distributed.federation.links import fetched

        given = fetched(given, folder, keys).folder
    return Invitation.read(Path(given), accept).placed(keys)


@dataclass(frozen=True)
class Participant:
    """A user that is about to take part: who it is in which federation, its task and its rows."""

    folder: Path
    keys: PrivateKeys
    invitation: Invitation
    party: int
    task: "ModelTask | EvaluationTask"
    rows: "EmbeddingSet"
    account: FederationAccount  # counts ε in the ledger next to the rows, unless another is named

    @classmethod
    def of(cls, options: "Start | Report", invitation: str | Path) -> Self:
        """Reads and checks everything; nothing is sent.

        Args:
            options: of the command.
            invitation: its folder, or the link to it.

        Raises:
            ValueError: a file or setting that does not fit, or a server, which has no rows.
            ConnectionError: the link's server is gone.
        """
        folder = options.folder
        keys = read_private(folder, options.passphrase_file)
        found = invited(invitation, folder, keys, options.accept)
        federation, party = found.federation, found.identify(keys, folder)
        who, embeddings = federation.display_name(party), own_set(folder, options.embeddings)
        if party >= FIRST_SERVER:
            raise ValueError(f"folder must be a user's, is of {who}: a server is an aggregator")
        if embeddings is None:
            raise ValueError(f"embeddings must be given for {who}, got none")
        if not embeddings.is_dir():  # found before the libraries are loaded
            raise ValueError(f"embeddings must be an existing directory, got {embeddings}")
        from embed import EmbeddingSet
        from embed.encoding import refuse_other
        from train_distributed.federation.evaluation_task import task_of

        task, rows = task_of(federation, found.agreed), EmbeddingSet.open(embeddings)
        refuse_other(task.encoding, rows.encoding, ("federation", "embeddings"))
        entry = Entry.of(
            task.guarantee.privacy,
            row_fields(rows, task.part),
            task.plan.spends(),
            users="",  # to the others this is one user
            kind=task.kind,
            method=task.terms.method,
            result=f"federation {federation.digest.hex()[:16]}",
        )
        ledger = Ledger.chosen(options.ledger, embeddings)
        account = FederationAccount(folder, federation, entry, ledger, options.limits)
        return cls(folder, keys, found, party, task, rows, account)

    def consent(self, accept: str, at: str) -> None:
        """Shows what a user takes part in, and returns if it is within its limits and accepted.

        Accepted are the federation whose digest was given, and the one that this folder took part
        in before: its digest covers all that was agreed on. Otherwise the user is asked.

        Args:
            accept: how the federation's digest begins; empty: not said.
            at: where the vector is sent, and through which proxy.

        Raises:
            ValueError: above a limit, or not accepted. Nothing was sent or counted.
        """
        account, task = self.account, self.task
        federation, limits = self.invitation.federation, account.limits
        limits.validate()
        if federation.certain < limits.least_users:
            raise ValueError(
                f"least_users must be <= {federation.certain}, the fewest users of whom federation "
                f"{federation.digest.hex()} opens a sum, got {limits.least_users}"
            )
        if (alone := task.epsilon_if_all_others_collude) > limits.most_epsilon_alone:
            raise ValueError(
                f"most_epsilon_alone must be >= {alone:g}, got {limits.most_epsilon_alone:g}"
            )
        account.check()
        for line in self.terms(at):
            print(line)
        if accept or accepted(self.folder, federation, self.party):
            return
        digest = federation.digest.hex()
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ValueError(
                "accept must be given where nobody can be asked, got none: --accept and the digest "
                "that the operator told you by another way"
            )
        print(
            f"Is this the digest that you were told, and do you take part by {at}? yes or no: ",
            end="",
            flush=True,
        )
        if (answer := sys.stdin.readline().strip()) != "yes":
            raise ValueError(
                f"answer must be yes to take part in federation {digest}, got {answer!r}"
            )

    def report(
        self,
        journal: BudgetedJournal,
        aggregators: "Aggregators",
        agreed: Window,
        window: Window,
        encoded: Callable[[], NDArray[np.uint64]],
    ) -> None:
        """Makes a report, once, and sends it.

        Args:
            journal: of the user, which keeps what is sent before it is.
            aggregators: of the sum.
            agreed: the window, on which one session is spent, for both of its sums.
            window: the same, or that of its second sum.
            encoded: makes the vector.

        Raises:
            ValueError: a refusal, or no session is left; nothing was sent.
            OSError: an aggregator is gone; the same report can be sent again.
        """
        federation, user = self.invitation.federation, self.party
        if journal.detail(window.digest, KEPT) is None:
            rows, vector = federation.known[user].rows, encoded().view(np.int64)
            made = make_report(window, user, self.keys, vector, window.sizes[rows][1])
            aggregators.connect(window.closes - time.time())
            spend_session(journal, federation, agreed.digest, resume=True)
            journal.claim(window.digest, KEPT, made)
        kept = journal.detail(window.digest, KEPT) or b""
        aggregators.report(user, kept)
        print(
            f"reported as {federation.display_name(user)}: {len(kept)} bytes, acknowledged by the "
            f"operator's aggregator{' for the second sum' if window is not agreed else ''}"
        )

    def terms(self, at: str) -> Iterator[str]:
        """Lines that say what a user gives away to whom; every ε and δ is rounded up."""
        from train_distributed.federation.documents.terms import file_hash
        from train_distributed.federation.model_task import ModelTask
        from train_distributed.federation.sum_task import SUMS, sizes_of
        from train_distributed.one_shot.class_prior import class_names
        from train_distributed.released.numbers import rounded_up

        task, invitation, account = self.task, self.invitation, self.account
        federation, guarantee = invitation.federation, task.guarantee
        privacy, limits, (before, after) = guarantee.privacy, account.limits, account.totals()
        names = class_names(task.terms.class_names, task.terms.num_classes)
        shown = [*names[:MOST_CLASSES], *(["..."] if len(names) > MOST_CLASSES else [])]
        more = federation.second_dimension
        size = 8 * (federation.dimension + more)
        second = f", then one of {more}" if more else ""
        delta = f"delta {rounded_up(privacy.delta)}"
        known = task.transform.known if isinstance(task, ModelTask) else None
        if privacy.noise_by == "servers":
            honest, noise = (
                "one of the two servers must be honest; users need not be",
                "without noise",
            )
        else:
            needed = guarantee.users - guarantee.min_survivors + guarantee.honest
            honest = f"at least {needed} of {guarantee.users} users must be honest"
            noise = "your noise inside"
        servers = [p for p in sorted(federation.verifying) if p >= FIRST_SERVER]
        yield f"{federation.display_name(self.party)} of federation {federation.digest.hex()}"
        several = (task if isinstance(task, ModelTask) else task.model).findings
        learned = f"{len(names)} {'findings' if several else 'classes'}: {', '.join(shown)}"
        yield f"  {task.kind} by method {task.terms.method}; {learned}"
        if task.encoding is not None:
            yield f"  rows: by {task.encoding}"
        if known is not None:
            yield f"  known of the classes before, from public sources: {'; '.join(known.words)}"
        yield (
            f"  sent: one vector of {federation.dimension} numbers{second}, {noise}: "
            f"{size} bytes before encryption, in each of {federation.sessions} session(s)"
        )
        yield (
            f"  epsilon {rounded_up(privacy.epsilon)} at {delta} of one session, "
            f"{rounded_up(task.epsilon_of_all_sessions)} of all agreed ones: "
            f"{privacy.report()['neighbouring']}"
        )
        rows = int(sizes_of(federation, task.terms.sizes).sum())
        yield from (f"  {words}" for words in privacy.large_delta(rows).values())
        yield f"  {honest}"
        yield f"  {task.if_all_others_collude}"
        yield (
            f"  with all that you gave away before (epsilon {rounded_up(before.epsilon())}): "
            f"epsilon {rounded_up(after.epsilon())} at delta {rounded_up(after.least_delta)}; "
            f"your limits: {limits.most_epsilon:g} at {limits.most_delta:g}"
        )
        yield f"  sums of {federation.certain} users and more; {SUMS[federation.protocol]}"
        yield f"  servers: {', '.join(map(federation.display_name, servers))}"
        by = "" if federation.certificates else ", whose proxy has TLS by a public authority"
        yield f"  sent to {at}{by}"
        if federation.protocol == "secagg":
            yield f"  {federation.deadlines.words}"
        yield f"  secret from {task.holds_against}"
        yield f"  {invitation.agreed.name}: SHA-256 {file_hash(invitation.agreed)}"
