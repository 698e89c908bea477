"""Pictures to the rows that a released model takes, exactly as `embed run` makes them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from embed import EmbeddingSet
from embed.clip import ROWS
from embed.engines import choose, trial_pictures
from embed.extract import Span, embedded, first_readable, refuse_dark, spans
from pretrain.cli.device import usual_batch
from pretrain.datasets import EVALUATION, ImageSet
from pretrain.intake.reading import PictureOptions
from pretrain.sources import open_images
from train_distributed.one_shot.model import Release
from train_distributed.released.encoder import encoding_of
from train_distributed.released.predictions import Rows


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Device, precision and batch size of a network."""

    device: str = "cpu"
    compute: str = "auto"  # auto, float32, bfloat16 or float16
    batch_size: int | None = None  # None: what suits the device


def open_pictures(released: Release, data: str, options: PictureOptions) -> ImageSet:
    """Opens pictures, brought to the size of those that a model learned from.

    `data` as `open_images` takes it. Raises ValueError for another `resize` than the model's, or
    where neither says of what size pictures are.
    """
    size = encoding_of(released).size_of_pictures(options.resize, "model")
    images = open_images(data, options.reading(), size=size)
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
        blocks=_whole(rows),
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
        labels=rows.labels[kept],
        users=None if images.users is None else images.users[kept],
        split=split[kept],
        names=None if images.names is None else images.names[kept],
        meta={"class_names": list(released.class_names), **encoding_of(released).to_json()},
    )


def _whole(batches: Iterator[tuple[Span, np.ndarray]]) -> Iterator[np.ndarray]:
    """Batches put together to blocks of ROWS rows, as a set's rows are scored."""
    held: list[np.ndarray] = []
    for (_, stop), rows in batches:
        held.append(rows)
        if stop % ROWS == 0:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)
