"""Options of commands that show pictures, or embeddings of them, to a released model."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretrain import check
from pretrain.intake.reading import PictureOptions, without_column

if TYPE_CHECKING:  # what works is imported by the command that runs
    import numpy as np

    from pretrain.datasets import ImageSet
    from train_distributed.one_shot.model import Release
    from train_distributed.released.predictions import Rows

OF_DATA = ("encoder", "weights", "batch_size", "device", *(f.name for f in fields(PictureOptions)))


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Model and the rows for it; a base of its own, so that the help names them first."""

    model: Path
    """Released model: the directory that `run` or a federation wrote."""
    data: str | None = None
    """Pictures in any format of `embed run --data`: a folder, an npz file, csv:FILE, ..."""
    embeddings: Path | None = None
    """Embedding set of the pictures, instead of --data."""


@dataclass(frozen=True, kw_only=True)
class ModelPictures(PictureOptions, ModelSource):
    """Model and pictures, which are read in any layout and embedded as the model's were."""

    encoder: str | None = None
    """Encoder of the training rows, as for `embed run` (default: the one in --model, or by the name
    that the model keeps). Any other encoder is refused."""
    weights: str | None = None
    """Weights file for --encoder (default: the weights it ships with)."""
    resize: int | None = None
    """Pixels to which the shorter side of pictures is scaled, for a model of an earlier version
    (default: the size of the training pictures, which no other may replace)."""
    batch_size: int | None = None
    """Pictures per forward pass (default: by device)."""
    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the network; auto: as `embed run` chooses."""
    device: str | None = None
    """Device to compute on: cpu, cuda or cuda:N (default: cuda if there is one, else cpu)."""

    def check_source(self, *kept: str) -> None:
        """Raises ValueError for two sources or none, or pictures' options for embeddings.

        Options in `kept` mean something for embeddings too.
        """
        check.exactly_one(data=self.data, embeddings=self.embeddings)
        check.at_least(1, **check.drop_none(batch_size=self.batch_size, resize=self.resize))
        usual = {each.name: each.default for each in fields(self)}
        for name in OF_DATA if self.data is None else ():
            value = getattr(self, name)
            if name not in kept and value != usual[name]:
                check.not_set("with embeddings", **{name: value})

    def rows_of_data(self, released: "Release", *, labelled: bool) -> "tuple[ImageSet, Rows]":
        """Pictures, and their rows as they are computed, with the model's labels if asked for."""
        from pretrain.cli.device import usual_device
        from train_distributed.released.pictures import (
            Computing,
            open_pictures,
            picture_rows,
            released_encoder,
        )
        from train_distributed.released.predictions import own_labels

        assert self.data is not None
        encoder = released_encoder(released, self.model, name=self.encoder, weights=self.weights)
        unread = not labelled and self.label_is is None
        columns = without_column(self.columns, "label") if unread else self.columns
        options = replace(self, columns=columns)
        images = open_pictures(released, self.data, options)
        labels: np.ndarray | None = None
        if labelled:
            names = () if images.inferred else images.class_names
            labels = own_labels(released, names, images.labels)
        computing = Computing(
            device=usual_device(self.device), compute=self.compute, batch_size=self.batch_size
        )
        rows = picture_rows(
            released, images, encoder, computing, labels, skip_unreadable=self.skip_unreadable
        )
        return images, rows
