"""One model from all users' rows, by any method: ours, or one that we compare with."""

from typing import Any

from embed import EmbeddingSet
from train_distributed.methods import METHODS
from train_distributed.privacy import Privacy
from train_distributed.release import Release, release


def learn(
    embeddings: EmbeddingSet, method: str, privacy: Privacy, **arguments: Any
) -> Release:
    """The release of a method by name."""
    if method in METHODS:
        return release(embeddings, method, privacy, **arguments)
    raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
