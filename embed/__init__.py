"""Clipped embeddings: extraction, storage, public transform."""

from pretrain.public import attach

__getattr__, __dir__, __all__ = attach(__name__)
