"""A released model: what it predicts, how often it is right, and the files it is written to."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TEST
from pretrain.cli.output import new_directory


@dataclass(frozen=True)
class Release:
    """A model that may be shown to anybody, as far as its report says so."""

    weights: Tensor  # (d, K) float64, constant row first
    transform: PublicTransform
    class_names: tuple[str, ...]
    report: dict[str, Any] = field(default_factory=dict)
    opened: Tensor | None = None  # (D,) float64: what the sums showed to whoever opened them

    def predict(self, embeddings: np.ndarray | Tensor) -> Tensor:
        """(n,) int64 classes of raw (n, p) embeddings, which pass the public transform first."""
        return (self.transform(embeddings).double() @ self.weights).argmax(1)

    def confusion(self, embeddings: EmbeddingSet, split: int = TEST) -> Tensor:
        """(K, K) int64: rows of a split by label and predicted class.

        Raises:
            ValueError: the split is empty, or the set has no labels.
        """
        embeddings.need_labels()
        rows = np.flatnonzero(embeddings.split == split)
        if not len(rows):
            raise ValueError(f"split must hold rows, got none in split {split}")
        classes = self.weights.shape[1]
        counts = torch.zeros(classes * classes, dtype=torch.int64)
        for part in np.array_split(rows, math.ceil(len(rows) / 8192)):
            predicted = self.predict(embeddings.embeddings[part])
            labels = torch.from_numpy(embeddings.labels[part])
            counts += torch.bincount(labels * classes + predicted, minlength=classes * classes)
        return counts.unflatten(0, (classes, classes))

    def save(self, directory: Path | str, *, overwrite: bool = False) -> None:
        """Writes model.safetensors and report.json, whole or not at all.

        Args:
            directory: created.
            overwrite: replace one that exists.

        Raises:
            FileExistsError: the directory exists.
        """
        with new_directory(Path(directory), overwrite=overwrite) as partial:
            self.write(partial)

    def write(self, directory: Path) -> None:
        """The files of `save`, into a directory that exists."""
        tensors = {"weights": self.weights.contiguous()}
        tensors |= {f"transform.{k}": v.contiguous() for k, v in self.transform.tensors().items()}
        metadata = {"class_names": json.dumps(self.class_names)}
        save_file(tensors, directory / "model.safetensors", metadata)
        text = json.dumps(self.report, indent=2, allow_nan=False)
        (directory / "report.json").write_text(text + "\n")
