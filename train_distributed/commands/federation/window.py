"""`federation window|adder|report|collect`: a sum over very many users."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Add:
    """A computation server: take users' reports until the window is closed, then open their sum."""

    folder: Path
    """Of `join`, or of `init`: its keys, and the state that must never be lost nor copied."""
    window: Path
    """The folder that `federation window` has made."""
    listen: str | None = None
    """HOST:PORT to listen on; the window's port on all addresses if left out."""
    tls: Path | None = None
    """Folder with server.pem and server.key; without, lines are plain and reports sealed."""
    processes: int = 1
    """Processes that check reports, each with a slice of the users."""

    def run(self) -> None:
        """Serves.

        Raises:
            ValueError: files that do not fit, a damaged state, a clock that went back.
            OSError: the state or the port is used by another process.
        """
        from train_distributed.commands.federation.adding import add

        add(self)
