"""Clipped embeddings: extraction, storage, public transform, plots."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embed.clip import add_constant_and_clip
    from embed.store import EmbeddingSet
    from embed.transform import PublicTransform

__all__ = ["EmbeddingSet", "PublicTransform", "add_constant_and_clip"]

_HOMES = {
    "EmbeddingSet": "embed.store",
    "PublicTransform": "embed.transform",
    "add_constant_and_clip": "embed.clip",
}


def __getattr__(name: str) -> Any:
    """Loads a name with its module on first use, so that sets are read without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
