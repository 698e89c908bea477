"""Images to embeddings on disk: streaming, sharded, resumable after a kill at any moment.

Rows are written in place into a preallocated file below `<out>.partial`; a file per finished shard
records progress; the finished set is renamed to `<out>`. A skipped image leaves its place empty
until then, so that shards and batches are the same whether or not a run was interrupted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from embed.encoding import UNKNOWN
from embed.engines.choice import ENGINES, choose
from embed.engines.trial import trial_pictures
from embed.fast import COMPILE_FROM, DTYPES, choose_batch_size
from embed.partial import Partial, as_planned, changed, plan_of
from embed.store import INFERRED, EmbeddingSet, hash_rows
from embed.stream import embedded, spans
from pretrain.cli.output import refuse_existing
from pretrain.cli.progress import Progress
from pretrain.datasets import ImageSet
from pretrain.encoder import encoder_hash
from pretrain.intake.decode import UnreadableImage
from pretrain.intake.splits import users_in_both
from pretrain.preprocess import Preprocess


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """How to compute and store embeddings."""

    dtype: str = "float32"  # of the stored rows: float32 or float16
    engine: str = "auto"  # auto, or one of ENGINES
    compute: str = "auto"  # auto, float32, bfloat16 or float16
    batch_size: int | None = None  # None: what suits the device
    shard_rows: int = 2048  # rows between two points of resumption
    shard: tuple[int, int] = (0, 1)  # this process is i of n
    device: str = "cpu"
    compiled: bool | None = None  # None: on a GPU, for large sets
    overwrite: bool = False  # replace a finished set of another extraction
    skip_unreadable: bool = False  # leave out images that cannot be decoded, and say which
    test_share: float | None = None  # of the training records, drawn for testing at the end

    def __post_init__(self) -> None:
        index, count = self.shard
        if not 0 <= index < count:
            raise ValueError(f"shard i/n must have 0 <= i < n, got {index}/{count}")
        if self.dtype not in ("float32", "float16"):
            raise ValueError(f"dtype must be float32 or float16, got {self.dtype}")
        if self.compute not in ("auto", *DTYPES):
            raise ValueError(f"compute must be auto or one of {list(DTYPES)}, got {self.compute}")
        if self.engine not in ("auto", *ENGINES):
            raise ValueError(f"engine must be auto or one of {list(ENGINES)}, got {self.engine}")
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

    A later call with the same arguments goes on where an interrupted one stopped; one that fails
    before its first shard is finished leaves nothing. What is `auto` stays as it was settled when
    the extraction began. `encoder_name` and `weights` (see
    `pretrain.encoder.origin`) are for meta.json. Skipped images are counted there as `unreadable`
    and named, with the reason, in `unreadable.txt`.

    Returns:
        The finished set, or None while other shards are still missing.

    Raises:
        ValueError: `<out>.partial` or `out` holds something else, an image is damaged or of
            another size, or the encoder returns NaN.
        OSError: no space left; finished shards are kept.
    """
    device = torch.device(options.device)
    batch_size = min(options.batch_size or choose_batch_size(device), len(images))
    compiled = options.compiled
    if compiled is None:
        compiled = device.type == "cuda" and len(images) >= COMPILE_FROM
    ends = _ends(images, skip=options.skip_unreadable)
    meta = _described(images, ends) | {
        "encoder": encoder_name,
        "encoder_hash": encoder_hash(encoder),
        "weights": weights,
        "preprocess": preprocess.to_json(),
        "dtype": options.dtype,
        "engine": options.engine,
        "compute": options.compute,
        "compiled": compiled,
        "batch_size": batch_size,
        "shard_rows": options.shard_rows,
    }
    if options.test_share is not None:
        meta |= {"test_share": options.test_share}
    begun = plan_of(out)
    if begun is None and out.exists():
        if (held := _finished(out, meta, options)) is not None:
            return held
        refuse_existing(out, overwrite=options.overwrite)
    meta = _settled(meta, begun or {})
    engine = choose(
        encoder,
        device,
        lambda: preprocess(trial_pictures(batch_size, *ends.shape[2:]).to(device)),
        rows=len(images),
        batch_size=batch_size,
        engine=meta["engine"],
        compute=meta["compute"],
        compiled=compiled,
    )
    meta = _settled(meta, {"engine": engine.name, "compute": engine.compute})
    partial = Partial(out, meta, images, int(getattr(encoder, "embedding_dim")))  # noqa: B009

    def run(pixels: torch.Tensor) -> torch.Tensor:
        return engine.forward(preprocess(pixels.to(device)))

    with partial.open(options.shard, skip=options.skip_unreadable) as shards:
        _fill(partial, shards, images, run, options)
        return partial.finish()


def _fill(
    partial: Partial,
    shards: list[int],
    images: ImageSet,
    forward: Callable[[torch.Tensor], torch.Tensor],
    options: ExtractOptions,
) -> None:
    """Embeds the shards of this process, each of which is written when it is whole."""
    size = partial.meta["batch_size"]
    batches = [b for s in shards for b in spans(*partial.span(s), size)]
    with Progress(sum(stop - start for start, stop in batches), "embedded") as progress:
        block: list[np.ndarray] = []
        skipped: dict[int, str] = {}
        for (_, stop), rows in embedded(
            images,
            batches,
            forward,
            shape=tuple(partial.meta["image_shape"]),
            dtype=partial.dtype,
            skipped=skipped if options.skip_unreadable else None,
        ):
            block.append(rows)
            shard = (stop - 1) // options.shard_rows
            if stop == partial.span(shard)[1]:
                partial.write(shard, np.concatenate(block), skipped)
                block.clear()
                skipped.clear()
            progress.update(len(rows))


def _finished(out: Path, meta: dict[str, Any], options: ExtractOptions) -> EmbeddingSet | None:
    """The set that is there already, if it is of the same extraction."""
    if not (out / "meta.json").exists():
        return None
    held = EmbeddingSet.open(out)
    planned = as_planned(held.meta, skip=options.skip_unreadable)
    return None if changed(planned, _settled(meta, planned)) else held


def _described(images: ImageSet, ends: np.ndarray) -> dict[str, Any]:
    """What meta.json says of the images."""
    return {
        "data": images.name,
        "data_hash": _data_hash(images, ends),
        "rows": len(images),
        "class_names": list(images.class_names),
        "classes": _classes(images),
        "image_shape": list(ends.shape[1:]),
        **{name: value for name, value in _known(images).items() if value},
    }


def _settled(meta: dict[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """What is still `auto` as it was settled before, and the versions that follow from it."""
    asked = {name: meta[name] for name in ("engine", "compute")}
    choices = {k: begun.get(k, v) if v == "auto" else v for k, v in asked.items()}
    packages = ("torch", "timm", "numpy", "pillow", choices["engine"])
    return meta | choices | {"versions": {n: version(n) for n in packages if n != "auto"}}


def _ends(images: ImageSet, *, skip: bool) -> np.ndarray:
    """The first and the last image, (2, 3, h, w); with `skip` the outermost readable ones.

    Raises:
        ValueError: none is readable, or they differ in size.
    """
    if not skip:
        return images.images(np.array([0, len(images) - 1]))
    ends = [_readable(images, range(len(images))), _readable(images, range(len(images))[::-1])]
    return images.images(np.array(ends))


def _readable(images: ImageSet, rows: Iterable[int]) -> int:
    """The first of the rows whose image can be decoded."""
    first: UnreadableImage | None = None
    for row in rows:
        try:
            images.images(slice(row, row + 1))
            return row
        except UnreadableImage as error:
            first = first or error
    raise ValueError(f"{images.name} must hold a readable image, got none; the first: {first}")


def _data_hash(images: ImageSet, ends: np.ndarray) -> str:
    """Of labels, splits, users, names and the first and last image."""
    columns = [images.labels, images.split, *([] if images.users is None else [images.users])]
    if images.names is not None:
        columns.append(np.frombuffer(images.names.tobytes(), np.uint8))
    return hash_rows([ends, *columns])


def _known(images: ImageSet) -> dict[str, Any]:
    """What else meta.json says of the images, where there is anything to say."""
    return {
        "user_names": list(images.user_names),
        "users_in_both_splits": len(users_in_both(images)),
        "files_skipped": len(images.skipped),
    }


def _classes(images: ImageSet) -> str:
    """Whether somebody declared the classes, or nobody labelled the images."""
    if not images.labelled:
        return "none"
    return INFERRED if images.inferred else "declared"
