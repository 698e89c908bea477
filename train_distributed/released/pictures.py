"""Pictures to the rows that a released model takes, exactly as `embed run` makes them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from embed import EmbeddingSet
from embed.clip import ROWS
from embed.encoding import Encoding
from embed.engines import choose, trial_pictures
from embed.extract import Span, embedded, first_readable, refuse_dark, spans
from pretrain.cli.provenance import usual_batch
from pretrain.datasets import EVALUATION, ImageSet
from pretrain.encoder import (
    BUILDERS,
    SHIPPED,
    build_encoder,
    encoder_hash,
    load_encoder,
    save_encoder,
)
from pretrain.encoders.base import JOINED, Encoder, Part, joined, parts_of, within
from pretrain.intake.labels import unlabelled_where_findings
from pretrain.intake.reading import PictureOptions
from pretrain.sources import open_images
from train_distributed.one_shot.model import Release
from train_distributed.released.predictions import Rows

CARRIED = "encoder.safetensors"
BY_NAME = ("package", "random")  # weights that a name alone leads to


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Device, precision and batch size of a network."""

    device: str = "cpu"
    compute: str = "auto"  # auto, float32, bfloat16 or float16
    batch_size: int | None = None  # None: what suits the device


def open_pictures(released: Release, data: str, options: PictureOptions) -> ImageSet:
    """Opens pictures, brought to the size of those that a model learned from.

    `data` as `open_images` takes it; `bits` that are left out are the model's. Raises ValueError
    for another `resize` than the model's, or where neither says of what size pictures are.
    """
    needed = encoding_of(released)
    size = needed.size_of_pictures(options.resize, "model")
    options = replace(options, bits=options.bits or needed.bits)
    names = released.class_names if options.findings else ()
    images = open_images(data, options.reading(names), size=size)
    images.images(_first(images, options.skip_unreadable))
    refuse_dark(images)
    return images


def _first(images: ImageSet, skip: bool) -> slice:
    row = first_readable(images, range(len(images))) if skip else 0
    return slice(row, row + 1)


def picture_rows(
    released: Release,
    images: ImageSet,
    encoder: nn.Module,
    computing: Computing,
    labels: np.ndarray | None = None,
    *,
    skip_unreadable: bool = False,
) -> Rows:
    """The rows of all pictures, computed while they are read.

    Those that cannot be read are zeros, and named in `skipped`, if they may be skipped. Batches are
    those of `embed run` with its usual shards, so that its rows come out to the bit.
    """
    preprocess = encoding_of(released).preprocess
    device = torch.device(computing.device)
    size = min(computing.batch_size or usual_batch(computing.device), len(images))
    shape = images.images(_first(images, skip_unreadable)).shape[1:]
    skipped: dict[int, str] | None = {} if skip_unreadable else None
    engine = choose(
        encoder,
        device,
        lambda: preprocess(trial_pictures(size, *shape[1:]).to(device)),
        rows=len(images),
        batch_size=size,
        compute=computing.compute,
    )
    starts = range(0, len(images), ROWS)
    batches = [span for s in starts for span in spans(s, min(len(images), s + ROWS), size)]
    rows = embedded(
        images,
        batches,
        lambda x: engine.forward(preprocess(x.to(device))),
        shape=shape,
        skipped=skipped,
    )
    return Rows(
        count=len(images),
        blocks=_whole(rows, images),
        name=images.image_name,
        labels=labels,
        split=images.split,
        skipped=skipped,
    )


def held_out_pictures(released: Release, images: ImageSet, rows: Rows) -> EmbeddingSet:
    """Labelled pictures as a set for `evaluate`, in memory.

    Where none are of split `evaluation`, all are.
    """
    split = images.split
    if not (split == EVALUATION).any():
        split = np.full(len(images), EVALUATION, np.uint8)
    assert rows.labels is not None
    embeddings = np.concatenate(list(rows.blocks))
    if rows.skipped:
        images.refuse_lost(list(rows.skipped), f"the first: {next(iter(rows.skipped.values()))}")
    kept = np.delete(np.arange(len(images)), list(rows.skipped or ()))
    return EmbeddingSet(
        embeddings=embeddings[kept],
        labels=unlabelled_where_findings(rows.labels[kept]),
        findings=rows.labels[kept].astype(np.int8) if released.findings else None,
        users=None if images.users is None else images.users[kept],
        split=split[kept],
        names=None if images.names is None else images.names[kept],
        meta={"class_names": list(released.class_names), **encoding_of(released).to_json()},
    )


def _whole(batches: Iterator[tuple[Span, np.ndarray]], images: ImageSet) -> Iterator[np.ndarray]:
    """Batches put together to blocks of ROWS rows, as a set's rows are scored.

    Raises ValueError at its end for images of 16 bits that are all nearly black.
    """
    held: list[np.ndarray] = []
    for (_, stop), rows in batches:
        held.append(rows)
        if stop % ROWS == 0:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)
    refuse_dark(images)


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
