"""Sets that commands are tried on."""

import numpy as np
import pytest

from embed import EmbeddingSet


@pytest.fixture
def sets(tmp_path) -> tuple[str, str]:
    """Directories of a private and a public embedding set."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    x = (2 * np.eye(3, 5)[labels] + 0.3 * rng.standard_normal((120, 5))).astype(np.float32)
    users, split = np.arange(120) % 8, np.repeat([0, 1], [90, 30]).astype(np.uint8)
    meta = {"class_names": ["a", "b", "c"]}
    private = EmbeddingSet(embeddings=x, labels=labels, users=users, split=split, meta=meta)
    private.save(tmp_path / "private")
    EmbeddingSet(embeddings=x[::-1] + 0.01, labels=labels).save(tmp_path / "public")
    return str(tmp_path / "private"), str(tmp_path / "public")
