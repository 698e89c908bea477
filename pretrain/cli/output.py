"""Output directories and files that appear whole or not at all."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def default_directory(command: str) -> Path:
    """`runs/<UTC time>-<command>` below the working directory: never the same one twice."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{command}"
    path, attempt = Path("runs") / stem, 1
    while path.exists() or _claim(path).exists():
        attempt += 1
        path = Path("runs") / f"{stem}-{attempt}"
    return path


def output_directory(
    out: Path | None, command: str, *inputs: Path | str | None, overwrite: bool
) -> Path:
    """Directory that a command writes, checked before any work is done.

    Args:
        out: the directory; None: `default_directory(command)`.
        command: name of the command.
        *inputs: as for `refuse_inputs`.
        overwrite: whether it may exist.

    Raises:
        ValueError: an input lies in it.
        FileExistsError: as of `refuse_existing`.
    """
    out = out or default_directory(command)
    refuse_inputs(out, inputs)
    refuse_existing(out, overwrite=overwrite)
    return out


def write_json(path: Path, report: Any) -> None:
    """Writes indented JSON that ends with a new line."""
    path.write_text(json.dumps(report, indent=2) + "\n")


def refuse_existing(path: Path, *, overwrite: bool | None) -> None:
    """Checks, before any work is done, that `path` may be created.

    Args:
        path: of the new directory.
        overwrite: whether it may exist; None: it may not, and the command has no such option.

    Raises:
        FileExistsError: `path` exists and `overwrite` is off, or it is no directory that may be
            replaced.
    """
    if path.exists() and not overwrite:
        option = "" if overwrite is None else " (or pass --overwrite)"
        raise FileExistsError(f"output directory must not exist{option}, got {path}")
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"output directory must not be a file, got {path}")
    if path.exists() and Path.cwd().is_relative_to(path.resolve()):
        raise FileExistsError(f"output directory must not hold the working directory, got {path}")


def refuse_inputs(out: Path, given: Iterable[Path | str | None]) -> None:
    """Checks that no input lies in the output directory.

    Args:
        out: the directory.
        given: paths, and names of image sets or encoders, which may be KIND:PATH or
            mirrored:KIND:PATH@PIXELS, and several joined by +; None is ignored.

    Raises:
        ValueError: an input lies there; replacing the directory would remove it.
    """
    for name in given:
        if name is None:
            continue
        whole = str(name)
        parts = {whole, *(whole.split("+") if isinstance(name, str) else ())}
        parts |= {part.rpartition("@")[0] for part in parts if isinstance(name, str)}
        words = [part.split(":") if isinstance(name, str) else [part] for part in parts]
        places = {":".join(each[start:]) for each in words for start in range(len(each))}
        for path in filter(None, places):
            if Path(path).resolve().is_relative_to(out.resolve()):
                raise ValueError(f"out must not hold what the command reads, {path}, got {out}")


@contextlib.contextmanager
def new_directory(path: Path, *, overwrite: bool | None = None) -> Iterator[Path]:
    """Yields an empty directory next to `path`, renamed to `path` only if the block succeeds.

    Open it before work that cannot be repeated: a place that cannot be written, or that another
    command is writing, is found then. An error or an interruption inside the block removes what was
    written, parents that were made for it included. With `overwrite` an existing `path` stays as it
    is until the new one is complete and on the disk; killed in between, both are kept, and the next
    command that writes there ends the replacement first.

    Raises:
        FileExistsError: `path` exists and `overwrite` is off, or another command is writing it.
            If `path` appeared during the block, the new directory is kept next to it, and
            the error says where.
        OSError: it cannot be written, or the disk is full.
    """
    place = Path(os.path.realpath(path))  # links and ".." resolved
    missing = [parent for parent in place.parents if not parent.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        with _claimed(place):
            _end_replacement(place)
            refuse_existing(path, overwrite=overwrite)
            partial.mkdir()
            try:
                yield partial
                if os.path.lexists(place):
                    _replace(place, partial, overwrite=overwrite)
                else:
                    partial.rename(place)
            except OSError as error:
                if error.errno == errno.ENOSPC and error.filename is None:
                    error.filename = str(path)  # whose disk
                raise
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):  # one that holds something is kept
            for parent in missing:
                parent.rmdir()


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Lock that lets one command at a time write `path`; it ends with the process.

    Raises:
        FileExistsError: another has it.
    """
    claim = _claim(path)
    while True:
        file = os.open(claim, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise FileExistsError(
                f"output directory must be written by one command at a time, another is "
                f"writing {path}"
            ) from error
        except BaseException:
            os.close(file)
            raise
        if _is_still(claim, file):
            break
        os.close(file)  # its holder has finished and removed the name
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)  # while it is locked
        os.close(file)


def _claim(path: Path) -> Path:
    return path.with_name(f".{path.name}.claim")


def _is_still(claim: Path, file: int) -> bool:
    try:
        return os.path.samestat(claim.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _replace(path: Path, partial: Path, *, overwrite: bool | None) -> None:
    if not overwrite:
        kept = path.with_name(f"{path.name}.{os.getpid()}")
        partial.rename(kept)
        raise FileExistsError(
            f"output directory {path} was made meanwhile; the result is in {kept}"
        )
    sync_tree(partial)
    partial.rename(_complete(path))
    _end_replacement(path)


def _complete(path: Path) -> Path:
    """Place of a complete new directory until the old one is moved away."""
    return path.with_name(f".{path.name}.new")


def _end_replacement(path: Path) -> None:
    """Finishes a replacement, from whichever step a killed process left it in."""
    complete, old = _complete(path), path.with_name(f".{path.name}.old")
    if complete.exists():
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        complete.rename(path)
        sync_directory(path.parent)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def reserved(directory: Path, size: int) -> Iterator[None]:
    """Reserves disk space in a directory during a block, for files written after it.

    Args:
        directory: one that exists.
        size: bytes.

    Raises:
        OSError: there is not as much, or the directory cannot be written.
    """
    place = directory / ".reserved"
    try:
        _hold(place, size)
        yield
    finally:
        place.unlink(missing_ok=True)


def _hold(place: Path, size: int) -> None:
    try:
        with place.open("xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(1, size))
            elif shutil.disk_usage(place.parent).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        words = f"{size} bytes must be free for the result: {error.strerror}"
        raise OSError(error.errno, words, str(place.parent)) from error


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path next to `path`, renamed over `path` only if the block succeeds."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Returns once the directory's entries have reached the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Returns once all files below a directory, and their names, have reached the disk."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))
