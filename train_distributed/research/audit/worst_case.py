"""The users of audited releases and evaluations, and the neighbours that are hardest to hide."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from pretrain import check
from pretrain.datasets import EVALUATION
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import FaultInjection, Noise
from train_distributed.privacy.promise import SERVERS, Privacy
from train_distributed.released.evaluate import Sum, summed

CONSTANT = 0.125  # a: small against the features' norm of 1, which a record can turn about
FAR = 1e3  # raw features this many times longer than what the clip lets through
DEGREES = range(0, 181, 15)  # between a record's features and those that replace them


@dataclass(frozen=True)
class Neighbours:
    """Two data sets of one federation that differ in what the promise protects."""

    first: EmbeddingSet
    second: EmbeddingSet
    degrees: int  # between the features of the replaced records
    flipped: bool  # whether their label changes too

    def __str__(self) -> str:
        label = "another label" if self.flipped else "same label"
        return f"{self.degrees} degrees, {label}"


@dataclass(frozen=True)
class WorstCase:
    """Users of equal size; the dishonest ones come first, then those that drop out."""

    users: int  # w
    rows: int  # n of each
    features: int  # q, without the constant
    num_classes: int  # K
    privacy: Privacy
    min_survivors: int | None = None  # m_min; as many as may drop out do

    def validate(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        check.at_least(1, users=self.users, rows=self.rows, features=self.features)
        check.at_least(2, num_classes=self.num_classes)
        honest = self.users - len(self.dishonest) - len(self.dropped)
        units = honest if self.privacy.unit == "user" else honest * self.rows
        if self.privacy.group_size > units:
            raise ValueError(
                f"group_size must be <= {units}, what the {honest} honest survivors hold, got "
                f"{self.privacy.group_size}"
            )

    @property
    def dishonest(self) -> range:
        """⌊(1 − t) w⌋ users, whose noise the attacker knows; none where servers add all of it."""
        by_servers = self.privacy.noise_by == "servers"
        return range(0 if by_servers else self.users - self.privacy.certain_shares(self.users))

    @property
    def known_noise(self) -> range:
        """The dishonest users, or all servers but one."""
        by_servers = self.privacy.noise_by == "servers"
        return range(SERVERS - 1) if by_servers else self.dishonest

    @property
    def dropped(self) -> range:
        """Honest users that drop out: the worst case for those who stay."""
        gone = 0 if self.min_survivors is None else self.users - self.min_survivors
        return range(len(self.dishonest), len(self.dishonest) + gone)

    def neighbours(self) -> Iterator[Neighbours]:
        """Pairs to choose from: every angle, with and without another label.

        The protected records are the last rows of the last users: a short batch is the last one.
        The other rows of those users say nothing, so that no loss saturates. Everybody else has
        far rows of one class in one direction: such users train to the largest model there is.
        """
        for degrees in DEGREES if self.features > 1 else (0, 180):
            for flipped in (False, True):
                if degrees or flipped:
                    yield Neighbours(
                        self._data(0, 0), self._data(degrees, int(flipped)), degrees, flipped
                    )

    def _data(self, degrees: int, label: int) -> EmbeddingSet:
        x = np.zeros((self.users, self.rows, self.features), np.float32)
        y = np.zeros((self.users, self.rows), np.int64)
        x[..., 0] = FAR
        touched = self._touched()
        holders = touched.any(1)
        x[holders] = 0
        y[holders] = np.arange(self.rows) % 2
        angle = math.radians(degrees)
        x[touched, 0] = FAR * math.cos(angle)
        if self.features > 1:
            x[touched, 1] = FAR * math.sin(angle)
        y[touched] = label
        return self.as_set(x, y)

    def as_set(self, x: np.ndarray, y: np.ndarray) -> EmbeddingSet:
        """The set of rows and labels, user by user, in (users, rows) or one after another."""
        return EmbeddingSet(
            embeddings=x.reshape(-1, self.features),
            labels=y.reshape(-1),
            users=np.repeat(np.arange(self.users), self.rows),
            meta={"class_names": [str(k) for k in range(self.num_classes)]},
        )

    def _touched(self) -> np.ndarray:
        """(users, rows) bool: the records that neighbours differ in."""
        touched = np.zeros((self.users, self.rows), bool)
        if self.privacy.unit == "user":
            touched[-self.privacy.group_size :] = True
        else:
            touched.reshape(-1)[-self.privacy.group_size :] = True
        return touched


def with_findings(data: EmbeddingSet, num_classes: int) -> EmbeddingSet:
    """Rows of class k with the findings from the k-th on: those of class 0 are the longest."""
    findings = np.arange(num_classes) >= data.labels[:, None]
    return replace(data, labels=np.full(len(data), -1), findings=findings.astype(np.int8))


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
