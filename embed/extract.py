"""Extraction of embeddings to disk: streaming, sharded, resumable after a kill at any moment.

Rows are written in place into a preallocated file below `<out>.partial`; a file per finished shard
records progress; the finished set is renamed to `<out>`. A skipped image leaves its place empty
until then, so that shards and batches are the same whether or not a run was interrupted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from embed.encoding import UNKNOWN
from embed.engines.choice import choose, compiles, trial_pictures
from embed.engines.forward import choose_batch_size
from embed.options import ExtractOptions
from embed.partial import ResumableExtraction, as_planned, changed, plan_of
from embed.store import INFERRED, EmbeddingSet, hash_rows
from embed.stream import embedded, first_readable, refuse_dark, refuse_lost_formats, spans
from pretrain import check
from pretrain.cli.output import refuse_existing
from pretrain.cli.provenance import usual_device
from pretrain.cli.waiting import Progress
from pretrain.datasets import SPLITS, ImageSet
from pretrain.encoder import encoder_hash
from pretrain.encoders.composed import Concat
from pretrain.intake.names import counted
from pretrain.intake.splits import users_in_both
from pretrain.preprocess import Preprocess
from pretrain.sources import resized


def extract(
    images: ImageSet,
    encoder: nn.Module,
    out: Path,
    *,
    encoder_name: str,
    preprocess: Preprocess,
    options: ExtractOptions,
    weights: str = UNKNOWN,
    test_share: float | None = None,
) -> EmbeddingSet | None:
    """Embeds all images into the directory `out`, or this process's share of them.

    A later call with the same arguments continues an interrupted one; a call that fails before its
    first shard is finished leaves nothing. Options that are `auto` are settled once, when the
    extraction begins. Skipped images are counted in meta.json as `unreadable` and named, with the
    reason, in `unreadable.txt`.

    Args:
        images: the pictures.
        encoder: the network.
        out: directory to write.
        encoder_name: name of the encoder, for meta.json.
        preprocess: applied to pictures before the encoder. Where it knows of no size of pictures
            and all that it does is to bring larger ones to a square, they are brought to it as they
            are read, as with --resize.
        options: how to compute and store.
        weights: origin of the weights for meta.json; see `pretrain.encoder.origin`.
        test_share: share of the training records to draw for testing at the end.

    Returns:
        The finished set, or None while other shards are still missing.

    Raises:
        ValueError: `<out>.partial` or `out` holds something else, an image is damaged or of
            another size, all images of a user or class are, all of 16 bits are nearly black, or
            the encoder returns NaN.
        OSError: no space left; finished shards are kept.
    """
    device = torch.device(usual_device(options.device))
    digest = encoder_hash(encoder)
    batch_size = min(options.batch_size or choose_batch_size(device), len(images))
    images, shape, data_hash = _looked_at(images, preprocess, skip=options.skip_unreadable)
    meta = _described(images, shape) | {
        "data_hash": data_hash,
        "encoder": encoder_name,
        "encoder_hash": digest,
        "weights": weights,
        "preprocess": replace(preprocess, pictures=None).to_json(),  # image_shape says it
        "dtype": options.dtype,
        "engine": options.engine,
        "compute": options.compute,
        "compiled": compiles(device, len(images)),
        "batch_size": batch_size,
        "shard_rows": options.shard_rows,
    }
    parts = encoder.widths if isinstance(encoder, Concat) else None
    meta |= check.present(parts=parts, test_share=test_share)
    begun = plan_of(out)
    if begun is None and out.exists():
        if (held := _finished(out, meta, options)) is not None:
            return held
        refuse_existing(out, overwrite=options.overwrite)
    meta = _settled(meta, begun or {})
    engine = choose(
        encoder,
        device,
        lambda: preprocess(trial_pictures(batch_size, *shape[2:]).to(device)),
        rows=len(images),
        batch_size=batch_size,
        engine=meta["engine"],
        compute=meta["compute"],
        digest=digest,
    )
    meta = _settled(meta, {"engine": engine.name, "compute": engine.compute})
    partial = ResumableExtraction(out, meta, images, int(getattr(encoder, "embedding_dim")))  # noqa: B009

    def run(pixels: torch.Tensor) -> torch.Tensor:
        return engine.forward(preprocess(pixels.to(device)))

    with partial.open(options.share, skip=options.skip_unreadable) as shards:
        _fill(partial, shards, images, run, options)
        refuse_dark(images)
        return partial.finish()


def _looked_at(
    images: ImageSet, preprocess: Preprocess, *, skip: bool
) -> tuple[ImageSet, tuple[int, ...], str]:
    """The images of the size that they are read at, the shape of some, and their hash.

    Raises:
        ValueError: as `extract`, for all that the first and last image show.
    """
    if skip:
        refuse_lost_formats(images)
    ends = _ends(images, skip=skip)
    data_hash, side = _data_hash(images, ends), preprocess.side
    if preprocess.pictures is not None:
        preprocess.of_pictures(ends.shape[2:])
    elif side is not None and min(ends.shape[2:]) >= side:  # one way to scale, as with --resize
        images = resized(images, side)
        ends = _ends(images, skip=skip)
    refuse_dark(images)
    return images, ends.shape, data_hash


def _fill(
    partial: ResumableExtraction,
    shards: list[int],
    images: ImageSet,
    forward: Callable[[torch.Tensor], torch.Tensor],
    options: ExtractOptions,
) -> None:
    """Embeds the shards of this process; each is written when it is complete."""
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
    """The existing set, if it is of the same extraction."""
    if not (out / "meta.json").exists():
        return None
    held = EmbeddingSet.open(out)
    planned = as_planned(held.meta, skip=options.skip_unreadable)
    return None if changed(planned, _settled(meta, planned)) else held


def _described(images: ImageSet, shape: tuple[int, ...]) -> dict[str, Any]:
    """Entries of meta.json about the images."""
    optional = {
        "user_names": list(images.user_names),
        "users_in_both_splits": len(users_in_both(images)),
        "files_skipped": len(images.skipped),
        "bits": next((seen.bits for seen in images.seen if seen.bits), None),
    }
    origin = INFERRED if images.inferred else "declared"
    return {
        "data": images.name,
        "rows": len(images),
        "class_names": list(images.class_names),
        "classes": origin if images.labelled else "none",
        "image_shape": list(shape[1:]),
        **{name: value for name, value in optional.items() if value},
    }


def _settled(meta: dict[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces `auto` by earlier choices, and adds the versions that follow from them."""
    asked = {name: meta[name] for name in ("engine", "compute")}
    choices = {k: begun.get(k, v) if v == "auto" else v for k, v in asked.items()}
    packages = ["torch", "timm", "numpy", "pillow"]
    packages += ["openvino"] if choices["engine"] == "openvino" else []
    return meta | choices | {"versions": {name: version(name) for name in packages}}


def _ends(images: ImageSet, *, skip: bool) -> np.ndarray:
    """First and last image, (2, 3, h, w); with `skip` the first and last readable one.

    Raises:
        ValueError: none is readable, or they differ in size.
    """
    if not skip:
        return images.images(np.array([0, len(images) - 1]))
    rows = range(len(images))
    return images.images(
        np.array([first_readable(images, rows), first_readable(images, rows[::-1])])
    )


def _data_hash(images: ImageSet, ends: np.ndarray) -> str:
    """Hash of labels, splits, users, names and the first and last image."""
    columns = [images.labels, images.split, *([] if images.users is None else [images.users])]
    if images.names is not None:
        columns.append(np.frombuffer(images.names.tobytes(), np.uint8))
    return hash_rows([ends, *columns])


def summary(done: EmbeddingSet, images: ImageSet, out: Path) -> list[str]:
    """Rows, classes and users with their counts, what was skipped, size and mode of pictures."""
    first = {number: name for name, number in reversed(SPLITS.items())}
    numbers, counts = np.unique(done.split, return_counts=True)
    parts = ", ".join(f"{count} {first[k]}" for k, count in zip(numbers, counts, strict=True))
    lines = [("rows", f"{len(done)}: {parts}")]
    if (done.labels < 0).all():
        lines.append(("classes", "no labels: rows for public use or prediction only"))
    else:
        counts = np.bincount(done.labels, minlength=len(images.class_names))
        lines.append(("classes", _spread(counts, images.class_names)))
    if done.users is not None:
        numbers, counts = np.unique(done.users, return_counts=True)
        names = images.user_names
        lines.append(("users", _spread(counts, [names[k] if names else str(k) for k in numbers])))
    lines.append(("pictures", _pictures(images, done)))
    skipped = list(images.skipped)
    if (file := out / "unreadable.txt").exists():
        found = file.read_text(errors="surrogateescape").splitlines()
        skipped += [(line.partition("\t")[0], f"unreadable, see {file}") for line in found]
    lines += [("skipped", words) for words in counted(skipped)]
    whole = (f"{what:10} {words}" for what, words in lines)
    return [line.encode("utf-8", "replace").decode() for line in whole]  # names may be no Unicode


def _spread(counts: np.ndarray, names: Sequence[str]) -> str:
    """Smallest, median and largest count."""
    least, most = int(counts.argmin()), int(counts.argmax())
    if counts[least] == counts[most]:
        return f"{len(counts)}, of {counts[least]} rows each"
    ends = f"{counts[least]} ({names[least]}) to {counts[most]} ({names[most]})"
    return f"{len(counts)}, of {ends} rows, median {np.median(counts):g}"


def _pictures(images: ImageSet, done: EmbeddingSet) -> str:
    """Size and mode of those that were read now: all, unless an extraction was continued."""
    height, width = done.meta["image_shape"][1:]
    words = f"embedded as {width} x {height}"
    modes = sorted({mode for seen in images.seen for mode in seen.modes})
    if not modes:
        return words
    ends = [size for seen in images.seen for size in (seen.smallest, seen.largest) if size]
    least, most = (end(ends, key=lambda size: size[0] * size[1]) for end in (min, max))
    size = " to ".join(f"{w} x {h}" for w, h in dict.fromkeys((least, most)))
    return f"{size}, {', '.join(modes)}; {words}"
