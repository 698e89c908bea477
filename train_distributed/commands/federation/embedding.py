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
    """Public transform of the operator. Pictures are embedded with the encoder, preprocessing and
    size that it names; an embedding set must have been made with the same."""
    encoder: str | None = None
    """Encoder as for `embed run`, with --pictures (default: the one that --transform names)."""
    weights: str | None = None
    """Weights of the encoder as for `embed run` (default: those that --transform names)."""
    resize: int | None = None
    """Pixels of the shorter side to which pictures are scaled before they are cut to a square
    (default: as --transform says, without it as they are stored)."""

    bits: int | None = None
    """Bits in use, such as 12, of --pictures that have 16 per channel (default: as --transform
    says, without it all 16)."""
    skip_unreadable: bool = False
    """Leave out --pictures that cannot be read, and say how many."""

    def checked(self, own: "EmbeddingSet") -> "EmbeddingSet":
        """A user's set, if it is as agreed: what would only be found when a vector is to be sent.

        Raises:
            ValueError: classes of other names or in another order, or rows of another encoder or
                of pictures of another size.
        """
        from embed.encoding import refuse_other
        from train_distributed.federation.documents.terms import read_transform

        if self.class_names:
            own.check_classes(self.class_names, "in the embedding set, as given")
        if self.transform is not None:
            transform = read_transform(self.transform)
            refuse_other(transform.encoding, own.encoding, ("transform", "embeddings"))
            names = own.declared_classes or self.class_names
            if transform.known is not None and names:
                transform.known.check_classes(names, len(names))
        if self.resize is not None and own.encoding is not None:
            own.encoding.size_of_pictures(self.resize, "set that is there")
        return own


def own_set(folder: Path, given: Path | None) -> Path | None:
    """A user's embedding set: that which is given, or the one in its folder; None: neither."""
    own = folder / EMBEDDINGS
    return own if given is None and own.exists() else given


def embed_pictures(given: Pictures, folder: Path) -> "EmbeddingSet":
    """Embeds a user's pictures into its folder; a set that is there is returned as it is.

    Args:
        given: pictures and encoder.
        folder: the user's.

    Raises:
        ValueError: no classes or encoder, or another encoder or size than the transform's.
    """
    from embed import EmbeddingSet
    from embed.extract import extract, summary
    from embed.options import ExtractOptions, ImageOptions
    from pretrain.encoder import build_encoder, origin, without_directory
    from train_distributed.federation.documents.terms import read_transform
    from train_distributed.released.pictures import named_encoder

    out, size, bits = folder / EMBEDDINGS, given.resize, given.bits
    check.given(class_names=given.class_names or None)
    if out.exists():
        return EmbeddingSet.open(out)
    if given.transform is not None:
        encoding = read_transform(given.transform).encoding
        if encoding is None:
            raise ValueError(f"transform must name its encoder, {given.transform} does not")
        if encoding.preprocess.pictures is None:
            raise ValueError(
                "transform must say of what size its pictures were, as one that is fitted now does "
                f"(ask for it), got {given.transform} of an earlier version"
            )
        size, bits = encoding.size_of_pictures(given.resize, "transform"), bits or encoding.bits
        encoder = named_encoder(encoding, name=given.encoder, weights=given.weights)
        name, weights, preprocess = encoding.encoder, encoding.weights, encoding.preprocess
    else:
        check.given(**{"encoder or transform": given.encoder})
        assert given.encoder is not None
        encoder = build_encoder(given.encoder, weights=given.weights)
        name, weights = without_directory(given.encoder), origin(given.encoder, given.weights)
        preprocess = encoder.preprocess.of_pictures(given.resize)
    images = ImageOptions(
        data=str(given.pictures),
        layout="class",
        class_names=given.class_names,
        bits=bits,
        skip_unreadable=given.skip_unreadable,
    ).images(size)
    done = extract(
        images,
        encoder,
        out,
        encoder_name=name,
        preprocess=preprocess,
        options=ExtractOptions(skip_unreadable=given.skip_unreadable),
        weights=weights,
    )
    assert done is not None
    print(f"{len(done)} pictures embedded in {out}")
    print("\n".join(summary(done, images, out)))
    return done
