"""`keys`, `certificates`, `agree`, `server`, `client`: a federation from set-up to the model."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from embed import EmbeddingSet, PublicTransform
from pretrain.output import default_directory, refuse_existing
from train_distributed.flower.certificates import write_certificates
from train_distributed.flower.desk import ComputationDesk, Desk, UserDesk
from train_distributed.flower.federation import Federation
from train_distributed.flower.node import Node, serve
from train_distributed.flower.operate import Operation, operate
from train_distributed.flower.party import read_private, read_public, write_party
from train_distributed.flower.record import settle
from train_distributed.flower.state import party_state
from train_distributed.flower.task import ModelTask, transform_hash
from train_distributed.method_options import MethodOptions
from train_distributed.methods import build_method
from train_distributed.privacy import Privacy
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.session import FIRST_SERVER


@dataclass(frozen=True)
class Keys:
    """Make one party's keys: for signing, for sealing, and for its Flower node."""

    folder: Path
    """Where to: public.json and node-key.pub are to be given out, private.json and node-key not."""

    def run(self) -> None:
        """Writes the files; existing keys are never overwritten."""
        write_party(self.folder)
        print(f"give out {self.folder}/public.json and {self.folder}/node-key.pub, nothing else")


@dataclass(frozen=True)
class Certificates:
    """Make the operator's TLS certificate and the authority that users check it against."""

    folder: Path
    """Where to: ca.pem is given to every party, server.key stays."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Names and addresses under which the parties reach the operator."""

    def run(self) -> None:
        """Writes the files; an existing key is never overwritten."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_certificates(self.folder, list(self.hosts))


@dataclass(frozen=True)
class Agree:
    """Write federation.json, which every party reads and keeps."""

    users: tuple[Path, ...]
    """Folders with the users' public.json; the first is user 0."""
    servers: tuple[Path, ...]
    """Folders with the servers' public.json, the operator's first; `shares` needs two or more,
    `shares-replicated` three or more."""
    sizes: tuple[int, ...]
    """Training rows of each user, public."""
    transform: Path
    """The public transform, the same file at every party."""
    num_classes: int
    """K."""
    out: Path = Path("federation.json")
    """File to write."""
    protocol: Literal["shares", "shares-replicated", "secagg"] = "secagg"
    """`shares`: several servers, one message per user. `shares-replicated`: three servers or more,
    one of which may lie or be lost. `secagg`: one server, dropouts tolerated."""
    method: Literal["class-sums", "least-squares", "softmax", "svm", "logistic"] = "class-sums"
    """What every user submits."""
    options: MethodOptions = field(default_factory=MethodOptions)
    privacy: Privacy = field(default_factory=lambda: Privacy(1.0, 1e-5))
    minimum: int | None = None
    """Fewest users whose sum may be opened; four fifths, rounded up, if left out."""
    sessions: int = 1
    """Sums that a user takes part in, retries included: each one is another release of epsilon."""
    corrupt_fraction: float = 0.1
    """Users that may collude with the server (`secagg`), or with one (`shares-replicated`)."""
    dropout_fraction: float = 0.2
    """Users that may drop out (`secagg`)."""

    def run(self) -> None:
        """Writes the file after checking that the task can be done.

        Raises:
            ValueError: a setting out of range.
        """
        refuse_existing(self.out, overwrite=False)
        if len(self.sizes) != len(self.users):
            raise ValueError(
                f"sizes must be {len(self.users)}, one per user, got {len(self.sizes)}"
            )
        self.privacy.validate()
        options = self.options.given()
        transform = PublicTransform.load(self.transform)
        method = build_method(self.method, transform, self.num_classes, options)
        count = len(self.users)
        federation = Federation(
            protocol=self.protocol,
            dimension=method.dimension,
            minimum=-(-4 * count // 5) if self.minimum is None else self.minimum,
            users={i: read_public(folder)["verifying"] for i, folder in enumerate(self.users)},
            servers=tuple(map(read_public, self.servers)),
            sessions=self.sessions,
            corrupt_fraction=self.corrupt_fraction,
            dropout_fraction=self.dropout_fraction,
            task={
                "method": self.method,
                "options": options,
                "num_classes": self.num_classes,
                "sizes": {str(i): size for i, size in enumerate(self.sizes)},
                "epsilon": self.privacy.epsilon,
                "delta": self.privacy.delta,
                "honest_fraction": float(self.privacy.fraction(count)),
                "unit": self.privacy.unit,
                "group_size": self.privacy.group_size,
                "transform": transform_hash(self.transform),
            },
        )
        ModelTask.of(federation, self.transform)
        federation.session(bytes(32))
        federation.save(self.out)


@dataclass(frozen=True)
class Server:
    """Run one session of a federation and write the model; the operator's command."""

    federation: Path
    """The federation.json that all parties agreed on."""
    keys: Path
    """The operator's folder of `keys`."""
    nodes: tuple[Path, ...]
    """The parties' node-key.pub files: nobody else may connect."""
    certificates: Path
    """Folder of `certificates`."""
    transform: Path
    """The public transform that was agreed on."""
    journal: Path | None = None
    """Absolute directory for what was opened, kept for ever; your state directory if left out."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 9092
    """Port to listen on."""
    timeout: float = 300.0
    """Seconds that the parties have to connect, and to answer each of at most six questions."""
    out: Path | None = None
    """Directory to write; a new one under runs/ if left out."""

    def run(self) -> None:
        """Runs the session; without a sum, an error names who is missing, and nothing is written.

        Raises:
            ValueError: a setting out of range, or a session that cannot be completed.
        """
        out = default_directory("server") if self.out is None else self.out
        refuse_existing(out, overwrite=False)
        federation = Federation.load(self.federation)
        task = ModelTask.of(federation, self.transform)
        state = party_state(federation.digest, "operator", self.journal)
        operation = Operation(
            federation=federation,
            keys=read_private(self.keys),
            nodes=self.nodes,
            certificates=self.certificates,
            host=self.host,
            port=self.port,
            seconds=self.timeout,
            state=state,
            run=out.with_name(out.name + ".run"),
            ready=lambda: print("parties may connect", file=sys.stderr, flush=True),
        )
        opened, log = operate(operation)
        released = task.released(opened)
        released.report["missing"] = {str(user): step for user, step in log.missing.items()}
        released.save(out)
        settle(state)
        print(f"{len(opened.users)} of {len(federation.users)} users in {out}")
        for user, step in sorted(log.missing.items()):
            print(f"user {user} was lost at: {step}")


@dataclass(frozen=True)
class Client:
    """Take part in a federation, as a user or as a computation server; runs until stopped."""

    federation: Path
    """The federation.json that all parties agreed on."""
    keys: Path
    """This party's folder of `keys`."""
    ca: Path
    """The operator's ca.pem."""
    identity: int
    """Number of this user; of this computation server with `--computation-server`."""
    superlink: str = "127.0.0.1:9092"
    """Address of the operator."""
    embeddings: Path | None = None
    """Directory of this user's embedding set."""
    transform: Path | None = None
    """The public transform that was agreed on."""
    computation_server: bool = False
    """Serve as computation server number `identity` (1, 2, ...) of `shares` or its replicas."""
    journal: Path | None = None
    """Absolute directory for the sessions taken part in, kept for ever; your state directory if
    left out."""
    patience: float = 3600.0
    """Seconds since the last contact with the operator after which the command ends."""

    def run(self) -> int:
        """Serves until all agreed sessions are over (exit code 0) or the operator is gone (1).

        Raises:
            ValueError: a setting out of range.
        """
        federation = Federation.load(self.federation)
        desk = self._server(federation) if self.computation_server else self._user(federation)
        return serve(Node(desk, self.superlink, self.ca, self.keys, self.patience))

    def _server(self, federation: Federation) -> Desk:
        journal = self._journal(federation, f"server{self.identity}")
        party = FIRST_SERVER + self.identity
        return ComputationDesk(federation, party, read_private(self.keys), journal)

    def _user(self, federation: Federation) -> Desk:
        if self.embeddings is None or self.transform is None:
            raise ValueError("embeddings and transform must be given for a user, got none")
        task = ModelTask.of(federation, self.transform)
        encoded = task.encoded(self.identity, EmbeddingSet.open(self.embeddings))
        journal = self._journal(federation, f"user{self.identity}")
        keys = read_private(self.keys)
        return UserDesk(federation, self.identity, keys, lambda: task.noised(encoded), journal)

    def _journal(self, federation: Federation, party: str) -> DurableJournal:
        """This party's own, found writable before anything is promised.

        Raises:
            ValueError: a relative path.
            OSError: it cannot be written.
        """
        journal = DurableJournal(party_state(federation.digest, party, self.journal))
        journal.check()
        return journal
