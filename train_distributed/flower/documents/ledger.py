"""What a user has given away so far, over all federations that its folder took part in.

Sessions of one federation are counted by its journal. The ε and δ of sessions add up, within a
federation and across federations, which holds whatever they have in common. A budget is looked at
twice: when a federation begins, so that nobody waits in vain, and when a session is spent, since
other federations of the same folder may have spent theirs meanwhile.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.invitation import FEDERATION
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.state import party_state
from train_distributed.flower.documents.terms import Terms
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.session import FIRST_SERVER

STATE = "state"
SESSION = "session"  # begins the steps of a journal that each spend one


@dataclass(frozen=True)
class LedgerEntry:
    """One federation that a party's folder took part in."""

    digest: str  # of the federation
    called: str  # the party in it, as people know it
    user: bool  # computation servers give nothing away
    used: int  # sessions in which the party may have revealed its vector
    sessions: int  # that were agreed
    epsilon: float  # of one session

    @property
    def spent(self) -> float:
        """ε of the sessions used."""
        return self.used * self.epsilon if self.user else 0.0


def remember(folder: Path, federation: Federation, party: int) -> Path:
    """Keeps what was agreed on beside its journal.

    Returns:
        The party's state directory for this federation: absolute, wherever the command is called.

    Raises:
        ValueError: another federation has this directory, whose digest begins like this one's:
            in one directory the sessions of one of them would not be counted.
    """
    state = _state(folder, federation, party)
    state.mkdir(parents=True, exist_ok=True)
    path = state / FEDERATION
    if not path.exists():
        federation.save(path)
    elif (found := Federation.load(path).digest) != federation.digest:
        raise ValueError(
            f"{path} must be of federation {federation.digest.hex()}, is of {found.hex()}"
        )
    return state


def read_ledger(folder: Path) -> list[LedgerEntry]:
    """What the folder took part in, by digest.

    Raises:
        ValueError: naming a file that was changed.
    """
    verifying, found = read_private(folder).public.verifying.hex(), []
    for path in sorted((folder.resolve() / STATE).glob(f"*/{FEDERATION}")):
        federation = Federation.load(path)
        terms = Terms.read(federation.task, set(federation.users), path)
        party = federation.holder(verifying)
        if party is None:
            raise ValueError(f"{path} must list the keys in {folder}, does not")
        used = sessions_used(path.parent, federation)
        digest, called = federation.digest.hex(), federation.call(party)
        user = party < FIRST_SERVER
        found.append(
            LedgerEntry(digest, called, user, used, federation.sessions, terms.privacy.epsilon)
        )
    return found


def check_budget(folder: Path, federation: Federation, budget: float | None) -> None:
    """Refuses a federation whose sessions would give away more than the user allows.

    Args:
        folder: the user's.
        federation: in which it is to take part; sessions it has used there are not counted twice.
        budget: ε of all sessions of all federations; None: those of this federation alone.

    Raises:
        ValueError: naming what was spent, what would be, and what was allowed.
    """
    others = _spent_elsewhere(folder, federation)
    here = federation.sessions * _epsilon(federation, folder)
    _afford(others, here, here if budget is None else budget)


class BudgetedJournal:
    """A user's journal that spends no session beyond the budget of the user's whole folder.

    Args:
        folder: the user's.
        federation: whose sessions are spent.
        budget: as for `check_budget`.
        journal: where they are recorded.
    """

    def __init__(
        self, folder: Path, federation: Federation, budget: float | None, journal: DurableJournal
    ) -> None:
        self._folder, self._federation, self._journal = folder, federation, journal
        self._epsilon = _epsilon(federation, folder)
        self._budget = federation.sessions * self._epsilon if budget is None else budget

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        """See `Journal.claim`.

        Raises:
            ValueError: the step spends a session of the federation, for which nothing is left.
        """
        if session != self._federation.digest or not step.startswith(SESSION):
            return self._journal.claim(session, step, detail)
        with _locked(self._folder):
            used = self._journal.count(session, SESSION)
            others = _spent_elsewhere(self._folder, self._federation)
            _afford(others, (used + 1) * self._epsilon, self._budget)
            self._journal.claim(session, step, detail)

    def detail(self, session: bytes, step: str) -> bytes | None:
        """See `Journal.detail`."""
        return self._journal.detail(session, step)


def sessions_used(state: Path, federation: Federation) -> int:
    """How many of the agreed sessions a journal has recorded."""
    return DurableJournal(state).count(federation.digest, SESSION)


def _epsilon(federation: Federation, folder: Path) -> float:
    """Of one session."""
    return Terms.read(federation.task, set(federation.users), folder).privacy.epsilon


def _spent_elsewhere(folder: Path, federation: Federation) -> list[float]:
    """ε of the sessions used, of each other federation."""
    return [e.spent for e in read_ledger(folder) if e.digest != federation.digest.hex()]


def _afford(others: list[float], here: float, allowed: float) -> None:
    before = sum(others)
    if before + here > allowed * (1 + 1e-9):
        raise ValueError(
            f"budget must be >= {before + here:g}, got {allowed:g}: epsilon {before:g} was given "
            f"away in {len(others)} other federation(s), and this one may take {here:g}"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time spends what a folder may give away."""
    with (folder / STATE / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _state(folder: Path, federation: Federation, party: int) -> Path:
    role = "user" if party < FIRST_SERVER else "server"
    label = f"{role}{party % FIRST_SERVER}"
    return party_state(federation.digest, label, folder.resolve() / STATE)
