"""`federation start` of the operator: everything is checked first, then one session is run."""

from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.cli.output import new_directory, reserved
from train_distributed.commands.federation.setup import INVITATION, NODES, TLS
from train_distributed.flower.certificates import check_server
from train_distributed.flower.document import read_document
from train_distributed.flower.federation import Federation
from train_distributed.flower.invitation import ADDRESS, FEDERATION, OPERATOR, TRANSFORM
from train_distributed.flower.ledger import STATE
from train_distributed.flower.model_task import Facts, ModelTask
from train_distributed.flower.party import public_keys, read_private
from train_distributed.flower.record import settle
from train_distributed.flower.run_log import RunLog
from train_distributed.flower.state import party_state
from train_distributed.flower.status import Log
from train_distributed.flower.superlink import Operation, operate
from train_distributed.secure_sum.keys import PrivateKeys

if TYPE_CHECKING:
    from train_distributed.commands.federation import Start

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
    _check_party_options(start)
    federation = Federation.load(folder / FEDERATION)
    task = ModelTask.of(federation, folder / TRANSFORM)
    keys = _own_keys(folder, federation)
    check_server(folder / TLS)
    log = RunLog.begin(folder, "start")
    out = log.directory / MODEL if start.out is None else start.out
    size = 8 * federation.dimension + (folder / TRANSFORM).stat().st_size + SPARE
    operation = _operation(start, folder, federation, keys, log)
    with log.told(), new_directory(out) as partial:
        with reserved(partial, size):
            opened, told = operate(operation)
        released = task.released(opened, _facts(federation, told))
        released.write(partial)
    settle(operation.state)  # until here the sum is kept, and a new start opens it again
    for line in told.refused:
        log.keep(f"refused: {line}")
    for user, step in sorted(told.missing.items()):
        log.say(f"{federation.call(user)} was lost at: {step}")
    log.say(f"{len(opened.users)} of {len(federation.users)} users in {out}")
    return 0


def _operation(
    start: "Start", folder: Path, federation: Federation, keys: PrivateKeys, log: RunLog
) -> Operation:
    names = [federation.names[party] for party in sorted(federation.nodes)]
    return Operation(
        federation=federation,
        keys=keys,
        nodes=tuple(folder / NODES / f"{name}.pub" for name in names),
        certificates=folder / TLS,
        host=start.host,
        port=_port(folder) if start.port is None else start.port,
        seconds=start.timeout,
        state=party_state(federation.digest, "operator", root=folder / STATE),
        run=log.directory,
        ready=lambda: log.say("parties may connect"),
        say=log.say,
    )


def _facts(federation: Federation, told: Log) -> Facts:
    sent = max(told.bytes_of.get(user, 0) for user in federation.users)
    digest = federation.session(bytes.fromhex(told.session)).digest.hex()
    return Facts(session=digest, bytes_per_user=sent, missing=told.missing)


def _own_keys(folder: Path, federation: Federation) -> PrivateKeys:
    keys = read_private(folder)
    if public_keys(keys.public) != federation.servers[0]:
        raise ValueError(f"keys in {folder} must be the operator's in {FEDERATION}, are others")
    return keys


def _port(folder: Path) -> int:
    told = read_document(folder / INVITATION / OPERATOR)
    return int(told.text("superlink", ADDRESS, "HOST:PORT").rpartition(":")[2])


def _check_party_options(start: "Start") -> None:
    for name in ("embeddings", "digest", "budget", "superlink"):
        if getattr(start, name):
            raise ValueError(f"{name} must be left out without an invitation, got one")
