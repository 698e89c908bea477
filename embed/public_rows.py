"""Public rows in blocks, from a tensor, an array or an embedding set."""

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from embed.clip import check_finite
from embed.project import as_tensor
from embed.store import BLOCK, EmbeddingSet, hash_rows


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
        size = max(1, BLOCK // rows.shape[1])
        for start in range(0, len(rows), size):
            block = as_tensor(rows[start : start + size])
            check_finite(block, "public", start, place)
            yield block

    return blocks
