"""Embedding of images in bounded memory: threads decode batches ahead, in order."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from pretrain.datasets import ImageSet, UnreadableImage, decode_name
from pretrain.intake.files import suffix_of, unreadable_suffixes

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
