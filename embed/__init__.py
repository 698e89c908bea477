"""Clipped embeddings: extraction, storage, public transform, plots."""

from typing import TYPE_CHECKING

from pretrain.public import public_names

if TYPE_CHECKING:
    from embed.clip import add_constant_and_clip
    from embed.functions import (
        concat_sets,
        embed_images,
        exclude_public,
        fit_transform,
        hold_out_rows,
        import_reference,
        plot_embeddings,
    )
    from embed.store import EmbeddingSet
    from embed.transform import PublicTransform

    __version__: str

__all__ = [
    "EmbeddingSet",
    "PublicTransform",
    "add_constant_and_clip",
    "concat_sets",
    "embed_images",
    "exclude_public",
    "fit_transform",
    "hold_out_rows",
    "import_reference",
    "plot_embeddings",
]

if not TYPE_CHECKING:
    _HOMES = {
        "EmbeddingSet": "store",
        "PublicTransform": "transform",
        "add_constant_and_clip": "clip",
    }
    __getattr__, __dir__ = public_names(
        __name__, {name: _HOMES.get(name, "functions") for name in __all__}
    )
