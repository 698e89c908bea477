"""Unfinished extraction: rows are written in place, and finished shards are recorded.

Its plan says what is computed; the key, of two calls whether they go on with one another; the
result, what the rows turned out to be. A finished set's meta.json holds the key and the result.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np

from embed import store
from embed.encoding import Encoding
from embed.hold_out import greatest, random_keys
from pretrain import check
from pretrain.cli.json_text import read_object
from pretrain.cli.output import new_file, sync_tree
from pretrain.datasets import TEST, TRAIN, ImageSet, count_of_tests


@dataclass(frozen=True, kw_only=True)
class ExtractionPlan:
    """Settings and inputs that determine the rows of an extraction, fixed before it starts."""

    pictures: dict[str, Any]  # number, classes, shape and hash, as in meta.json
    encoding: Encoding
    dtype: str
    engine: str  # "auto" until it is chosen, as `compute`
    compute: str
    compiled: bool
    batch_size: int
    shard_rows: int
    parts: list[int] | None  # columns of each encoder whose rows lie side by side
    test_share: float | None  # of the training records, to draw for testing at the end

    def resumed(self, key: "ResumeKey | None") -> "ExtractionPlan":
        """The plan with an earlier call's choices in the place of "auto"."""
        held = {} if key is None else key.entries
        asked = {name: getattr(self, name) for name in ("engine", "compute")}
        return replace(self, **{k: held.get(k, v) for k, v in asked.items() if v == "auto"})

    @property
    def key(self) -> "ResumeKey":
        """Key of this extraction with these choices, and the versions that follow from them."""
        how = ("dtype", "engine", "compute", "compiled", "batch_size", "shard_rows")
        own = {name: getattr(self, name) for name in (*how, "parts", "test_share")}
        packages = ["torch", "timm", "numpy", "pillow"] + ["openvino"] * (self.engine == "openvino")
        versions = {"versions": {name: version(name) for name in packages}}
        found = self.pictures | self.encoding.to_json() | check.drop_none(**own) | versions
        return ResumeKey(found)


@dataclass(frozen=True)
class ResumeKey:
    """Entries of meta.json that are equal in all calls of one extraction."""

    entries: dict[str, Any]

    @classmethod
    def of_unfinished(cls, out: Path) -> "ResumeKey | None":
        """Key of the unfinished extraction for `out`; None if there is none."""
        file = _beside(out) / "meta.json"
        return cls(read_object(file)) if file.exists() else None

    @classmethod
    def of_finished(cls, meta: dict[str, Any], *, skip: bool) -> "ResumeKey":
        """Key of the extraction that made a set, from its meta.json."""
        found = {name: value for name, value in meta.items() if name != "content_hash"}
        if skip and "unreadable" in found:
            found["rows"] += found.pop("unreadable")
        return cls(found)

    def differences(self, other: "ResumeKey") -> list[str]:
        """Entries in which two extractions differ."""
        ours, theirs = self.entries, other.entries
        return sorted(k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k))


@dataclass(frozen=True, kw_only=True)
class ExtractionResult:
    """Counts and hash of the rows of a finished extraction, as meta.json states them."""

    rows: int
    unreadable: int  # images that were skipped
    content_hash: str

    def meta(self, key: ResumeKey) -> dict[str, Any]:
        """All of meta.json."""
        found = asdict(self)
        return key.entries | (found if self.unreadable else {"content_hash": self.content_hash})


class ResumableExtraction:
    """The directory `<out>.partial` of one extraction: `set/`, `finished/`, `meta.json`, and locks.

    A finished shard has a file in `finished/`, with the images of it that were skipped. A process
    holds `lock` while it changes the directory, and `workers` while it computes rows.
    """

    def __init__(self, out: Path, plan: ExtractionPlan, images: ImageSet, dim: int) -> None:
        self.out, self.plan, self.images, self.dim = out, plan, images, dim
        self.partial = _beside(out)
        self.rows = self.partial / "set" / "embeddings.npy"
        self.finished = self.partial / "finished"
        self.shards = -(-len(images) // plan.shard_rows)
        self.made: list[Path] = []  # directories above it that this process has made

    @contextlib.contextmanager
    def open(self, share: tuple[int, int], *, skip: bool) -> Iterator[list[int]]:
        """Creates the directory, or checks that the existing one is of this extraction.

        If the block fails before any shard is finished, the directory is removed, by the last
        process that works in it.

        Args:
            share: this process is i of n.
            skip: images may be skipped, in earlier calls as well.

        Yields:
            The shards of this process that are not finished.

        Raises:
            ValueError: it is of another extraction.
            OSError: no room.
        """
        self.made = [parent for parent in self.partial.parents if not parent.exists()]
        with contextlib.ExitStack() as stack:
            with self._locked():
                workers = stack.enter_context((self.partial / "workers").open("w"))
                fcntl.flock(workers, fcntl.LOCK_SH)
                self._prepare()
            if (skipped := len(self._unreadable())) and not skip:
                raise ValueError(
                    f"{self.partial} must be removed, or --skip-unreadable passed, where {skipped} "
                    "unreadable images were skipped before"
                )
            index, count = share
            try:
                yield [s for s in range(index, self.shards, count) if not self._marker(s).exists()]
            except BaseException:
                self._give_up(workers)
                raise

    def span(self, shard: int) -> tuple[int, int]:
        """First row of a shard, and the one after its last."""
        size = self.plan.shard_rows
        return shard * size, min(len(self.images), (shard + 1) * size)

    def write(self, shard: int, block: np.ndarray, unreadable: dict[int, str]) -> None:
        """Writes a shard's rows and, once they have reached the disk, its record.

        Args:
            shard: its number.
            block: (b, p).
            unreadable: row -> reason, of rows that were skipped.
        """
        with self.rows.open("r+b") as file:
            header = os.fstat(file.fileno()).st_size - len(self.images) * block[0].nbytes
            file.seek(header + self.span(shard)[0] * block[0].nbytes)
            file.write(np.ascontiguousarray(block).tobytes())
            file.flush()
            os.fsync(file.fileno())
        with new_file(self._marker(shard)) as partial:
            partial.write_text(json.dumps(list(unreadable.items())) if unreadable else "")

    def finish(self) -> store.EmbeddingSet | None:
        """Renames the set once every shard is finished, by the last process; None before."""
        with self._locked():
            if self.rows.exists():
                if not all(self._marker(s).exists() for s in range(self.shards)):
                    return None
                whole = self._whole(self._unreadable())
                if self.out.exists():  # --overwrite: the old set stays until the new one is whole
                    self.out.rename(self.partial / "replaced")
                whole.rename(self.out)
            shutil.rmtree(self.partial, ignore_errors=True)
        return store.EmbeddingSet.open(self.out)

    def _give_up(self, workers: IO[str]) -> None:
        with self._locked(), contextlib.suppress(BlockingIOError):
            fcntl.flock(workers, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unless others are at work
            if not any(self.finished.glob("[0-9]*")):
                self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # one that holds something is kept
            for parent in self.made:
                parent.rmdir()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        while True:
            self.partial.mkdir(parents=True, exist_ok=True)
            lock = self.partial / "lock"
            with lock.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if lock.exists() and os.path.samestat(lock.stat(), os.fstat(file.fileno())):
                    yield
                    return  # else its holder has removed it

    def _marker(self, shard: int) -> Path:
        return self.finished / f"{shard:06d}"

    def _unreadable(self) -> dict[int, str]:
        """Row -> reason, ascending, of all rows skipped so far."""
        marks = [mark.read_text() for mark in sorted(self.finished.glob("[0-9]*"))]
        return dict(sorted((row, why) for mark in marks if mark for row, why in json.loads(mark)))

    def _prepare(self) -> None:
        key = self.plan.key
        if (begun := ResumeKey.of_unfinished(self.out)) is not None:
            if differing := begun.differences(key):
                raise ValueError(
                    f"{self.partial} must be of the same extraction (or be removed), "
                    f"got another {', '.join(differing)}"
                )
            return
        for directory in (self.rows.parent, self.finished):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        dtype = np.dtype(self.plan.dtype)
        needed = len(self.images) * self.dim * dtype.itemsize
        try:
            with self.rows.open("wb") as file:
                store.write_header(file, (len(self.images), self.dim), dtype)
                os.posix_fallocate(file.fileno(), 0, file.tell() + needed)
        except OSError as error:
            self._remove()
            reason = f"{self.partial}: {needed} bytes of embeddings do not fit: {error.strerror}"
            raise OSError(error.errno, reason) from error
        with new_file(self.partial / "meta.json") as partial:
            partial.write_text(json.dumps(key.entries))

    def _whole(self, unreadable: dict[int, str]) -> Path:
        """Directory of the finished set: all rows in place, or a copy without the skipped ones."""
        whole, kept = self.rows.parent, np.ones(len(self.images), bool)
        if unreadable:
            first = next(iter(unreadable.values()))
            self.images.refuse_lost(list(unreadable), f"the first unreadable image: {first}")
            kept[list(unreadable)] = False
            whole = self.partial / "readable"
            shutil.rmtree(whole, ignore_errors=True)
            whole.mkdir()
            rows = store.select_rows(store.read_blocks(self.rows), kept)
            store.write_rows(whole / "embeddings.npy", rows, (int(kept.sum()), self.dim))
            lines = (f"{self.images.image_name(row)}\t{why}\n" for row, why in unreadable.items())
            (whole / "unreadable.txt").write_text("".join(lines), "utf-8", "surrogateescape")
        result = ExtractionResult(
            rows=int(kept.sum()),
            unreadable=len(unreadable),
            content_hash=store.hash_rows(store.read_blocks(whole / "embeddings.npy")),
        )
        columns = store.columns(self.images, kept)
        columns["split"] = self._split(columns["split"])
        store.write_companions(whole, **columns, meta=result.meta(self.plan.key))
        sync_tree(whole)
        return whole

    def _split(self, split: np.ndarray) -> np.ndarray:
        """(N,) the split, with `test_share` of the training records moved to test.

        The operating system draws after all records are embedded: a resumed run needs to keep
        nothing of the draw, and it does not depend on any record.
        """
        if (share := self.plan.test_share) is None:
            return split
        train = np.flatnonzero(split == TRAIN)
        count = np.array([count_of_tests(len(train), share, "records")])
        drawn = greatest(random_keys(len(train)), np.zeros(len(train), np.int64), count)
        return np.where(np.isin(np.arange(len(split)), train[drawn]), TEST, split).astype(np.uint8)


def _beside(out: Path) -> Path:
    return out.with_name(out.name + ".partial")
