"""Images to embeddings on disk: streaming, sharded, resumable after a kill at any moment.

Rows are written in place into a preallocated file below `<out>.partial`; an empty file per
finished shard records progress; the finished set is renamed to `<out>`.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from embed.encoding import UNKNOWN
from embed.fast import COMPILE_FROM, choose_batch_size, choose_dtype, fast_forward
from embed.store import (
    INFERRED,
    EmbeddingSet,
    hash_rows,
    read_blocks,
    write_companions,
    write_header,
)
from embed.stream import embedded, spans
from pretrain.cli.output import new_file, refuse_existing
from pretrain.datasets import ImageSet
from pretrain.encoder import encoder_hash
from pretrain.preprocess import Preprocess

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """How to compute and store embeddings."""

    dtype: str = "float32"  # of the stored rows: float32 or float16
    compute: str = "auto"  # auto, float32, bfloat16 or float16
    batch_size: int | None = None  # None: what suits the device
    shard_rows: int = 2048  # rows between two points of resumption
    shard: tuple[int, int] = (0, 1)  # this process is i of n
    device: str = "cpu"
    compiled: bool | None = None  # None: on a GPU, for large sets
    overwrite: bool = False  # replace a finished set of another extraction

    def __post_init__(self) -> None:
        index, count = self.shard
        if not 0 <= index < count:
            raise ValueError(f"shard i/n must have 0 <= i < n, got {index}/{count}")
        if self.dtype not in ("float32", "float16"):
            raise ValueError(f"dtype must be float32 or float16, got {self.dtype}")
        if self.compute not in ("auto", *DTYPES):
            raise ValueError(f"compute must be auto or one of {list(DTYPES)}, got {self.compute}")
        if self.shard_rows < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise ValueError(
                f"shard_rows and batch_size must be >= 1, got {self.shard_rows}, {self.batch_size}"
            )


def extract(
    images: ImageSet,
    encoder: nn.Module,
    out: Path,
    *,
    encoder_name: str,
    preprocess: Preprocess,
    options: ExtractOptions,
    weights: str = UNKNOWN,
) -> EmbeddingSet | None:
    """Embeds all images into the directory `out`, or this process's share of them.

    A later call with the same arguments goes on where an interrupted one stopped. `encoder_name`
    and `weights` (see `pretrain.encoder.origin`) are for meta.json.

    Returns:
        The finished set, or None while other shards are still missing.

    Raises:
        ValueError: `<out>.partial` or `out` holds something else, an image is damaged or of
            another size, or the encoder returns NaN.
        OSError: no space left; finished shards are kept.
    """
    device = torch.device(options.device)
    dtype = choose_dtype(device) if options.compute == "auto" else DTYPES[options.compute]
    batch_size = options.batch_size or choose_batch_size(device)
    compiled = options.compiled
    if compiled is None:
        compiled = device.type == "cuda" and len(images) >= COMPILE_FROM
    meta = {
        "data": images.name,
        "data_hash": _data_hash(images),
        "rows": len(images),
        "class_names": list(images.class_names),
        "classes": _classes(images),
        "encoder": encoder_name,
        "encoder_hash": encoder_hash(encoder),
        "weights": weights,
        "preprocess": preprocess.to_json(),
        "image_shape": list(images.images(slice(0, 1)).shape[1:]),
        "dtype": options.dtype,
        "compute": str(dtype).removeprefix("torch."),
        "compiled": compiled,
        "batch_size": batch_size,
        "shard_rows": options.shard_rows,
        "versions": {name: version(name) for name in ("torch", "timm", "numpy", "pillow")},
    }
    if out.exists() and not out.with_name(out.name + ".partial").exists():
        held = EmbeddingSet.open(out) if (out / "meta.json").exists() else None
        if held is not None and not _changed(_without_hash(held.meta), meta):
            return held
        refuse_existing(out, overwrite=options.overwrite)
    job = _Job(out, meta, images, int(getattr(encoder, "embedding_dim")))  # noqa: B009
    forward = fast_forward(encoder, device, dtype, compiled=compiled)
    return job.run(lambda pixels: forward(preprocess(pixels.to(device))), options.shard)


class _Job:
    """The partial directory of one extraction: `set/`, `finished/`, `meta.json`, `lock`."""

    def __init__(self, out: Path, meta: dict[str, Any], images: ImageSet, dim: int) -> None:
        self.out, self.meta, self.images, self.dim = out, meta, images, dim
        self.partial = out.with_name(out.name + ".partial")
        self.rows, self.dtype = self.partial / "set" / "embeddings.npy", np.dtype(meta["dtype"])
        self.finished = self.partial / "finished"
        self.shards = -(-len(images) // meta["shard_rows"])

    def run(self, forward: Callable[[Tensor], Tensor], share: tuple[int, int]) -> Any:
        self.partial.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._prepare()
        index, count = share
        mine = [s for s in range(index, self.shards, count) if not self._marker(s).exists()]
        total = sum(len(range(*self._range(s))) for s in mine)
        with tqdm(total=total, unit="image", disable=None, smoothing=0.05) as bar:
            for shard, block in self._computed(mine, forward, bar):
                self._write(shard, block)
        with self._locked():
            return self._finish()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.partial / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _marker(self, shard: int) -> Path:
        return self.finished / f"{shard:06d}"

    def _range(self, shard: int) -> tuple[int, int]:
        size = self.meta["shard_rows"]
        return shard * size, min(len(self.images), (shard + 1) * size)

    def _prepare(self) -> None:
        """Creates the empty set, or checks that the existing one is of this extraction."""
        plan = self.partial / "meta.json"
        if plan.exists():
            found = json.loads(plan.read_text())
            if changed := _changed(found, self.meta):
                raise ValueError(
                    f"{self.partial} must be of the same extraction (or be removed), "
                    f"got another {', '.join(changed)}"
                )
            return
        for directory in (self.rows.parent, self.finished):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        try:
            write_companions(
                self.rows.parent,
                labels=self.images.labels,
                users=self.images.users,
                split=self.images.split,
                names=self.images.names,
                meta=self.meta,
            )
            with self.rows.open("wb") as file:
                write_header(file, (len(self.images), self.dim), self.dtype)
                row = self.dim * self.dtype.itemsize
                os.posix_fallocate(file.fileno(), 0, file.tell() + len(self.images) * row)
        except OSError as error:
            shutil.rmtree(self.partial)
            needed = len(self.images) * self.dim * self.dtype.itemsize
            reason = f"{self.partial}: {needed} bytes of embeddings do not fit: {error.strerror}"
            raise OSError(error.errno, reason) from error
        with new_file(plan) as partial:
            partial.write_text(json.dumps(self.meta))

    def _computed(
        self, shards: list[int], forward: Callable[[Tensor], Tensor], bar: Any
    ) -> Iterator[tuple[int, np.ndarray]]:
        ranges = [self._range(shard) for shard in shards]
        batches = [span for of in ranges for span in spans(*of, self.meta["batch_size"])]
        shape = tuple(self.meta["image_shape"])
        block: list[np.ndarray] = []
        for (_, stop), rows in embedded(
            self.images, batches, forward, shape=shape, dtype=self.dtype
        ):
            block.append(rows)
            bar.update(len(rows))
            shard = (stop - 1) // self.meta["shard_rows"]
            if stop == self._range(shard)[1]:
                yield shard, np.concatenate(block)
                block = []

    def _write(self, shard: int, block: np.ndarray) -> None:
        with self.rows.open("r+b") as file:
            header = os.fstat(file.fileno()).st_size - len(self.images) * block[0].nbytes
            file.seek(header + self._range(shard)[0] * block[0].nbytes)
            file.write(np.ascontiguousarray(block).tobytes())
            file.flush()
            os.fsync(file.fileno())
        self._marker(shard).touch()

    def _finish(self) -> EmbeddingSet | None:
        """Renames the set once every shard is there; the last process of all does it."""
        if self.rows.exists():
            if not all(self._marker(s).exists() for s in range(self.shards)):
                return None
            meta = {**self.meta, "content_hash": hash_rows(read_blocks(self.rows))}
            with new_file(self.rows.parent / "meta.json") as partial:
                partial.write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")
            if self.out.exists():  # --overwrite: the old set stays until the new one is whole
                self.out.rename(self.partial / "replaced")
            self.rows.parent.rename(self.out)
        shutil.rmtree(self.partial, ignore_errors=True)
        return EmbeddingSet.open(self.out)


def _data_hash(images: ImageSet) -> str:
    """Of labels, splits, users, names and the first and last image."""
    ends = images.images(np.array([0, len(images) - 1]))
    columns = [images.labels, images.split, *([] if images.users is None else [images.users])]
    if images.names is not None:
        columns.append(np.frombuffer(images.names.tobytes(), np.uint8))
    return hash_rows([ends, *columns])


def _classes(images: ImageSet) -> str:
    """Whether somebody declared the classes, or nobody labelled the images."""
    if not images.labelled:
        return "none"
    return INFERRED if images.inferred else "declared"


def _changed(found: dict[str, Any], meta: dict[str, Any]) -> list[str]:
    return sorted(k for k in meta.keys() | found.keys() if found.get(k) != meta.get(k))


def _without_hash(meta: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key != "content_hash"}
