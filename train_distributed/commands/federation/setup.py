"""The operator's folder: made whole or not at all, from the parties' files.

| in it | what |
|---|---|
| private.json | the operator's keys |
| tls/ | the authority, its key, the operator's certificate |
| federation.json, transform.safetensors | what was agreed on |
| nodes/ | keys of the nodes that may connect |
| invitation/ | what every party gets |
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from train_distributed.flower.certificates import CA, write_certificates
from train_distributed.flower.document import LARGE, read_file
from train_distributed.flower.federation import SERVERS, Federation
from train_distributed.flower.invitation import FEDERATION, TRANSFORM, Invitation
from train_distributed.flower.key_files import fingerprint
from train_distributed.flower.party import Party, public_keys, write_party
from train_distributed.flower.terms import Terms
from train_distributed.secure_sum.session import FIRST_SERVER

if TYPE_CHECKING:
    from train_distributed.commands.federation import Init

ProtocolName = Literal["secagg", "shares", "shares-replicated"]
TLS, INVITATION, NODES, OPERATOR_NAME = "tls", "invitation", "nodes", "operator"


def fill(folder: Path, init: "Init") -> Federation:
    """Writes an operator's files into an empty directory.

    Raises:
        ValueError: a party file that is bad or given twice, or a setting out of range.
    """
    users, servers = read_parties(init.parties, init.protocol)
    (folder / TRANSFORM).write_bytes(read_file(init.transform, LARGE))
    terms = _terms(folder, init, users)
    keys = write_party(folder).public
    numbered = dict(enumerate(users)) | dict(enumerate(servers, FIRST_SERVER + 1))
    count = len(users)
    federation = Federation(
        protocol=init.protocol,
        dimension=_dimension(folder, terms),
        minimum=-(-4 * count // 5) if init.minimum is None else init.minimum,
        users={i: party.verifying for i, party in enumerate(users)},
        servers=(public_keys(keys), *(_keys(party) for party in servers)),
        sessions=init.sessions,
        corrupt_fraction=init.corrupt_fraction,
        dropout_fraction=init.dropout_fraction,
        task=terms.as_task(),
        nodes={number: fingerprint(party.node) for number, party in numbered.items()},
        names={number: party.name for number, party in numbered.items()},
    )
    _check(folder, federation)
    federation.save(folder / FEDERATION)
    (folder / NODES).mkdir()
    for party in numbered.values():
        (folder / NODES / f"{party.name}.pub").write_text(party.node + "\n")
    (folder / TLS).mkdir()
    write_certificates(folder / TLS, list(init.hosts))
    host = f"[{init.hosts[0]}]" if ":" in init.hosts[0] else init.hosts[0]
    invitation = Invitation(folder / INVITATION, federation, f"{host}:{init.port}")
    invitation.write(folder / TLS / CA, folder / TRANSFORM)
    return federation


def read_parties(paths: Sequence[Path], protocol: ProtocolName) -> tuple[list[Party], list[Party]]:
    """Users and computation servers, in the order given.

    Raises:
        ValueError: a bad file, two that share a key or a name, too few or too many servers.
    """
    parties = {path: Party.read(path) for path in paths}
    for what in ("verifying", "sealing", "node", "name"):
        first: dict[str, Path] = {}
        for path, party in parties.items():
            other = first.setdefault(getattr(party, what), path)
            if other != path:
                kind = what if what == "name" else f"{what} key"
                raise ValueError(
                    f"every party must have a {kind} of its own, {other} and {path} share one"
                )
    if len(parties) != len(paths):
        raise ValueError("parties must be given once each, got a file twice")
    users = [party for party in parties.values() if party.role == "user"]
    servers = [party for party in parties.values() if party.role == "server"]
    fewest, most = (count - 1 for count in SERVERS[protocol])
    if not fewest <= len(servers) <= most:
        raise ValueError(
            f"{protocol} must have {fewest} to {most} computation servers beside the operator, "
            f"got {len(servers)}"
        )
    if not users:
        raise ValueError("parties must hold users, got none")
    return users, servers


def _terms(folder: Path, init: "Init", users: list[Party]) -> Terms:
    from train_distributed.flower.model_task import transform_hash

    if bool(init.class_names) == (init.num_classes is not None):
        given = "both" if init.class_names else "neither"
        raise ValueError(f"exactly one of class_names and num_classes must be given, got {given}")
    init.privacy.validate()
    terms = Terms(
        method=init.method,
        options=init.options.given(),
        num_classes=init.num_classes or len(init.class_names),
        sizes={i: party.rows for i, party in enumerate(users)},
        privacy=init.privacy,
        transform=transform_hash(folder / TRANSFORM),
        class_names=init.class_names,
    )
    return Terms.read(terms.as_task(), set(terms.sizes), Path("federation"))


def _dimension(folder: Path, terms: Terms) -> int:
    from train_distributed.flower.model_task import read_transform
    from train_distributed.one_shot.methods import build_method

    transform = read_transform(folder / TRANSFORM)
    if transform.seen is None and not transform.is_identity:
        raise ValueError(
            "transform must say which rows it has seen, as `embed fit-transform` writes it, or all "
            "users refuse it; got an older file"
        )
    return build_method(terms.method, transform, terms.num_classes, terms.options).dimension


def _check(folder: Path, federation: Federation) -> None:
    """What every party will check, before anything is handed out."""
    from train_distributed.flower.model_task import ModelTask

    ModelTask.of(federation, folder / TRANSFORM)
    federation.session(bytes(32))


def _keys(party: Party) -> dict[str, str]:
    return {"verifying": party.verifying, "sealing": party.sealing}
