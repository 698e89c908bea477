"""The encoder that a model needs: carried beside it, shipped here, or given; always compared."""

from pathlib import Path

from embed.encoding import Encoding
from pretrain.encoder import (
    BUILDERS,
    SHIPPED,
    build_encoder,
    encoder_hash,
    load_encoder,
    save_encoder,
)
from pretrain.encoders.base import JOINED, Encoder, Part, joined, parts_of, within
from train_distributed.one_shot.model import Release

CARRIED = "encoder.safetensors"
BY_NAME = ("package", "random")  # weights that a name alone leads to


def encoding_of(released: Release) -> Encoding:
    """Encoder and preprocessing of the rows that a model takes; ValueError if none is named."""
    if released.encoding is None:
        raise ValueError(
            "release must say which encoder its embeddings came from to take pictures, got none "
            "(embed them with `embed run` and pass --embeddings)"
        )
    return released.encoding


def released_encoder(
    released: Release, directory: Path, *, name: str | None = None, weights: str | None = None
) -> Encoder:
    """The network that made the rows that a model learned from, to the last weight.

    Without name and weights the one that `directory` carries, else as `named_encoder`. Raises
    ValueError where nobody knows what is needed, it is neither carried nor given, or it is
    another.
    """
    needed, carried = encoding_of(released), directory / CARRIED
    if name is None and weights is None and carried.is_file():
        found = load_encoder(carried)
        check_encoder(found, needed, str(carried))
        return found
    return named_encoder(needed, name=name, weights=weights)


def named_encoder(
    needed: Encoding, *, name: str | None = None, weights: str | None = None
) -> Encoder:
    """Encoder by its name and weights; None: those that the model needs.

    Raises ValueError where the name is not enough, or it is another encoder.
    """
    called = needed.encoder if name is None else name
    if weights is None and name is None and within(called) not in SHIPPED:
        origins = needed.weights.split("+")
        if not set(origins) <= {*BY_NAME, "shipped"}:
            raise ValueError(
                f"encoder must be given by name and weights, for it is not carried, got none; "
                f"needed is {needed}"
            )
        weights = "+".join("" if origin == "shipped" else origin for origin in origins)
    part = Part(called) if called.startswith(JOINED) else Part.named(called)
    found = build_encoder(part.name, weights=weights, image_size=needed.preprocess.image_size)
    check_encoder(found, needed, called)
    if part.name != called:
        asked = part.prepared(found.preprocess).of_pictures(needed.preprocess.pictures)
        if not asked.same_as(needed.preprocess):
            raise ValueError(f"encoder must take pictures as {needed} does, got {called}")
    return found


def check_encoder(encoder: Encoder, needed: Encoding, called: str) -> None:
    """Raises ValueError unless the encoder of that name is the one that made the rows."""
    found = encoder_hash(encoder)
    if found != needed.encoder_hash:
        raise ValueError(
            f"encoder must be the one that the model learned with, {needed}, got {called} "
            f"({found[:12]})"
        )


def carry_encoder(needed: Encoding | None, directory: Path, weights: str | None) -> None:
    """Writes the encoder that a set of embeddings needs into a directory that exists.

    `weights` are as `embed run` was given them, or a checkpoint's path; None: those that the
    encoder's name leads to.
    Raises ValueError where the set does not say what made it, or as `named_encoder`.
    """
    if needed is None:
        raise ValueError("with_encoder must be for embeddings that say what made them, got others")
    if weights is None:
        encoder = named_encoder(needed)
    else:
        parts = [_found(part) for part in parts_of(needed.encoder, weights, BUILDERS)]
        given = "+".join(part.weights or "" for part in parts) or None
        encoder = named_encoder(needed, name=joined(parts), weights=given)
    save_encoder(encoder, directory / CARRIED, note=str(needed))


def _found(part: Part) -> Part:
    """Part of an encoder, by the path of its checkpoint where that is what its weights are."""
    stored, file = within(part.name), part.weights
    if file is None or not Path(file).is_file() or stored != Path(file).name:
        return part
    return part._replace(name=part.name.removesuffix(stored) + file, weights=None)
