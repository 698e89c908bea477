"""`federation window|adder|report|collect`: a sum over very many users, whose reports take time."""

from dataclasses import dataclass, field
from pathlib import Path

from train_distributed.flower.documents.limits import Limits


@dataclass(frozen=True)
class MakeWindow:
    """The operator: agree on a time in which reports are taken, and where the adders listen."""

    folder: Path
    """Of `init`, with protocol `shares`."""
    adders: tuple[str, ...]
    """HOST:PORT of every adder: the operator's own first, then the computation servers' in the
    order of their party files."""
    out: Path
    """Folder to hand out: adders need all of it, users only window.json."""
    hours: float = 24.0
    """From now on, in which reports are taken; `collect` may close it earlier."""

    def run(self) -> None:
        """Writes the folder, whole or not at all.

        Raises:
            ValueError: no operator's folder, or a setting that does not fit.
        """
        from train_distributed.commands.federation.collecting import make_window

        make_window(self)


@dataclass(frozen=True)
class Add:
    """An adder: take users' reports until the window is closed, then open their sum."""

    folder: Path
    """Of `join --server`, or of `init`: its keys, and the state, never to be lost or copied."""
    window: Path
    """The folder that `federation window` has made."""
    listen: str | None = None
    """HOST:PORT to listen on; the window's port on all addresses if left out."""
    tls: Path | None = None
    """Folder with server.pem and server.key; without, lines are plain and reports sealed."""
    processes: int = 1
    """Processes that check reports, each with a slice of the users."""

    def run(self) -> None:
        """Serves until it is ended.

        Raises:
            ValueError: files that do not fit, a damaged state, a clock that went back.
            OSError: the state or the port is used by another process, or the disk is full.
        """
        from train_distributed.commands.federation.adding import add

        add(self)


@dataclass(frozen=True)
class Report:
    """A user: compute what was agreed, with noise, and report it to the adders of a window."""

    folder: Path
    """Of `join`."""
    invitation: Path
    """The folder that the operator handed out."""
    window: Path
    """The window.json that it handed out."""
    embeddings: Path
    """The embedding set."""
    accept: str = ""
    """The federation's digest, or its first characters, as you were told over another channel. Who
    leaves it out is shown the terms and asked, once per federation."""
    limits: Limits = field(default_factory=Limits)
    ledger: Path | None = None
    """File that counts what is given away; beside the embedding set if left out; `none`."""
    ca: Path | None = None
    """Certificates of the authorities of the adders, where they have TLS."""
    patience: float = 600.0
    """Seconds after which an adder that is gone is an error; then report again."""

    def run(self) -> None:
        """Reports; called again, the same report is sent again and counts once.

        Raises:
            ValueError: a file or setting that does not fit, or an adder that refuses the report.
            OSError: an adder is gone.
        """
        from train_distributed.commands.federation.reporting import report

        report(self)


@dataclass(frozen=True)
class Collect:
    """The operator: close the window, open the sum, write the model."""

    folder: Path
    """Of `init`."""
    window: Path
    """The folder that `federation window` has made."""
    out: Path
    """Directory of the model."""
    ledger: Path | None = None
    """File that counts what is given away; in the operator's folder if left out; `none`."""
    ca: Path | None = None
    """Certificates of the authorities of the adders, where they have TLS."""
    patience: float = 600.0
    """Seconds after which an adder that is gone is an error; then collect again."""
    status: bool = False
    """Only say how many reports each adder holds; nothing is closed."""

    def run(self) -> None:
        """Closes for good, unless there are too few reports: then the window goes on.

        Raises:
            ValueError: files that do not fit, or fewer reports than the minimum.
            OSError: an adder is gone, or the model cannot be written.
        """
        from train_distributed.commands.federation.collecting import collect

        collect(self)
