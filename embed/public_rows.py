"""Public rows in blocks, from a tensor, an array or an embedding set."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from embed.clip import CHUNK, check_finite
from embed.store import EmbeddingSet, hash_rows


def content_hash(rows: Tensor | np.ndarray | EmbeddingSet) -> str:
    """SHA-256 of the embedding values."""
    if isinstance(rows, EmbeddingSet):
        return rows.content_hash()
    return hash_rows([rows.cpu().numpy() if isinstance(rows, Tensor) else rows])


def checked_blocks(
    public: Tensor | np.ndarray | EmbeddingSet,
) -> Callable[[], Iterator[Tensor]]:
    """Function that yields the rows in blocks, (b, p), at every call.

    Raises:
        ValueError: fewer than two rows; while blocks are read, a row that is not finite.
    """
    rows = public.embeddings if isinstance(public, EmbeddingSet) else public
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"public must be (n, p) with n >= 2, got {tuple(rows.shape)}")

    place = public.place if isinstance(public, EmbeddingSet) else "row {}".format

    def blocks() -> Iterator[Tensor]:
        for start in range(0, len(rows), CHUNK):
            block = as_tensor(rows[start : start + CHUNK])
            check_finite(block, "public", start, place)
            yield block

    return blocks


def as_tensor(x: Tensor | np.ndarray) -> Tensor:
    """The rows as a tensor of their own dtype."""
    return x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
