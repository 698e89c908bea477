"""Directory of what must outlive a party's process: an absolute one per identity."""

import os
from pathlib import Path


def party_state(digest: bytes, party: str, root: Path | None = None) -> Path:
    """The directory of one party of one federation, wherever the command is started.

    Args:
        digest: the federation's.
        party: "operator", "user3", "server1".
        root: absolute directory for all of them; by default the user's state directory,
            `$XDG_STATE_HOME/blind-averaging` or `~/.local/state/blind-averaging`.

    Raises:
        ValueError: a relative root: from another directory it would be another state.
    """
    if root is None:
        given = os.environ.get("XDG_STATE_HOME", "")
        base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
        root = base / "blind-averaging"
    if not root.is_absolute():
        raise ValueError(f"journal must be an absolute path, got {root}")
    return root / f"{digest.hex()[:16]}-{party}"
