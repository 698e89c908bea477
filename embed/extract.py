"""Extraction of embeddings to disk: streaming, sharded, resumable after a kill at any moment.

Threads decode batches ahead, in order. Rows are written in place into a preallocated file below
`<out>.partial`; a file per finished shard records progress; the finished set is renamed to `<out>`.
A skipped image leaves its place empty until then, so that shards and batches are the same whether
or not a run was interrupted.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embed.encoding import UNKNOWN, Encoding
from embed.engines import choose, compiles, trial_pictures
from embed.options import ExtractOptions
from embed.partial import ExtractionPlan, ResumableExtraction, ResumeKey
from embed.store import INFERRED, EmbeddingSet, hash_rows
from pretrain.cli.output import refuse_existing
from pretrain.cli.provenance import usual_batch, usual_device
from pretrain.cli.waiting import Progress
from pretrain.datasets import SPLITS, ImageSet, UnreadableImage, decode_name, users_in_both
from pretrain.encoder import encoder_hash
from pretrain.encoders.base import Concat
from pretrain.intake.files import suffix_of, unreadable_suffixes
from pretrain.intake.reading import counted
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
    batch_size = options.batch_size or usual_batch(device.type)
    made_by = Encoding(
        encoder=encoder_name,
        encoder_hash=encoder_hash(encoder),
        weights=weights,
        preprocess=replace(preprocess, pictures=None),  # image_shape says it
    )
    images, shape, data_hash = _looked_at(images, preprocess, skip=options.skip_unreadable)
    plan = ExtractionPlan(
        pictures=_described(images, shape) | {"data_hash": data_hash},
        encoding=made_by,
        dtype=options.dtype,
        engine=options.engine,
        compute=options.compute,
        compiled=compiles(device, len(images)),
        batch_size=min(batch_size, len(images)),
        shard_rows=options.shard_rows,
        parts=encoder.widths if isinstance(encoder, Concat) else None,
        test_share=test_share,
    )
    begun = ResumeKey.of_unfinished(out)
    if begun is None and out.exists():
        if (held := _finished(out, plan, options)) is not None:
            return held
        refuse_existing(out, overwrite=options.overwrite)
    plan = plan.resumed(begun)
    engine = choose(
        encoder,
        device,
        lambda: preprocess(trial_pictures(plan.batch_size, *shape[2:]).to(device)),
        rows=len(images),
        batch_size=plan.batch_size,
        engine=plan.engine,
        compute=plan.compute,
        digest=made_by.encoder_hash,
    )
    plan = replace(plan, engine=engine.name, compute=engine.compute)
    partial = ResumableExtraction(out, plan, images, int(getattr(encoder, "embedding_dim")))  # noqa: B009

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
    plan, dtype = partial.plan, np.dtype(partial.plan.dtype)
    batches = [b for s in shards for b in spans(*partial.span(s), plan.batch_size)]
    with Progress(sum(stop - start for start, stop in batches), "embedded") as progress:
        block: list[np.ndarray] = []
        skipped: dict[int, str] = {}
        for (_, stop), rows in embedded(
            images,
            batches,
            forward,
            shape=tuple(plan.pictures["image_shape"]),
            dtype=dtype,
            skipped=skipped if options.skip_unreadable else None,
        ):
            block.append(rows)
            shard = (stop - 1) // plan.shard_rows
            if stop == partial.span(shard)[1]:
                partial.write(shard, np.concatenate(block), skipped)
                block.clear()
                skipped.clear()
            progress.update(len(rows))


def _finished(out: Path, plan: ExtractionPlan, options: ExtractOptions) -> EmbeddingSet | None:
    """The existing set, if it is of the same extraction."""
    if not (out / "meta.json").exists():
        return None
    held = EmbeddingSet.open(out)
    key = ResumeKey.of_finished(held.meta, skip=options.skip_unreadable)
    return None if key.differences(plan.resumed(key).key) else held


def _described(images: ImageSet, shape: tuple[int, ...]) -> dict[str, Any]:
    """Entries of meta.json about the images."""
    optional = {
        "user_names": list(images.user_names),
        "users_in_both_splits": len(users_in_both(images)),
        "files_skipped": len(images.skipped),
        "bits": next((seen.bits for seen in images.seen if seen.bits), None),
        "unknown": None if images.findings is None else images.unknown,
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
    also = [each for each in (images.users, images.findings) if each is not None]
    columns = [images.labels, images.split, *(each.ravel() for each in also)]
    if images.names is not None:
        columns.append(np.frombuffer(images.names.tobytes(), np.uint8))
    return hash_rows([ends, *columns])


def summary(done: EmbeddingSet, images: ImageSet, out: Path) -> list[str]:
    """Rows, classes and users with their counts, what was skipped, size and mode of pictures."""
    first = {number: name for name, number in reversed(SPLITS.items())}
    numbers, counts = np.unique(done.split, return_counts=True)
    parts = ", ".join(f"{count} {first[k]}" for k, count in zip(numbers, counts, strict=True))
    lines = [("rows", f"{len(done)}: {parts}")]
    if done.findings is not None:
        lines += _prevalences(done, images.class_names)
    elif (done.labels < 0).all():
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


def _prevalences(done: EmbeddingSet, names: Sequence[str]) -> list[tuple[str, str]]:
    """Lines (label, words) on the findings: rows and users with each, and rows where unknown."""
    assert done.findings is not None
    several = int(((done.findings == 1).sum(1) > 1).sum())
    lines = [("findings", f"{len(names)}; several in {several} of {len(done)} rows")]
    for name, column in zip(names, done.findings.T, strict=True):
        has, known = column == 1, max(1, int((column >= 0).sum()))
        words = f"{name}: {has.sum()} of {known} rows ({100 * has.sum() / known:.1f} %)"
        if done.users is not None:
            words += f" of {len(np.unique(done.users[has]))} users"
        unknown = int((column < 0).sum())
        lines.append(("", words + f", unknown in {unknown} rows" * bool(unknown)))
    return lines


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


AHEAD = 3  # size: batches decoded while one is computed
SINGLE = np.dtype(np.float32)
Span = tuple[int, int]  # rows [start, stop) of one batch
Decoded = tuple[np.ndarray, dict[int, str]]  # (b, 3, h, w) uint8; row -> reason if unreadable


def spans(start: int, stop: int, size: int) -> list[Span]:
    """Rows start..stop-1 in batches of at most `size`."""
    return [(first, min(stop, first + size)) for first in range(start, stop, size)]


def embedded(
    images: ImageSet,
    batches: Iterable[Span],
    forward: Callable[[Tensor], Tensor],
    *,
    shape: tuple[int, ...],
    dtype: np.dtype = SINGLE,
    skipped: dict[int, str] | None = None,
) -> Iterator[tuple[Span, np.ndarray]]:
    """Every batch with the (b, p) embeddings of its images, in order.

    Args:
        images: the images.
        batches: rows of each batch.
        forward: (b, 3, h, w) uint8 to (b, p) float32.
        shape: (3, h, w) that all images must have.
        dtype: precision of the embeddings.
        skipped: receives row -> reason of unreadable images, whose embeddings are zeros; None: an
            unreadable image is an error.

    Raises:
        ValueError: an image that cannot be read or is of another shape, or an embedding that is
            not finite in `dtype`.
    """
    skipping = None if skipped is None else shape
    for (start, stop), (pixels, unreadable) in decoded_ahead(images, batches, skipping):
        _check_shape(images, pixels, shape, start, stop)
        with np.errstate(over="ignore"):  # reported below, with its row
            rows = forward(torch.from_numpy(pixels)).numpy().astype(dtype)
        if skipped is not None:
            rows[[row - start for row in unreadable]] = 0
            skipped |= unreadable
        bad = ~np.isfinite(rows).all(1)
        if bad.any():
            row = start + int(bad.argmax())
            raise ValueError(
                f"embeddings must be finite in {dtype}, got others in row {row}, "
                f"{images.place(row)}"
            )
        yield (start, stop), rows


def decoded_ahead(
    images: ImageSet, batches: Iterable[Span], skipping: tuple[int, ...] | None = None
) -> Iterator[tuple[Span, Decoded]]:
    """Each batch with its pixels, in order, decoded by threads while earlier ones are used.

    Args:
        images: the images.
        batches: rows of each batch.
        skipping: (3, h, w) of the black image that replaces an unreadable one; None: an unreadable
            image is an error.
    """
    waiting: deque[tuple[Span, Future[Decoded]]] = deque()
    with ThreadPoolExecutor(AHEAD, "decode") as pool:
        try:
            for span in batches:
                waiting.append((span, pool.submit(decoded, images, span, skipping)))
                if len(waiting) > AHEAD:
                    ready, future = waiting.popleft()
                    yield ready, future.result()
            while waiting:
                ready, future = waiting.popleft()
                yield ready, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def decoded(images: ImageSet, span: Span, skipping: tuple[int, ...] | None = None) -> Decoded:
    """Decodes one batch; for `skipping` see `decoded_ahead`."""
    try:
        return images.images(slice(*span)), {}
    except UnreadableImage:
        if skipping is None:
            raise
    start, stop = span
    pixels, unreadable = np.zeros((stop - start, *skipping), np.uint8), {}
    for row in range(start, stop):
        try:
            image = images.images(slice(row, row + 1))
        except UnreadableImage as error:
            unreadable[row] = " ".join(str(error).split())
            continue
        _check_shape(images, image, skipping, row, row + 1)
        pixels[row - start] = image[0]
    return pixels, unreadable


def first_readable(images: ImageSet, rows: Iterable[int]) -> int:
    """First of the rows whose image can be decoded.

    Raises:
        ValueError: none can.
    """
    first: UnreadableImage | None = None
    for row in rows:
        try:
            images.images(slice(row, row + 1))
            return row
        except UnreadableImage as error:
            first = first or error
    raise ValueError(f"{images.name} must hold a readable image, got none; the first: {first}")


def refuse_dark(images: ImageSet) -> None:
    """Raises ValueError if all pictures of 16 bits are nearly black.

    Where all that were read so far are, others are looked at until one is not.
    """
    for row in range(len(images)):
        if not images.dark:
            return
        with contextlib.suppress(UnreadableImage):
            images.images(slice(row, row + 1))
    images.refuse_dark()


def refuse_lost_formats(images: ImageSet) -> None:
    """Raises ValueError if all images of a user or class are in formats that cannot be read."""
    if images.names is not None:
        names = list(map(decode_name, images.names))
        if found := unreadable_suffixes(names):
            rows = [row for row, name in enumerate(names) if suffix_of(name) in found]
            images.refuse_lost(rows, f"unreadable: {', '.join(found)}")


def _check_shape(
    images: ImageSet, pixels: np.ndarray, shape: tuple[int, ...], start: int, stop: int
) -> None:
    if pixels.shape[1:] != shape:
        raise ValueError(
            f"{images.name}: all images must have shape {shape} (or pass --resize), "
            f"got {pixels.shape[1:]} in rows {start} to {stop - 1}, {images.place(start)}"
        )
