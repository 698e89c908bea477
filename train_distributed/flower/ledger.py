"""What a user has given away so far, over all federations that its folder took part in.

Sessions of one federation are counted by its journal. The ε and δ of sessions add up, within a
federation and across federations, which holds whatever they have in common.
"""

from dataclasses import dataclass
from pathlib import Path

from train_distributed.flower.federation import Federation
from train_distributed.flower.invitation import FEDERATION
from train_distributed.flower.party import read_private
from train_distributed.flower.state import party_state
from train_distributed.flower.terms import Terms
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.session import FIRST_SERVER

STATE = "state"


@dataclass(frozen=True)
class Entry:
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
    """
    state = _state(folder, federation, party)
    state.mkdir(parents=True, exist_ok=True)
    if not (state / FEDERATION).exists():
        federation.save(state / FEDERATION)
    return state


def read_ledger(folder: Path) -> list[Entry]:
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
        found.append(Entry(digest, called, user, used, federation.sessions, terms.privacy.epsilon))
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
    terms = Terms.read(federation.task, set(federation.users), folder)
    others = [e for e in read_ledger(folder) if e.digest != federation.digest.hex()]
    before = sum(entry.spent for entry in others)
    here = federation.sessions * terms.privacy.epsilon
    allowed = here if budget is None else budget
    if before + here > allowed * (1 + 1e-9):
        raise ValueError(
            f"budget must be >= {before + here:g}, got {allowed:g}: epsilon {before:g} was given "
            f"away in {len(others)} other federation(s), and this one may take {here:g}"
        )


def sessions_used(state: Path, federation: Federation) -> int:
    """How many of the agreed sessions a journal has recorded."""
    journal, names = DurableJournal(state), (f"session{t}" for t in range(federation.sessions))
    return sum(journal.detail(federation.digest, name) is not None for name in names)


def _state(folder: Path, federation: Federation, party: int) -> Path:
    role = "user" if party < FIRST_SERVER else "server"
    label = f"{role}{party % FIRST_SERVER}"
    return party_state(federation.digest, label, folder.resolve() / STATE)
