"""`federation start` of the operator: everything is checked first, then one session is run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain import check
from pretrain.cli.output import new_directory, reserved
from train_distributed.commands.federation.setup import (
    BEHIND_PROXY,
    INVITATION,
    LOOPBACK,
    TLS,
    say_next,
)
from train_distributed.federation.centre import forget
from train_distributed.federation.documents.certificates import serving
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import (
    FEDERATION,
    OPERATOR,
    Invitation,
    Operator,
)
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.run_log import RunLog
from train_distributed.federation.documents.sessions import STATE, party_state
from train_distributed.federation.documents.terms import agreed_file
from train_distributed.federation.record import settle
from train_distributed.ledger.entry import Entry
from train_distributed.ledger.ledger import NONE, SUFFIX, Ledger
from train_distributed.secure_sum.keys import PrivateKeys

if TYPE_CHECKING:
    from train_distributed.commands.federation import Start
    from train_distributed.federation.evaluation_task import EvaluationTask
    from train_distributed.federation.model_task import ModelTask

SPARE = 1 << 20  # bytes of a model's directory beside its numbers
MODEL = "model"


def run_session(start: "Start") -> int:
    """Runs one session and writes the model; without a sum nothing is written.

    Nothing is sent before the folder, the certificate, and a place for the model with room enough
    have been found good. Log and refusals are kept in the run's directory, whatever happens.

    Returns:
        0.

    Raises:
        ValueError: a file or setting that does not fit, or a session without a sum.
    """
    folder = start.folder.resolve()
    party = {name: getattr(start, name) for name in ("embeddings", "accept", "operator")}
    limits = None if start.limits == Limits() else start.limits
    check.not_set("without an invitation", **party, limits=limits)
    federation = Federation.load(folder / FEDERATION)
    if federation.protocol == "shares":
        raise ValueError("start must be of protocol secagg; of shares, make a window and collect")
    port = start.port
    if port is None:
        port = int(Operator.load(folder / INVITATION / OPERATOR).address.rpartition(":")[2])
    check.within("[1, 65535]", port=port)
    keys = own_keys(folder, federation, start.passphrase_file)
    shown, tls = Invitation.read(folder / INVITATION), None
    if shown.certificates is not None:
        tls = serving(folder / TLS, shown.certificates)
    from train_distributed.federation.evaluation_task import task_of
    from train_distributed.federation.links import invitation_routes
    from train_distributed.federation.model_task import ModelTask
    from train_distributed.federation.operation import Operation, operate
    from train_distributed.federation.sum_task import SessionFacts

    agreed = folder / agreed_file(federation.task)
    task = task_of(federation, agreed)
    log = RunLog.begin(folder, "start")
    host = start.host or (LOOPBACK if tls is None else "0.0.0.0")
    if tls is None:
        log.say(BEHIND_PROXY.format(host))
    out = log.directory / MODEL if start.out is None else start.out
    numbers = federation.dimension + federation.second_dimension
    size = 8 * numbers + 2 * agreed.stat().st_size + SPARE  # directions are fewer than its numbers
    operation = Operation(
        federation=federation,
        keys=keys,
        tls=tls,
        host=host,
        port=port,
        state=party_state(federation.digest, "operator", folder / STATE),
        run=log.directory,
        routes=invitation_routes(shown, None, None),
        ready=lambda: log.say(f"parties may connect: {federation.deadlines.words}"),
        say=log.say,
        publish=task.publish if isinstance(task, ModelTask) else None,
    )
    opening = NextSum.of(start.ledger, folder, task)
    with log.told(), new_directory(out) as partial:
        with reserved(partial, size):
            opening.reserve()
            opened, told = operate(operation)
        facts = SessionFacts(
            session=federation.session(bytes.fromhex(told.session)).digest.hex(),
            bytes_per_user=max(told.bytes_of.get(user, 0) for user in federation.users),
            missing=told.missing,
        )
        released = task.released(*opened, facts=facts)
        released = released.with_report(ledger=opening.report())
        released.write(partial)
    opening.spend()
    settle(operation.state)
    forget(operation.state)  # until here the sum is kept, and a new start opens it again
    for line in told.refused:
        log.keep(f"refused: {line}")
    for user, step in sorted(told.missing.items()):
        log.say(f"{federation.display_name(user)} was lost at: {step}")
    for reason in released.report.get("unsuitable_because", ()):
        log.say(f"not suitable for release: {reason}")
    log.say(f"{len(opened[-1].users)} of {len(federation.users)} users in {out}")
    say_use(task, out)
    return 0


def say_use(task: "ModelTask | EvaluationTask", out: Path) -> None:
    """Prints how a model is used that a federation has made."""
    if task.kind == "release":
        say_next("anybody", "predict --model {} --data PICTURES --out predictions", out)


@dataclass(frozen=True)
class NextSum:
    """The next sum that this operator opens, and the ledger that counts it.

    One that no model came of is the next one still: the operator has learned nothing by it. What
    users gave away for it stands in theirs.
    """

    ledger: Ledger | None
    entry: Entry

    @classmethod
    def of(cls, ledger: Path | None, folder: Path, task: "ModelTask | EvaluationTask") -> "NextSum":
        """The first sum that is not spent.

        Args:
            ledger: the file that counts it; None: the one in the operator's folder.
            folder: the operator's.
            task: what is summed.
        """
        federation, privacy = task.federation, task.guarantee.privacy
        digest = federation.digest.hex()
        given = folder / f"operator{SUFFIX}" if ledger is None else ledger
        opened_ledger = None if str(given) == NONE else Ledger.open(given)
        records = () if opened_ledger is None else opened_ledger.state().records
        opened = sum(r.spent and r.entry.reference.startswith(digest) for r in records)
        entry = Entry.of(
            privacy,
            task.plan.spends(),
            kind="re-release" if opened and task.kind == "release" else task.kind,
            data=f"federation {digest}",
            users=digest,
            method=task.terms.method,
            reference=f"{digest}/sum{opened}",
        )
        return cls(opened_ledger, entry)

    def reserve(self) -> None:
        """Before the parties are asked."""
        if self.ledger is not None:
            self.ledger.reserve(self.entry)

    def report(self) -> Any:
        """Entry of the ledger as the model's report states it."""
        return NONE if self.ledger is None else self.ledger.report(self._id(self.ledger))

    def spend(self) -> None:
        """After the model was written, and before its sum is forgotten."""
        if self.ledger is not None:
            self.ledger.spend(self._id(self.ledger))

    def _id(self, ledger: Ledger) -> str:
        return ledger.reserve(self.entry)  # the same as before: one reference is one entry


def own_keys(folder: Path, federation: Federation, passphrase_file: Path | None) -> PrivateKeys:
    """The operator's, which are those of its computation server.

    Raises:
        ValueError: others than the federation says.
    """
    keys = read_private(folder, passphrase_file)
    if Keys.of(keys.public) != federation.servers[0]:
        raise ValueError(f"keys in {folder} must be the operator's in {FEDERATION}, are others")
    return keys
