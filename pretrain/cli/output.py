"""What is written to disk appears whole or not at all."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path


def default_directory(command: str) -> Path:
    """`runs/<UTC time>-<command>` below the working directory: never the same one twice."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{command}"
    path, attempt = Path("runs") / stem, 1
    while path.exists():
        attempt += 1
        path = Path("runs") / f"{stem}-{attempt}"
    return path


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Checks, before any work is done, that `path` may be created.

    Raises:
        FileExistsError: `path` exists and `overwrite` is off.
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"output directory must not exist (or pass --overwrite), got {path}")


@contextlib.contextmanager
def new_directory(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty directory beside `path`, renamed to `path` only if the block succeeds.

    Open it before work that cannot be repeated: a place that cannot be written is found then. An
    error or an interruption inside the block removes what was written, parents that were made for
    it included. With `overwrite` an existing `path` stays as it is until the new one is complete.

    Raises:
        FileExistsError: `path` exists and `overwrite` is off. Where somebody else made it during
            the block, what was written is kept beside it, and the error says where.
    """
    refuse_existing(path, overwrite=overwrite)
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            _replace(path, partial, overwrite=overwrite)
        else:
            partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # one that holds something is kept
            for parent in missing:
                parent.rmdir()


def _replace(path: Path, partial: Path, *, overwrite: bool) -> None:
    if not overwrite:
        kept = path.with_name(f"{path.name}.{os.getpid()}")
        partial.rename(kept)
        raise FileExistsError(
            f"output directory {path} was made meanwhile; the result is in {kept}"
        )
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(old)
    partial.rename(path)
    shutil.rmtree(old)


@contextlib.contextmanager
def reserved(directory: Path, size: int) -> Iterator[None]:
    """Holds space on the disk of a directory during a block, for what is written after it.

    Args:
        directory: one that exists.
        size: bytes.

    Raises:
        OSError: there is not as much, or the directory cannot be written.
    """
    place = directory / ".reserved"
    try:
        with place.open("xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(1, size))
            elif shutil.disk_usage(directory).free < size:
                raise OSError(errno.ENOSPC, f"{size} bytes must be free", str(directory))
        yield
    finally:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`, renamed over `path` only if the block succeeds."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
