"""Images to embeddings in bounded memory: decoded ahead by threads, batch by batch, in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from pretrain.datasets import ImageSet

AHEAD = 3  # batches decoded while one is computed
Span = tuple[int, int]  # rows [start, stop) of one batch


def spans(start: int, stop: int, size: int) -> list[Span]:
    """Rows start..stop-1 in batches of at most `size`."""
    return [(first, min(stop, first + size)) for first in range(start, stop, size)]


def embedded(
    images: ImageSet,
    batches: Iterable[Span],
    forward: Callable[[Tensor], Tensor],
    *,
    shape: tuple[int, ...] | None = None,
    dtype: np.dtype | None = None,
) -> Iterator[tuple[Span, np.ndarray]]:
    """Every batch with the (b, p) embeddings of its images, in order.

    Args:
        images: where pictures come from.
        batches: which rows go through the network together.
        forward: (b, 3, h, w) uint8 to (b, p) float32.
        shape: (3, h, w) that all images must have; None: that of the first batch.
        dtype: of the embeddings; None: float32.

    Raises:
        ValueError: an image that cannot be read or is of another shape, or an embedding that is
            not finite in `dtype`.
    """
    dtype = np.dtype(np.float32) if dtype is None else dtype
    for (start, stop), pixels in decoded_ahead(images, batches):
        shape = pixels.shape[1:] if shape is None else shape
        if pixels.shape[1:] != shape:
            raise ValueError(
                f"{images.name}: all images must have shape {shape}, "
                f"got {pixels.shape[1:]} in rows {start} to {stop - 1}"
            )
        with np.errstate(over="ignore"):  # reported below, with its row
            rows = forward(torch.from_numpy(pixels)).numpy().astype(dtype)
        bad = ~np.isfinite(rows).all(1)
        if bad.any():
            row = start + int(bad.argmax())
            raise ValueError(
                f"embeddings must be finite in {dtype}, got others in row {row}, "
                f"{images.place(row)}"
            )
        yield (start, stop), rows


def decoded_ahead(images: ImageSet, batches: Iterable[Span]) -> Iterator[tuple[Span, np.ndarray]]:
    """Each batch with its pixels, in order, decoded by threads while earlier ones are used."""
    waiting: deque[tuple[Span, Future[np.ndarray]]] = deque()
    with ThreadPoolExecutor(AHEAD, "decode") as pool:
        try:
            for span in batches:
                waiting.append((span, pool.submit(images.images, slice(*span))))
                if len(waiting) > AHEAD:
                    ready, future = waiting.popleft()
                    yield ready, future.result()
            while waiting:
                ready, future = waiting.popleft()
                yield ready, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
