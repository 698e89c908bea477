"""Sessions of the federations that a party's folder takes part in: each agreed one is spent once.

What was agreed on lies beside the journal that counts them, in one directory a federation.
"""

from dataclasses import dataclass
from pathlib import Path

from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import FEDERATION
from train_distributed.federation.documents.place import PLACE, Place, at_place
from train_distributed.federation.documents.private_keys import read_public
from train_distributed.federation.documents.terms import read_terms
from train_distributed.ledger.entry import Entry
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import DurableJournal, Journal
from train_distributed.secure_sum.keys import FIRST_SERVER

STATE = "state"  # in a party's folder
SESSION = "session"  # begins the steps of a journal that each spend one


def free_session(journal: Journal, federation: Federation) -> int | None:
    """Number of the first agreed session that is not used up; None: all are."""
    places, digest = range(federation.sessions), federation.digest
    return next((p for p in places if journal.detail(digest, f"{SESSION}{p}") is None), None)


def spend_session(
    journal: Journal, federation: Federation, detail: bytes, *, resume: bool = False
) -> None:
    """Uses up one of the agreed sessions, before any noise is drawn.

    Args:
        journal: of the user.
        federation: that agreed on the sessions.
        detail: the nonce, or the window's digest, that it is spent on.
        resume: whether a session that was spent on the same detail before is this one. Only where
            nothing was sent between: what was drawn for it must be unknown to all others.

    Raises:
        AlreadyOpened: none is left.
    """
    for place in range(federation.sessions):
        step = f"{SESSION}{place}"
        found = journal.detail(federation.digest, step)
        if resume and found == detail:
            return
        if found is None:
            try:
                return journal.claim(federation.digest, step, detail)
            except AlreadyOpened:  # another process of this user was faster
                continue
    raise no_session_left(federation)


def check_session_left(journal: Journal, federation: Federation, detail: bytes = b"") -> None:
    """Finds out, before anybody is asked or waited for, that all agreed sessions are used up.

    Args:
        journal: of the user.
        federation: that agreed on the sessions.
        detail: the window's digest, where a session that was spent on it is one that is left.
            Without it (`secagg`) a federation of two sums is let through: whoever has paid for the
            first may answer the second.

    Raises:
        AlreadyOpened: none is left.
    """
    spent = {
        journal.detail(federation.digest, f"{SESSION}{place}")
        for place in range(federation.sessions)
    }
    paid_before = bool(federation.second_dimension) and not detail
    if not paid_before and not spent & {None, detail or None}:
        raise no_session_left(federation)


def no_session_left(federation: Federation) -> AlreadyOpened:
    """Refusal of a session more than was agreed."""
    return AlreadyOpened(
        f"sessions must be <= {federation.sessions}, got one more: all that were agreed are used "
        "up, so the operator would have to make another federation"
    )


def sessions_used(state: Path, federation: Federation) -> int:
    """Number of the agreed sessions that a journal has recorded."""
    return len(DurableJournal(state).steps(federation.digest, SESSION))


def party_state(digest: bytes, party: str, root: Path) -> Path:
    """Directory of what must outlive a process of one party of one federation.

    Args:
        digest: the federation's.
        party: "operator", "user3", "server1".
        root: absolute directory for all of them.

    Raises:
        ValueError: a relative root: from another directory it would be another state.
    """
    if not root.is_absolute():
        raise ValueError(f"journal must be an absolute path, got {root}")
    return root / f"{digest.hex()[:16]}-{party}"


def state_of(folder: Path, federation: Federation, party: int) -> Path:
    """A party's state directory for this federation; it need not exist yet."""
    role = "user" if party < FIRST_SERVER else "server"
    label = f"{role}{party % FIRST_SERVER}"
    return party_state(federation.digest, label, folder.resolve() / STATE)


@dataclass(frozen=True)
class LedgerEntry:
    """One federation that a party's folder took part in."""

    digest: str  # of the federation
    called: str  # the party in it, as people know it
    user: bool  # computation servers give nothing away
    used: int  # sessions in which the party may have revealed its vector
    sessions: int  # that were agreed
    privacy: Privacy  # of one session
    method: str

    @property
    def epsilon(self) -> float:
        """Epsilon of one session."""
        return self.privacy.epsilon

    @property
    def spent(self) -> float:
        """ε of the sessions used, added up: at least what they come to."""
        return self.used * self.epsilon if self.user else 0.0

    @property
    def stated(self) -> Entry:
        """One session as an entry of a ledger, of which only the promise is known."""
        data = f"federation {self.digest}"
        return Entry.of(
            self.privacy, kind="release", data=data, method=self.method, noise="discrete"
        )


def remember(folder: Path, federation: Federation, party: int) -> Path:
    """Keeps what was agreed on beside its journal.

    Returns:
        The party's state directory for this federation: absolute, wherever the command is called.

    Raises:
        ValueError: another federation has this directory, whose digest begins like this one's:
            in one directory the sessions of one of them would not be counted.
    """
    state = state_of(folder, federation, party)
    state.mkdir(parents=True, exist_ok=True)
    path = state / FEDERATION
    if not path.exists():
        if party in federation.known:
            Place.of(party, federation.known[party]).save(state / PLACE)
        federation.save(path)
    elif (found := Federation.load(path).digest) != federation.digest:
        raise ValueError(
            f"{path} must be of federation {federation.digest.hex()}, is of {found.hex()}"
        )
    return state


def accepted(folder: Path, federation: Federation, party: int) -> bool:
    """Whether this folder took part in this federation before, with what its party accepted."""
    return (state_of(folder, federation, party) / FEDERATION).exists()


def read_ledger(folder: Path) -> list[LedgerEntry]:
    """Federations that the folder took part in, by digest.

    Raises:
        ValueError: naming a file that was changed.
    """
    key, found = read_public(folder).verifying, []
    for path in sorted((folder.resolve() / STATE).glob(f"*/{FEDERATION}")):
        federation = Federation.load(path)
        terms = read_terms(federation.task, set(federation.users), path)
        if (place := path.parent / PLACE).exists():
            federation = at_place(federation, place, key)
        party = federation.holder(key.hex())
        if party is None:
            raise ValueError(f"{path} must list the keys in {folder}, does not")
        used = sessions_used(path.parent, federation)
        digest, called = federation.digest.hex(), federation.display_name(party)
        user = party < FIRST_SERVER
        found.append(
            LedgerEntry(
                digest, called, user, used, federation.sessions, terms.privacy, terms.method
            )
        )
    return found
