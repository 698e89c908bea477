"""Cache of converted networks on the disk, keyed by everything they depend on.

Each is a directory in `networks/` of the user's cache, which may be removed at any time.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pretrain.cli.output import sync_tree

T = TypeVar("T")
LIMIT = 4 << 30  # size: bytes of all networks; beyond it the oldest are removed
DIGESTS = "digests.json"


def networks() -> Path:
    """The directory: in $XDG_CACHE_HOME, or ~/.cache; see `pretrain.surroundings`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "blind-averaging" / "networks"


def from_cache(
    made_of: Mapping[str, Any], write: Callable[[Path], None], load: Callable[[Path], T]
) -> T:
    """Loads the network that `write` puts into a directory, in this call or in an earlier one.

    A network that is damaged, or that `load` refuses, is made again. If the cache cannot be
    written, a temporary directory takes its place.

    Args:
        made_of: everything that the network depends on, for JSON.
        write: fills an empty directory.
        load: reads such a directory, which may be removed afterwards.
    """
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]
    entry = networks() / key
    if _is_whole(entry):
        with contextlib.suppress(Exception):  # what a foreign library raises
            entry.touch()
            return load(entry)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".", dir=entry.parent))
    except OSError:
        partial = Path(tempfile.mkdtemp())
    try:
        write(partial)
        network = load(partial)
        if partial.parent == entry.parent:
            with contextlib.suppress(OSError):  # a full disk, or another process was first
                _keep(partial, entry)
        return network
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _keep(partial: Path, entry: Path) -> None:
    """Moves a directory to its place, and removes the least recently used ones."""
    (partial / DIGESTS).write_text(json.dumps(_digests(partial)))
    sync_tree(partial)
    shutil.rmtree(entry, ignore_errors=True)
    partial.rename(entry)
    others = sorted(entry.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in others}
    for path in others:
        if path != entry and sum(sizes.values()) > LIMIT:
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]


def _digests(entry: Path) -> dict[str, str]:
    found = {}
    for path in sorted(entry.iterdir()):
        if path.name != DIGESTS:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_whole(entry: Path) -> bool:
    try:
        return json.loads((entry / DIGESTS).read_text()) == _digests(entry)
    except (OSError, ValueError):
        return False
