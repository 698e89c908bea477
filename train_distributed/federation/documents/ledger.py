"""Privacy that a user has spent so far, over all federations that its folder took part in.

Sessions of one federation are counted by its journal, and what they cost together with everything
else on the same rows by the ledger beside these (`privacy.ledger`). The user's limits are looked at
twice: when a federation begins, so that nobody waits in vain, and when a session is spent, since
others may have spent theirs meanwhile.

An entry's reference holds the session's nonce, and bytes that the journal draws for it. So a user
whose journal is lost cannot spend under the same reference again: what the ledger counts of the
federation and the journal does not know has been given away, and uses up agreed sessions.
"""

import fcntl
import math
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from pretrain.cli.waiting import lock
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.sessions import SESSION, STATE, read_ledger
from train_distributed.ledger.entry import Entry
from train_distributed.ledger.ledger import TOLERANCE, Ledger
from train_distributed.ledger.state import Total
from train_distributed.privacy.promise import Unit
from train_distributed.secure_sum.journal import DurableJournal

ENTRY = "entry-"  # before a session's step: the step that holds the reference of its entry
REFERENCE_BYTES = 16  # that the journal draws for one


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A user's own limits; a federation beyond one of them is refused before anything is sent."""

    most_epsilon: float = 10.0
    """A user: largest total epsilon of all sums over its rows and from this folder so far, and of
    all agreed sums of this federation."""
    most_delta: float = 1e-4
    """A user: largest total delta of the same sums."""
    least_users: int = 2
    """A user: smallest number of users whose sum may be opened."""
    most_epsilon_alone: float = math.inf
    """A user: largest epsilon of all agreed sums if all other users collude with a server."""

    def validate(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        for name in ("most_epsilon", "most_delta", "least_users", "most_epsilon_alone"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if not math.isfinite(self.most_epsilon):
            raise ValueError(f"most_epsilon must be finite, got {self.most_epsilon}")


@dataclass(frozen=True)
class FederationAccount:
    """Privacy that a user spends in one federation, and the ledger that counts it.

    The ledger lies beside the user's rows, so it also holds what other commands have spent on them.
    Sessions of other federations of the folder that it does not hold (of other rows, of a time
    before it, or of a user who keeps none) are added as their journals and promises say.
    """

    folder: Path
    federation: Federation
    entry: Entry  # of one session
    ledger: Ledger | None
    limits: Limits = field(default_factory=Limits)  # the user's, not the operator's

    def check(self, sessions: int | None = None) -> None:
        """Refuses what would give away more than the user allows.

        Args:
            sessions: of this federation, those it has used included; None: all agreed ones.

        Raises:
            ValueError: naming what was spent, what would be, and what was allowed.
        """
        before, after = self.totals(sessions)
        for name, needed in (("most_delta", after.least_delta), ("most_epsilon", after.epsilon())):
            if not needed <= (given := getattr(self.limits, name)) * (1 + TOLERANCE):
                raise ValueError(
                    f"{name} must be >= {needed:g}, got {given:g}: all sums together come to "
                    f"epsilon {after.epsilon():g} at delta {after.least_delta:g}, of which "
                    f"{before.epsilon():g} was given away by {before.entries} other sum(s)"
                )

    def totals(self, sessions: int | None = None) -> tuple[Total, Total]:
        """Cost of all other sums, without and with so many sessions of this federation."""
        others = self._others()
        here = self.spent(self.federation.sessions if sessions is None else sessions)
        unit = self._unit(others)
        return Total.of(others, unit), Total.of([here, *others], unit)

    def reserve(self, journal: DurableJournal, step: str, nonce: bytes) -> None:
        """Counts a session before its vector is drawn; once, however often it is asked for."""
        if self.ledger is None:
            return
        digest, named = self.federation.digest, ENTRY + step
        if journal.detail(digest, named) is None:
            drawn = secrets.token_hex(REFERENCE_BYTES)
            journal.claim(digest, named, f"{digest.hex()}/{step}/{nonce.hex()}/{drawn}".encode())
        reference = (journal.detail(digest, named) or b"").decode()
        kind = self.ledger.release_kind(self.entry.data)
        self.ledger.reserve(replace(self.entry, kind=kind, reference=reference))

    def recover(self, journal: DurableJournal) -> None:
        """Uses up agreed sessions that the ledger counts and a journal that was lost does not.

        Raises:
            ValueError: none is left. With two sums a session none ever is: whether the lost ones
                have answered the second, only the lost journal knew. Or a session that the journal
                knows is in another ledger, which is of other rows.
        """
        federation, digest = self.federation, self.federation.digest
        known = {journal.detail(digest, step) for step in journal.steps(digest, ENTRY)}
        used = journal.steps(digest, SESSION)
        known |= {f"{digest.hex()}/{step}".encode() for step in used}
        own = [entry.reference.encode() for entry in self._held() if self._of_this(entry)]
        spent = {journal.detail(digest, ENTRY + step) for step in used} - {None}
        if self.ledger is not None and not spent <= {*own}:
            raise ValueError(
                "ledger must be the one that counts the sessions of this federation so far, got "
                f"{self.ledger.path} (beside other rows?)"
            )
        lost = [reference for reference in own if reference not in known]
        left = 0 if federation.second_dimension else federation.sessions - len(used) - len(lost)
        if lost and self.ledger is not None and left < 1:
            raise ValueError(
                f"sessions must be <= {federation.sessions}, got one more: {self.ledger.path.name} "
                f"counts {len(lost)} of this federation that {self.folder / STATE} does not hold"
            )
        for reference in lost:
            free = (f"{SESSION}{place}" for place in count())
            step = next(step for step in free if journal.detail(digest, step) is None)
            journal.claim(digest, step, b"")
            journal.claim(digest, ENTRY + step, reference)

    def spent(self, sessions: int) -> Entry:
        """So many sessions of this federation as one entry; at least one."""
        if self.entry.gaussian:
            return replace(
                self.entry,
                epsilon=math.inf,  # of one session it would be less than the noise gives
                compositions=self.entry.compositions * sessions,
                zeta=self.entry.zeta * sessions,
            )
        return replace(
            self.entry, epsilon=self.entry.epsilon * sessions, delta=self.entry.delta * sessions
        )

    def _others(self) -> list[Entry]:
        """All that was given away, but for this federation."""
        own = self.federation.digest.hex()
        entries = [entry for entry in self._held() if not self._of_this(entry)]
        known = [entry.reference.partition("/")[0] for entry in entries]
        for each in read_ledger(self.folder):
            missing = each.used - known.count(each.digest)
            if each.user and each.digest != own and missing > 0:
                entries += [each.stated] * missing
        return entries

    def _unit(self, others: Iterable[Entry]) -> Unit:
        """Users where everything protects users; else records, which a user's promise covers."""
        return "user" if all(e.unit == "user" for e in (self.entry, *others)) else "record"

    def _held(self) -> list[Entry]:
        return [] if self.ledger is None else [r.entry for r in self.ledger.state().records]

    def _of_this(self, entry: Entry) -> bool:
        return entry.reference.startswith(self.federation.digest.hex())


class BudgetedJournal:
    """A user's journal that spends no session beyond its limits, and none that no ledger counts.

    Args:
        account: of the user.
        journal: where sessions are recorded.
    """

    def __init__(self, account: FederationAccount, journal: DurableJournal) -> None:
        self._account, self._journal = account, journal

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`.

        Raises:
            ValueError: the step spends a session of the federation, for which nothing is left.
        """
        if session != self._account.federation.digest or not step.startswith(SESSION):
            return self._journal.claim(session, step, detail)
        with _locked(self._account.folder):
            self._account.recover(self._journal)
            if self._journal.detail(session, step) is None:
                self._account.check(len(self._journal.steps(session, SESSION)) + 1)
                self._account.reserve(self._journal, step, detail)
            self._journal.claim(session, step, detail)

    def check(self) -> None:
        """Looks, before anybody is asked, whether the journal can be written and a session is left.

        Raises:
            ValueError: all agreed sessions were given away, which a journal that is lost knew.
            OSError: it cannot be written.
        """
        self._journal.check()
        with _locked(self._account.folder):
            self._account.recover(self._journal)

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        return self._journal.detail(session, step)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time spends what a folder may give away."""
    with (folder / STATE / "lock").open("a") as file:
        lock(file.fileno(), fcntl.LOCK_EX, f"{folder} in use")
        yield
