"""Clipped embeddings: extraction, storage, public transform, a look at them."""

from embed.clip import add_constant_and_clip
from embed.store import EmbeddingSet
from embed.transform import PublicTransform

__all__ = ["EmbeddingSet", "PublicTransform", "add_constant_and_clip"]
