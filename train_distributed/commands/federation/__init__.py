"""`federation join|init|start|status|renew`: from keys to the model, and nothing by hand."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pretrain.cli.output import new_directory
from train_distributed.commands.federation.setup import INVITATION, TLS, ProtocolName, fill
from train_distributed.flower.documents.certificates import CA, renew_certificates
from train_distributed.flower.documents.limits import Limits
from train_distributed.flower.documents.party import (
    MOST_ROWS,
    NAME,
    NAME_RULE,
    PRIVATE,
    SUFFIX,
    Party,
    node_key,
    read_private,
    write_party,
)
from train_distributed.flower.documents.terms import MethodName
from train_distributed.one_shot.method_options import MethodOptions
from train_distributed.privacy.promise import Privacy


@dataclass(frozen=True)
class Join:
    """A party: make keys, and the one file to give to the operator."""

    folder: Path
    """This party's own: keys, journal and runs stay in it. Keys that are there are kept."""
    name: str
    """How the party is called: a-z, 0-9, dots and dashes."""
    rows: int | None = None
    """Training rows of a user, public; counted in `embeddings` if left out."""
    embeddings: Path | None = None
    """The user's embedding set, whose training rows are counted."""
    held_out: bool = False
    """Count the rows of split `evaluation` instead, for the evaluation of a model."""
    server: bool = False
    """A computation server of the protocols with shares, not a user."""

    def run(self) -> None:
        """Writes the files.

        Raises:
            ValueError: a setting out of range, or keys that cannot be read.
        """
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name must be {NAME_RULE}, got {self.name!r}")
        rows = self._rows()
        made = (self.folder / PRIVATE).exists()
        keys = read_private(self.folder) if made else write_party(self.folder)
        public = keys.public
        out = self.folder / f"{self.name}{SUFFIX}"
        Party(
            name=self.name,
            role="server" if self.server else "user",
            rows=rows,
            verifying=public.verifying.hex(),
            sealing=public.sealing.hex(),
            node=node_key(self.folder),
        ).write(out, keys)
        print(f"give {out} to the operator, and nothing else in {self.folder}")

    def _rows(self) -> int:
        given = [value for value in (self.rows, self.embeddings) if value is not None]
        if self.server:
            if given:
                raise ValueError(f"rows and embeddings must be left out for a server, got {given}")
            return 0
        if len(given) != 1:
            raise ValueError(f"exactly one of rows and embeddings must be given, got {given}")
        rows = self.rows
        if self.embeddings is not None:
            from embed.store import EVALUATION, TRAIN, EmbeddingSet

            own = EmbeddingSet.open(self.embeddings)
            own.need_labels()
            rows = int((own.split == (EVALUATION if self.held_out else TRAIN)).sum())
        if rows is None or not 1 <= rows <= MOST_ROWS:
            raise ValueError(f"rows must be from 1 to {MOST_ROWS}, got {rows}")
        return rows


@dataclass(frozen=True)
class Init:
    """The operator: make a federation of the parties' files, and the folder to hand out."""

    folder: Path
    """The operator's own: keys, certificates, journal and runs stay in it. It must not exist."""
    parties: tuple[Path, ...]
    """The files that the parties gave: users are numbered in this order."""
    transform: Path | None = None
    """The public transform (`python -m embed fit-transform`), to learn a model with."""
    hosts: tuple[str, ...] = ()
    """Names and addresses under which the parties reach the operator; they use the first."""
    port: int = 9092
    """Port under which they do."""
    num_classes: int | None = None
    """K, where classes have no names."""
    class_names: tuple[str, ...] = ()
    """Of the K classes, in the order of the labels."""
    protocol: ProtocolName = "secagg"
    """`secagg`: one server, dropouts tolerated. `shares`: several servers that do not collude.
    `shares-replicated`: three or more, one of which may lie or be lost."""
    method: MethodName = "discriminant"
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
    word_bits: Literal[32, 64] = 64
    """Of the numbers in which a model's sum is taken: with 32 the grid is coarser."""
    model: Path | None = None
    """Directory of a released model, instead of a transform: it is evaluated on the rows that the
    parties held out and counted with `join --held-out`."""
    bins: int = 10
    """With `model`: bins of confidence for its calibration; 0: none."""

    def run(self) -> None:
        """Writes the folder, whole or not at all, after checking that the task can be done.

        Raises:
            ValueError: a party file that is bad or given twice, or a setting out of range.
        """
        from train_distributed.released.card.content import rounded_up

        if not self.hosts:
            raise ValueError("hosts must hold the operator's names or addresses, got none")
        if not 0 < self.port < 2**16:
            raise ValueError(f"port must be from 1 to 65535, got {self.port}")
        with new_directory(self.folder) as partial:
            partial.chmod(0o700)
            task = fill(partial, self)
        federation, delta = task.federation, task.guarantee.privacy.delta
        print(f"{len(federation.users)} users, sums of {federation.minimum} and more")
        print(
            f"all agreed sums: epsilon {rounded_up(task.epsilon_of_all_sessions)} at delta "
            f"{delta:g}, {rounded_up(task.epsilon_if_all_others_collude)} if all others collude"
        )
        print(f"hand {self.folder / INVITATION} to every party")
        print(f"tell them by another way: digest {federation.digest.hex()}")


@dataclass(frozen=True)
class Start:
    """Run a session as the operator; with an invitation, take part as the party of this folder."""

    folder: Path
    """Of `init` or of `join`."""
    invitation: Path | None = None
    """A party: the folder that the operator handed out."""
    embeddings: Path | None = None
    """A user: its embedding set."""
    accept: str = ""
    """A party: the federation's digest, or its first characters, as you were told over another
    channel. A user who leaves it out is shown the terms and asked, once per federation."""
    limits: Limits = field(default_factory=Limits)
    ledger: Path | None = None
    """File that counts what is given away. A user: beside the embedding set, NAME.ledger, if left
    out. The operator: in its folder. `none`: nobody counts but the journals."""
    superlink: str | None = None
    """A party: HOST:PORT instead of the invitation's."""
    patience: float = 3600.0
    """A party: seconds without the operator after which it gives up."""
    host: str = "0.0.0.0"
    """The operator: address to listen on."""
    port: int | None = None
    """The operator: port to listen on; the invitation's if left out."""
    timeout: float = 300.0
    """The operator: seconds that the parties have to connect, and to answer each question."""
    out: Path | None = None
    """The operator: directory of the model; in the run's own, under the folder, if left out."""

    def run(self) -> int:
        """Ends with 0 when the session is done, with 1 where it is not.

        Raises:
            ValueError: a setting or file that does not fit; nothing was sent.
        """
        if self.invitation is None:
            from train_distributed.commands.federation.hosting import run_session

            return run_session(self)
        from train_distributed.commands.federation.taking_part import take_part

        return take_part(self)


@dataclass(frozen=True)
class Status:
    """Say what a folder's federation is doing: who is in, who is missing, what was refused."""

    folder: Path
    """Of `init` or of `join`."""

    def run(self) -> None:
        """Prints it.

        Raises:
            ValueError: no such folder, or a file in it that was changed.
        """
        from train_distributed.commands.federation.inspection import lines_of

        for line in lines_of(self.folder):
            print(line)


@dataclass(frozen=True)
class Renew:
    """The operator: a new certificate from the same authority; parties notice nothing."""

    folder: Path
    """Of `init`."""
    hosts: tuple[str, ...] = ()
    """Names and addresses of the operator; as before if left out."""
    authority: bool = False
    """A new authority as well: every party must get the new ca.pem of the invitation."""

    def run(self) -> None:
        """Writes the certificate and its key. What was agreed on stays, and with it all journals.

        Raises:
            ValueError: no operator's folder, or its authority has expired.
        """
        tls = self.folder / TLS
        until = renew_certificates(tls, list(self.hosts), anew=self.authority)
        print(f"valid until {until:%Y-%m-%d}")
        if self.authority:
            shutil.copyfile(tls / CA, self.folder / INVITATION / CA)
            print(f"hand {self.folder / INVITATION / CA} to every party")
