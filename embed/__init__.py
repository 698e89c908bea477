"""Clipped embeddings: extraction, storage, public transform, a look at them."""

from embed.store import EmbeddingSet
from embed.transform import PublicTransform, add_constant_and_clip

__all__ = ["EmbeddingSet", "PublicTransform", "add_constant_and_clip"]
