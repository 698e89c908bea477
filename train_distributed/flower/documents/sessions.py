"""The agreed sessions of a federation, which a user's journal counts: each is spent once."""

from pathlib import Path

from train_distributed.flower.documents.federation import Federation
from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import DurableJournal, Journal

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


def no_session_left(federation: Federation) -> AlreadyOpened:
    """Refusal of a session more than was agreed."""
    return AlreadyOpened(f"sessions must be <= {federation.sessions}, got one more")


def sessions_used(state: Path, federation: Federation) -> int:
    """How many of the agreed sessions a journal has recorded."""
    return len(DurableJournal(state).steps(federation.digest, SESSION))
