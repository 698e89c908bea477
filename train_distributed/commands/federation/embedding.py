"""A user's pictures become its embedding set, by the encoder that the public transform names."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain import check

if TYPE_CHECKING:
    from embed import EmbeddingSet

EMBEDDINGS = "embeddings"  # in a user's folder: default of `report` and `start`


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A user's pictures, and the encoder that embeds them."""

    pictures: Path | None = None
    """Folder of a user's pictures, CLASS/PICTURE, which are embedded into FOLDER/embeddings."""
    class_names: tuple[str, ...] = ()
    """Agreed names of all classes in their order; required with --pictures. An embedding set must
    have the same."""
    transform: Path | None = None
    """Public transform of the operator. With --pictures it names encoder and preprocessing; an
    embedding set must be of the same."""
    encoder: str | None = None
    """Encoder as for `embed run`, with --pictures (default: the one that --transform names)."""
    weights: str | None = None
    """Weights of the encoder as for `embed run` (default: those that --transform names)."""
    resize: int | None = None
    """Pixels of the shorter side to which pictures are scaled before they are cut to a square."""


def own_set(folder: Path, given: Path | None) -> Path | None:
    """A user's embedding set: that which is given, or the one in its folder; None: neither."""
    own = folder / EMBEDDINGS
    return own if given is None and own.exists() else given


def refuse_others(own: "EmbeddingSet", given: Pictures) -> None:
    """Finds at `join` what would only be found when a vector is to be sent.

    Args:
        own: the user's set.
        given: the agreed names of the classes and the public transform, as far as they are known.

    Raises:
        ValueError: classes of other names or in another order, or rows of another encoder.
    """
    from embed.encoding import refuse_other
    from train_distributed.flower.documents.terms import read_transform

    declared = own.declared_classes
    if given.class_names and declared not in ((), given.class_names):
        raise ValueError(
            f"class_names must be those of the embedding set in their order, {declared}, "
            f"got {given.class_names}"
        )
    if given.transform is not None:
        transform = read_transform(given.transform)
        refuse_other(transform.encoding, own.encoding, ("transform", "embeddings"))
        names = declared or given.class_names
        if transform.known is not None and names:
            transform.known.check_classes(names, len(names))


def embed_pictures(given: Pictures, folder: Path) -> "EmbeddingSet":
    """Embeds a user's pictures into its folder; a set that is there is kept, and returned.

    Args:
        given: pictures and encoder.
        folder: the user's.

    Raises:
        ValueError: no classes or encoder, or another encoder than the transform's.
    """
    from embed import EmbeddingSet
    from embed.extract import extract
    from embed.options import ExtractOptions, ImageOptions
    from pretrain.encoder import build_encoder, origin, without_directory
    from train_distributed.flower.documents.terms import read_transform
    from train_distributed.released.encoder import named_encoder

    out = folder / EMBEDDINGS
    check.given(class_names=given.class_names or None)
    if out.exists():
        return EmbeddingSet.open(out)
    if given.transform is not None:
        encoding = read_transform(given.transform).encoding
        if encoding is None:
            raise ValueError(f"transform must name its encoder, {given.transform} does not")
        encoder = named_encoder(encoding, name=given.encoder, weights=given.weights)
        name, weights, preprocess = encoding.encoder, encoding.weights, encoding.preprocess
    else:
        check.given(**{"encoder or transform": given.encoder})
        assert given.encoder is not None
        encoder = build_encoder(given.encoder, weights=given.weights)
        name, weights = without_directory(given.encoder), origin(given.encoder, given.weights)
        preprocess = encoder.preprocess
    images = ImageOptions(
        data=str(given.pictures), layout="class", class_names=given.class_names, resize=given.resize
    ).images()
    done = extract(
        images,
        encoder,
        out,
        encoder_name=name,
        preprocess=preprocess,
        options=ExtractOptions(),
        weights=weights,
    )
    assert done is not None
    print(f"{len(done)} pictures embedded in {out}")
    return done
