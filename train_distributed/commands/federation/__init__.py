"""`federation join|init|start|status`: from keys to the model, and nothing by hand."""

from dataclasses import dataclass, field
from pathlib import Path

from pretrain import check
from pretrain.cli.output import new_directory
from pretrain.public import function
from train_distributed.commands.federation.embedding import Pictures, embed_pictures
from train_distributed.commands.federation.setup import (
    BEHIND_PROXY,
    INVITATION,
    LOOPBACK,
    TLS,
    ProtocolName,
    fill,
    say_next,
)
from train_distributed.commands.options import RunConfig
from train_distributed.federation.documents import document, party
from train_distributed.federation.documents.certificates import SERVER, write_certificate
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.documents.private_keys import (
    PRIVATE,
    read_private,
    write_party,
)
from train_distributed.one_shot.registry import DEFAULT
from train_distributed.privacy.promise import Privacy, Unit


@dataclass(frozen=True)
class Join:
    """Party: make keys, and NAME.party.json to give to the operator."""

    folder: Path
    """Folder of this party: its keys, journal and runs stay there. Existing keys are kept."""
    name: str
    """Name of the party: a-z, 0-9, dots and dashes."""
    rows: int | None = None
    """Public number of training rows of a user (default: counted in --embeddings)."""
    embeddings: Path | None = None
    """The user's embedding set, whose training rows are counted (default with --pictures:
    FOLDER/embeddings)."""
    images: Pictures = field(default_factory=Pictures)
    held_out: bool = False
    """Count rows of split `evaluation` instead, to evaluate a model."""
    server: bool = False
    """Join as the second server of protocol `shares`, without rows."""
    hosts: tuple[str, ...] = ()
    """Server: names and addresses for its certificate, made once in FOLDER/tls. Without any, TLS
    is left to a reverse proxy."""
    passphrase_file: Path | None = None
    """File with a passphrase that encrypts the keys in FOLDER (default: they are not encrypted)."""

    def run(self) -> Path:
        """Writes the files; returns the one for the operator.

        Raises:
            ValueError: a setting out of range, or keys that cannot be read.
        """
        if not document.NAME.fullmatch(self.name):
            raise ValueError(f"name must be {document.NAME_RULE}, got {self.name!r}")
        rows = self._rows()
        tls = self.folder / TLS
        if self.hosts:
            write_certificate(tls, list(self.hosts))
        made = (self.folder / PRIVATE).exists()
        keys = (read_private if made else write_party)(self.folder, self.passphrase_file)
        public = keys.public
        out = self.folder / f"{self.name}{party.SUFFIX}"
        party.Party(
            name=self.name,
            role="server" if self.server else "user",
            rows=rows,
            verifying=public.verifying.hex(),
            sealing=public.sealing.hex(),
            certificate=(tls / SERVER).read_text() if self.server and tls.exists() else "",
        ).signed(keys).save(out)
        print(f"give {out} to the operator, and nothing else in {self.folder}")
        if self.server:
            command = "federation aggregator --folder {} --window WINDOW"
            say_next("once there is a window", command, self.folder)
        else:
            command = "federation start --folder {} --invitation INVITATION"
            say_next("once invited (to a window, report in place of start)", command, self.folder)
        return out

    def _rows(self) -> int:
        images, pictures = self.images, self.images.pictures
        given = {"rows": self.rows, "embeddings": self.embeddings}
        if self.server:
            check.not_set("for a server", **given, **vars(images))
            return 0
        check.not_set("for a user", hosts=self.hosts)
        if pictures is None:
            check.exactly_one(**given)
            of_pictures = ("encoder", "weights", "resize", "bits", "skip_unreadable")
            unused = {name: getattr(images, name) for name in of_pictures}
            check.not_set("without pictures", **unused)
        else:
            check.not_set("with pictures", **given, held_out=self.held_out)
        rows = self.rows
        if rows is not None:
            agreed = {"class_names": images.class_names, "transform": images.transform}
            check.not_set("with rows", **agreed)
        else:
            from embed.store import EmbeddingSet
            from pretrain.datasets import EVALUATION, TRAIN

            if self.embeddings is None:
                own = embed_pictures(self.images, self.folder)
            else:
                own = EmbeddingSet.open(self.embeddings)
            own.need_labels()
            images.checked(own)
            if own.declared_classes:
                print(f"classes in this order: {', '.join(own.declared_classes)}")
            rows = int((own.split == (EVALUATION if self.held_out else TRAIN)).sum())
        check.within(f"[1, {document.MOST_ROWS}]", rows=rows)
        return rows


federation_join = function("federation_join", Join)


@dataclass(frozen=True)
class Init:
    """Operator: make a federation from the parties' files, and the invitation to hand out."""

    folder: Path
    """New folder of the operator: its keys, certificates, journal and runs stay there."""
    parties: tuple[Path, ...]
    """NAME.party.json of every party, folders of such files, tables (NAME.csv) with their fields as
    columns, or - for a table on standard input; users are numbered in this order."""
    transform: Path | None = None
    """Public transform of `embed fit-transform`, to train a model."""
    hosts: tuple[str, ...] = ()
    """Names and addresses of the operator for its certificate; parties connect to the first."""
    port: int = 9092
    """Port of the operator."""
    num_classes: int | None = None
    """Number of classes K, if they have no names."""
    class_names: tuple[str, ...] = ()
    """Names of the K classes in the order of their labels."""
    protocol: ProtocolName = "secagg"
    """`secagg`: one server; users who are all there at once add the noise. `shares`: two servers
    that do not collude add it; users report when they like, and prove the length of what they send.
    """
    config: Path | None = None
    """Training method, its options and the promise: configuration.json of `rehearse`, or a file of
    three lines as in docs/methods.md (default: discriminant in two sums, as `run`)."""
    epsilon: float | None = None
    """Privacy loss epsilon > 0 of one session; inf: no noise, not private (default: as in --config,
    otherwise 1)."""
    delta: float | None = None
    """Failure probability delta in (0, 1) (default: as in --config, otherwise 1e-5)."""
    unit: Unit | None = None
    """Unit of protection: one record, or all records of one `user` (default: as in --config,
    otherwise record)."""
    group_size: int | None = None
    """Number of records or users that are protected together (default: as in --config, otherwise
    1)."""
    honest_fraction: float | None = None
    """Share of users that are honest, `secagg` only (default: as in --config, otherwise 0.5, of one
    user 1)."""
    allow_delta: bool = False
    """Accept a delta of 1/rows or more, which protects no single row; reports say so."""
    trust_users: bool = False
    """Trust that users do not lie: keep their vectors as they are. Without this flag, `shares` with
    100 users or more and method discriminant clips every user's vectors to the length of honest
    ones and leaves second moments out: then few liars cannot ruin the model."""
    behind_proxy: bool = False
    """Services speak plain HTTP to reverse proxies, which have certificates of public authorities.
    Without this flag each service has a certificate of its own, and users agree to these."""
    deadlines: tuple[str, ...] = ()
    """Seconds that parties of `secagg` have, as come=3600: come (300), present (10), answer (300),
    send (120), goodbye (5), again (15), explained in docs/federation.md."""
    minimum: int | None = None
    """Fewest users whose sum may be opened (default: four fifths of all, rounded up, so that of ten
    two may be missing, of three nobody)."""
    sessions: int = 1
    """Number of sessions that users agree to, retries included; each spends epsilon again."""
    corrupt_fraction: float | None = None
    """Share of users that may collude with the server, `secagg` only (default: 0.1)."""
    dropout_fraction: float | None = None
    """Share of users that may drop out, `secagg` only (default: 0.2)."""
    model: Path | None = None
    """Released model to evaluate, instead of --transform: on the rows that parties held out and
    counted with `join --held-out`."""
    passphrase_file: Path | None = None
    """File with a passphrase that encrypts the keys in FOLDER (default: they are not encrypted)."""

    def run(self) -> Path:
        """Writes the folder, whole or not at all, after checking that the task can be done.

        Raises:
            ValueError: a party file that is bad or given twice, or a setting out of range.
        """
        from train_distributed.released.numbers import rounded_up

        check.given(hosts=self.hosts or None)
        check.within("[1, 65535]", port=self.port)
        if self.protocol == "shares":
            of_secagg = ("corrupt_fraction", "dropout_fraction", "deadlines")
            check.not_set("with protocol shares", **{n: getattr(self, n) for n in of_secagg})
        else:
            check.not_set("with protocol secagg", trust_users=self.trust_users)
        settings = self._settings()
        with new_directory(self.folder) as partial:
            partial.chmod(0o700)
            task = fill(partial, self, settings)
        federation, delta = task.federation, task.guarantee.privacy.delta
        missing = federation.enrolled - federation.minimum
        print(
            f"{federation.enrolled} users, sums of {federation.minimum} and more: "
            f"{missing or 'nobody'} may be missing"
        )
        clip = federation.task.get("options", {}).get("user_clip")
        if clip is not None and settings.options.get("user_clip") is None:
            clips = " and ".join(map(str, clip)) if isinstance(clip, tuple | list) else clip
            print(f"vectors are clipped to {clips}, as some users may lie (see --trust-users)")
        if federation.certificates is None:
            print(BEHIND_PROXY.format(f"{LOOPBACK}, unless a service is told to listen elsewhere"))
        if self.protocol == "secagg":
            print(federation.deadlines.words)
        epsilon = rounded_up(task.epsilon_of_all_sessions)
        print(f"all agreed sums: epsilon {epsilon} at delta {delta:g}")
        print(task.if_all_others_collude)
        print(f"hand {self.folder / INVITATION} to every party")
        print(f"tell them by another way: digest {federation.digest.hex()}")
        if self.protocol == "secagg":
            say_next("when they have it", "federation start --folder {} --out model", self.folder)
        else:
            window = "window --folder {} --aggregators HOST:PORT HOST:PORT --out window"
            say_next("when they have it", f"federation {window}", self.folder)
        return self.folder

    def _settings(self) -> RunConfig:
        """Method, options and promise; raises ValueError where the file says something else."""
        return RunConfig.settled(
            self.config,
            RunConfig(DEFAULT, {}, Privacy(1.0, 1e-5)),
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            group_size=self.group_size,
            honest_fraction=self.honest_fraction,
        )


federation_init = function("federation_init", Init)


@dataclass(frozen=True)
class Start:
    """Run a session as the operator; with an invitation, take part as the party of this folder."""

    folder: Path
    """Folder of the operator (from `init`) or of the party (from `join`)."""
    invitation: str | Path | None = None
    """Party: folder `invitation` that the operator handed out, or the link to it
    (https://HOST:PORT/invitations/DIGEST). Without it: run as the operator."""
    embeddings: Path | None = None
    """User: embedding set with its rows (default: FOLDER/embeddings, which `join --pictures` has
    made)."""
    accept: str = ""
    """Party: digest of the federation, or its first characters, as received over a second channel
    (default: show the terms and ask, once per federation)."""
    limits: Limits = field(default_factory=Limits)
    ledger: Path | None = None
    """Ledger that counts the epsilon spent (default: NAME.ledger next to a user's embedding set, or
    in the operator's folder). `none`: only the journals of the folder count it."""
    operator: str | None = None
    """Party: HOST:PORT of the operator (default: as in the invitation); `unix:PATH`: a Flower node
    asks at that socket."""
    patience: float = 3600.0
    """Party: seconds to wait for an operator that does not answer."""
    host: str | None = None
    """Operator: address to listen on (default: all; behind a proxy, 127.0.0.1)."""
    port: int | None = None
    """Operator: port to listen on (default: as in the invitation)."""
    out: Path | None = None
    """Operator: directory of the model (default: in the folder of this run)."""
    passphrase_file: Path | None = None
    """File with the passphrase of the keys in FOLDER (default: asked for if they have one)."""

    def run(self) -> int:
        """Ends with 0 when the session is done, with 1 where it is not.

        Raises:
            ValueError: a setting or file that does not fit; nothing was sent.
        """
        if self.invitation is None:
            check.installed("uvicorn", "a session", extra="federation")
            from train_distributed.commands.federation.hosting import run_session

            return run_session(self)
        check.installed("httpx", "to take part", extra="federation")
        from train_distributed.commands.federation.taking_part import take_part

        return take_part(self)


federation_start = function("federation_start", Start)


@dataclass(frozen=True)
class Status:
    """Show the state of a federation: who is in, who is missing, what was refused."""

    folder: Path
    """Folder of the operator (from `init`) or of the party (from `join`)."""

    def run(self) -> None:
        """Prints it.

        Raises:
            ValueError: no such folder, or a file in it that was changed.
        """
        from train_distributed.commands.federation.inspection import lines_of

        for line in lines_of(self.folder):
            print(line)


federation_status = function("federation_status", Status)
