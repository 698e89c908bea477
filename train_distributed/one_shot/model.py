"""A released model: what it predicts, how often it is right, and the files it is written to."""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from torch import Tensor

from embed import PublicTransform
from embed.clip import in_blocks, product
from embed.encoding import Encoding
from pretrain.cli.output import new_directory
from pretrain.encoders.weights import write_tensors
from train_distributed.one_shot.class_prior import (
    ClassPrior,
    checked_prior,
    prior_shift,
    reported_prior,
    with_shift,
)
from train_distributed.one_shot.files import (
    MODEL,
    PREFIX,
    REPORT,
    SHARES,
    read_field,
    read_model,
)
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.report_file import MEASURED, Report

INSIDE = (
    "what it learned from carries the prior of its rows inside, so that only a new `run --prior` "
    "gives another"
)
UNKNOWN = "softmax of the scores; whether they are log-probabilities is unknown, not calibrated"


def reading(method: str | None) -> str:
    """Words on how a method's probabilities are made, and whether they are calibrated."""
    entry = METHODS.get(method or "")
    return (entry and entry.probabilities) or UNKNOWN


def probabilities(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """(n, K) softmax of (n, K) float64 scores / temperature; finite whatever finite scores."""
    largest = scores.amax(1, keepdim=True)
    return torch.softmax((scores - largest) / temperature, 1)


def log_odds(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """(n, K) float64 log p/(1 − p), in the order of p also where p rounds to 0 or 1."""
    largest, top = scores.max(1, keepdim=True)
    scaled = (scores - largest) / temperature
    shares = scaled.exp()
    others = (shares.sum(1, keepdim=True) - shares).log()  # but for the top: there nothing cancels
    without = scaled.scatter(1, top, -math.inf).logsumexp(1, keepdim=True)
    return scaled - others.scatter(1, top, without)


@dataclass(frozen=True)
class Release:
    """A model with its report, which says whether it may be shown to anybody."""

    weights: Tensor  # (d, K) float64, constant row first
    transform: PublicTransform
    class_names: tuple[str, ...]
    report: Report = field(default_factory=Report)  # `of` is called of another mapping
    opened: Tensor | None = None  # (D,) float64 noised sums, as whoever opened them saw them
    encoding: Encoding | None = None  # how pictures became the embeddings; None: unknown
    temperature: float = 1.0  # T > 0: probabilities are the softmax of scores / T
    class_shares: Tensor | None = None  # (K,) float64 of the private rows, from the noised sum
    prior: ClassPrior | None = None  # of the classes, which the weights are for; None: unknown

    def __post_init__(self) -> None:
        if not isinstance(self.report, Report):
            object.__setattr__(self, "report", Report.of(self.report))

    @property
    def method(self) -> str | None:
        """Name of the method that learned it, where its report says so."""
        return self.report.method

    def with_report(self, **more: Any) -> Self:
        """Release whose report has these keys too, or these values for its own."""
        return replace(self, report=self.report | more)

    def prior_shift(self, prior: ClassPrior) -> Tensor:
        """(K,) what scores for another prior of the classes have more; see `class_prior`.

        Raises:
            ValueError: no prior, or a model whose own cannot be told from its scores.
        """
        new = checked_prior(prior, len(self.class_names))
        if new == self.prior:
            return torch.zeros(len(self.class_names), dtype=torch.float64)
        if self.class_shares is None or self.prior is None:
            own = "unknown" if self.prior is None else repr(self.prior)
            raise ValueError(f"prior must be the model's own, {own} ({INSIDE}), got {prior!r}")
        return prior_shift(new, self.prior, self.class_shares, self.temperature)

    def with_prior(self, prior: ClassPrior) -> Self:
        """Release for other frequencies of the classes where it will be used.

        Scores move by `prior_shift`, probabilities and classes with them. What the report says of
        test rows is left out, for it was measured of the model as it was.

        Args:
            prior: "equal", "private" (as in the private rows) or the share of every class.

        Raises:
            ValueError: as `prior_shift`.
        """
        shift, new = self.prior_shift(prior), checked_prior(prior, len(self.class_names))
        if new == self.prior:
            return self
        weights = with_shift(self.weights, shift, self.transform.constant)
        told = self.report.without(*MEASURED) | reported_prior(
            new, self.class_shares, self.class_names
        )
        return replace(self, weights=weights, prior=new, report=told)

    def scores(self, embeddings: np.ndarray | Tensor) -> Tensor:
        """(n, K) float64 scores of raw (n, p) embeddings, which pass the public transform first.

        Computed in float64 throughout, so that other programs can come to the same numbers.

        Raises:
            ValueError: another number of columns, or a row that is not finite.
        """
        p = len(self.transform.mean)
        if embeddings.ndim != 2 or embeddings.shape[1] != p:
            raise ValueError(f"embeddings must be (n, {p}), got {tuple(embeddings.shape)}")
        out = torch.empty(len(embeddings), self.weights.shape[1], dtype=torch.float64)
        return in_blocks(embeddings, self._scores, out)

    @overload
    def predict(
        self, embeddings: np.ndarray | Tensor, *, names: Literal[False] = False
    ) -> Tensor: ...

    @overload
    def predict(self, embeddings: np.ndarray | Tensor, *, names: Literal[True]) -> np.ndarray: ...

    def predict(
        self, embeddings: np.ndarray | Tensor, *, names: bool = False
    ) -> Tensor | np.ndarray:
        """(n,) int64 classes of raw (n, p) embeddings, of the largest score; or their `names`."""
        found = self.scores(embeddings).argmax(1)
        return np.array(self.class_names)[found.numpy()] if names else found

    def predict_proba(self, embeddings: np.ndarray | Tensor) -> Tensor:
        """(n, K) float64 probabilities of raw (n, p) embeddings.

        How well they are calibrated depends on the method: `report.probabilities` says it.
        """
        return probabilities(self.scores(embeddings), self.temperature)

    def _scores(self, block: Tensor, first_row: int) -> Tensor:
        transform = self.transform
        features = transform.features(block, first_row=first_row)
        return product(transform.clipped(features), self.weights)

    @classmethod
    def load(cls, directory: Path | str) -> "Release":
        """Reads a directory that `save` wrote; raises ValueError naming the file that is bad."""
        path = Path(directory)
        if not path.is_dir():
            raise ValueError(f"release must be an existing directory, got {path}")
        return replace(cls.load_file(path / MODEL), report=Report.read(path / REPORT))

    @classmethod
    def load_file(cls, where: Path) -> "Release":
        """Reads model.safetensors alone, without a report; raises ValueError as `read_model`."""
        weights, transform, class_names, shares, metadata = read_model(where)
        temperature = read_field(metadata, "temperature", where)
        if not isinstance(temperature, float) or not 0 < temperature < math.inf:
            raise ValueError(f"{where}: temperature must be > 0, got {temperature!r}")
        prior = read_field(metadata, "prior", where)
        try:
            prior = None if prior is None else checked_prior(prior, len(class_names))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return cls(
            weights,
            transform,
            class_names,
            encoding=Encoding.in_metadata(metadata, where),
            temperature=temperature,
            class_shares=shares,
            prior=prior,
        )

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
        tensors |= {PREFIX + k: v.contiguous() for k, v in self.transform.tensors().items()}
        if self.class_shares is not None:
            tensors[SHARES] = self.class_shares
        metadata = {
            "class_names": json.dumps(self.class_names),
            "temperature": json.dumps(float(self.temperature)),
            "probabilities": reading(self.method),
        }
        if self.method is not None:
            metadata["method"] = self.method
        if self.prior is not None:
            metadata["prior"] = json.dumps(self.prior)
        if self.encoding is not None:
            metadata |= self.encoding.metadata()
        write_tensors(directory / MODEL, tensors, metadata)
        self.report.write(directory / REPORT)
