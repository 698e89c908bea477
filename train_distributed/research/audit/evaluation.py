"""The private evaluation under attack: the record that is hardest to hide, and what is shown."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from embed.store import EVALUATION
from train_distributed.one_shot.faults import FaultInjection
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.report import Noise
from train_distributed.privacy.promise import Privacy
from train_distributed.released.evaluate import Sum, summed
from train_distributed.research.audit.worst_case import CONSTANT, Neighbours, WorstCase

STEEP = 60.0  # score of class 0 for a feature of 1, against 0: as sure as doubles can be
INSIDE = 4e-6  # by so much a confidence lies above its bin's edge, in its bin when rounded too


@dataclass(frozen=True)
class Answers(Neighbours):
    """Two data sets that differ in how the model answers some rows."""

    confidence: float  # of the replaced rows

    def __str__(self) -> str:
        """Right and sure against what replaces it."""
        return f"{'wrong' if self.flipped else 'right'} at {self.confidence:.3g}"


@dataclass(frozen=True)
class AnswersCase(WorstCase):
    """Users whose rows are answered right and for sure, but for those that replace others.

    The one feature of a row is how sure the model is that it is of class 0.
    """

    bins: int = 10

    def neighbours(self) -> Iterator[Answers]:
        """A right and sure answer against right and wrong ones, sure or at the low end of a bin."""
        edges = [k / self.bins for k in range(self.bins) if k * self.num_classes > self.bins]
        for confidence in (1.0, *(edge + INSIDE for edge in edges)):
            for label in (0, 1):
                if label or confidence < 1:
                    second = self._answers(confidence, label)
                    yield Answers(self._answers(1.0, 0), second, 0, bool(label), confidence)

    def _answers(self, confidence: float, label: int) -> EmbeddingSet:
        x = np.ones((self.users, self.rows), np.float32)
        y = np.zeros((self.users, self.rows), np.int64)
        if confidence < 1:
            odds = confidence * (self.num_classes - 1) / (1 - confidence)
            x[self._touched()] = math.log(odds) / STEEP
        y[self._touched()] = label
        return EmbeddingSet(
            embeddings=x.reshape(-1, 1),
            labels=y.reshape(-1),
            users=np.repeat(np.arange(self.users), self.rows),
            split=np.full(x.size, EVALUATION),
            meta={"class_names": [str(k) for k in range(self.num_classes)]},
        )

    def summed(self, data: EmbeddingSet, promise: Privacy, noise: Noise) -> Sum:
        """Sum of an evaluation: class 0 scores STEEP times the feature, the others score 0."""
        weights = torch.zeros(2, self.num_classes, dtype=torch.float64)
        weights[1, 0] = STEEP
        transform = PublicTransform.identity(1, math.sqrt(1 + CONSTANT**2), CONSTANT)
        names = tuple(str(k) for k in range(self.num_classes))
        return summed(
            Release(weights, transform, names),
            data,
            promise,
            bins=self.bins,
            noise=noise,
            min_survivors=self.min_survivors,
            faults=FaultInjection(self.dropped, self.known_noise),
        )
