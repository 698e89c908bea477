"""The operator's folder: made whole or not at all, from the parties' files.

| in it | what |
|---|---|
| private.json | the operator's keys |
| tls/ | the operator's certificate and its key |
| federation.json, transform.safetensors or model.safetensors | what was agreed on |
| roll | `shares`: all users |
| invitation/ | what every party gets |
"""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretrain import check
from train_distributed.commands.federation.enrolling import enrolled, listed
from train_distributed.federation.documents.certificates import (
    SERVER,
    read_certificates,
    write_certificate,
)
from train_distributed.federation.documents.document import LARGE, converted, read_file
from train_distributed.federation.documents.federation import (
    VERSION,
    Deadlines,
    Enrolment,
    Federation,
)
from train_distributed.federation.documents.invitation import FEDERATION, Invitation
from train_distributed.federation.documents.party import Keys, Party
from train_distributed.federation.documents.place import PLACES, ROLL, Place, place_path
from train_distributed.federation.documents.private_keys import write_party
from train_distributed.federation.documents.terms import (
    MODEL,
    TRANSFORM,
    EvaluationTerms,
    Terms,
    agreed_file,
    file_hash,
    promise_fields,
    read_transform,
)
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.keys import FIRST_SERVER

if TYPE_CHECKING:
    from embed import PublicTransform
    from train_distributed.commands.federation import Init
    from train_distributed.commands.options import RunConfig
    from train_distributed.federation.sum_task import SumTask

ProtocolName = Literal["secagg", "shares"]
TLS, INVITATION = "tls", "invitation"
LOOPBACK = "127.0.0.1"
BEHIND_PROXY = "plain HTTP on {}: your reverse proxy has TLS by a public authority"
MOST_PLACES = 1000  # users whose places on the roll are files of the invitation; more fetch theirs
BINS = 10  # of confidence, for the calibration error of an evaluation


def say_next(who: str, command: str, *paths: object) -> None:
    """Prints the command that comes next, with these paths in place of its braces."""
    words = [shlex.quote(str(path)) for path in paths]
    print(f"next, {who}: blind-averaging {command.format(*words)}")


def fill(folder: Path, init: "Init", settings: "RunConfig") -> "SumTask":
    """Writes an operator's files into an empty directory.

    Args:
        folder: the directory.
        init: what was typed.
        settings: method, options and promise, which a file may have said.

    Returns:
        What every party will compute from them.

    Raises:
        ValueError: a party file that is bad or given twice, or a setting out of range.
    """
    from train_distributed.federation.evaluation_task import task_of

    roll, users = None, list[Party]()
    if init.protocol == "shares":
        settings = replace(settings, privacy=replace(settings.privacy, noise_by="servers"))
        roll, servers = enrolled(init.parties, folder / ROLL)
    else:
        users, servers = listed(init.parties)
    sizes = {i: party.rows for i, party in enumerate(users)}
    terms, dimension, second = _agreed(folder, init, settings, sizes, roll.sizes if roll else None)
    rows = sum(n * count for n, count in roll.sizes.items()) if roll else sum(sizes.values())
    settings.privacy.refuse_large_delta(rows, allowed=init.allow_delta)
    certificates = _certificates(folder, init, servers)
    keys = write_party(folder, init.passphrase_file)
    named = dict(enumerate(users)) | dict(enumerate(servers, FIRST_SERVER + 1))
    count = len(roll) if roll else len(users)
    made = Federation(
        version=VERSION,
        protocol=init.protocol,
        dimension=dimension,
        minimum=-(-4 * count // 5) if init.minimum is None else init.minimum,
        users={i: party.verifying for i, party in enumerate(users)},
        roll=Enrolment(root=roll.root.hex(), sizes=roll.sizes) if roll else None,
        servers=(
            Keys.of(keys.public),
            *(Keys(verifying=each.verifying, sealing=each.sealing) for each in servers),
        ),
        sessions=init.sessions,
        task=terms.fields,
        names={number: party.name for number, party in named.items()},
        **check.drop_none(
            corrupt_fraction=init.corrupt_fraction, dropout_fraction=init.dropout_fraction
        ),
        second_dimension=second,
        certificates=hashlib.sha256(certificates).hexdigest() if certificates else None,
        deadlines=_deadlines(init.deadlines),
    )
    federation = made.checked().knowing(roll or {})
    task = task_of(federation, folder / agreed_file(federation.task))  # what every party will check
    if roll:
        task.window(bytes(32), 0, 1)
    else:
        federation.session(bytes(32))
    federation.save(folder / FEDERATION)
    host = f"[{init.hosts[0]}]" if ":" in init.hosts[0] else init.hosts[0]
    invitation = Invitation(folder / INVITATION, federation, f"{host}:{init.port}")
    invitation.write(certificates, folder / agreed_file(federation.task), keys)
    if invitation.certificates is not None:
        read_certificates(invitation.certificates)  # a server's may be none, or have expired
    if roll is not None and count <= MOST_PLACES:
        (invitation.folder / PLACES).mkdir()
        for number in roll:
            user = roll.placed(number)
            Place.of(number, user).save(place_path(invitation.folder / PLACES, user.key))
    return task


def _deadlines(given: tuple[str, ...]) -> Deadlines:
    """Deadlines of a federation from NAME=SECONDS as typed; defaults for the names left out."""
    named = {name: seconds for name, _, seconds in (each.partition("=") for each in given)}
    return converted(named, Deadlines, Path("deadlines"), strict=False)


def _certificates(folder: Path, init: "Init", servers: Sequence[Party]) -> bytes:
    """The operator's new certificate and the servers'; none where proxies have TLS.

    Raises:
        ValueError: a server whose party file has a certificate where proxies have TLS, or has none.
    """
    for server in servers:
        if bool(server.certificate) == init.behind_proxy:
            rule = "without --hosts" if init.behind_proxy else "with --hosts and its names"
            raise ValueError(f"server {server.name} must join --server {rule}, did not")
    if init.behind_proxy:
        return b""
    write_certificate(folder / TLS, list(init.hosts))
    own = (folder / TLS / SERVER).read_text()
    return "".join([own, *(each.certificate for each in servers)]).encode()


def _agreed(
    folder: Path,
    init: "Init",
    settings: "RunConfig",
    sizes: dict[int, int],
    roll: dict[int, int] | None,
) -> tuple[Terms | EvaluationTerms, int, int]:
    """Terms, numbers of a submission, and of one to a second sum, where there is one.

    Writes the file that all need for it. The sizes are those of users who are listed; a roll has
    rows and the number of users that have so many.
    """
    check.exactly_one(transform=init.transform, model=init.model)
    if init.transform is not None:
        from train_distributed.one_shot.method import ReleaseState
        from train_distributed.one_shot.registry import build_method
        from train_distributed.one_shot.summation import second_dimension

        (folder / TRANSFORM).write_bytes(read_file(init.transform, LARGE))
        transform = read_transform(folder / TRANSFORM)
        terms = _terms(folder, init, settings, transform, sizes, roll)
        if transform.seen is None and not transform.is_identity:
            raise ValueError(
                "transform must say which rows it has seen, as `embed fit-transform` writes it, or "
                "all users refuse it; got an older file"
            )
        method = build_method(terms.method, transform, terms.num_classes, terms.options)
        return terms, ReleaseState(method).statistic.dimension, second_dimension(method)
    assert init.model is not None
    check.not_set(
        "with model, which has its own",
        class_names=init.class_names,
        num_classes=init.num_classes,
        config=init.config,
        trust_users=init.trust_users,
    )
    return *_evaluation(folder, init, settings.privacy, sizes, init.model), 0


def _evaluation(
    folder: Path, init: "Init", privacy: Privacy, sizes: dict[int, int], model: Path
) -> tuple[EvaluationTerms, int]:
    from train_distributed.federation.evaluation_task import read_model
    from train_distributed.released.evaluation import Evaluation

    privacy.validate()
    place = folder / MODEL
    place.write_bytes(read_file(model / MODEL, LARGE))
    evaluated = read_model(place)
    names, method = evaluated.class_names, Evaluation.of(evaluated, BINS)
    terms = EvaluationTerms(
        model=file_hash(place),
        bins=BINS,
        num_classes=len(names),
        class_names=names,
        sizes=sizes,
        **promise_fields(privacy, len(sizes)),
    )
    return EvaluationTerms.read(terms.fields, set(sizes), Path("federation")), method.dimension


def _terms(
    folder: Path,
    init: "Init",
    settings: "RunConfig",
    transform: "PublicTransform",
    sizes: dict[int, int],
    roll: dict[int, int] | None,
) -> Terms:
    import torch

    from embed.encoding import refuse_other
    from train_distributed.federation.sum_task import repeated
    from train_distributed.one_shot.registry import METHODS
    from train_distributed.one_shot.request import FederationSize, ReleaseRequest

    check.exactly_one(class_names=init.class_names, num_classes=init.num_classes)
    method, privacy = settings.method, settings.privacy
    check.one_of(METHODS, method=method)
    privacy.validate()
    if settings.public_hash not in (None, transform.fitted_on):
        raise ValueError(
            f"transform must be fitted on the set config was chosen on, got {init.transform}"
        )
    refuse_other(settings.encoding, transform.encoding, ("config", "transform"))
    classes = init.num_classes or len(init.class_names)
    rows = torch.tensor(list(sizes.values())) if roll is None else repeated(roll)
    size = FederationSize(
        sizes=rows,
        num_classes=classes,
        class_names=init.class_names,
        held_by="parties" if roll is None or init.trust_users else "strangers",
    )
    request = ReleaseRequest(
        embeddings=size,
        method=method,
        privacy=privacy,
        transform=transform,
        options=settings.options,
    )
    options = request.settings.options
    if isinstance(options.get("prior"), tuple):
        options["prior"] = list(options["prior"])
    terms = Terms(
        method=method,
        options=options,
        num_classes=classes,
        sizes=sizes,
        transform=file_hash(folder / TRANSFORM),
        class_names=init.class_names,
        **promise_fields(privacy, len(sizes)),
    )
    return Terms.read(terms.fields, set(sizes), Path("federation"))
