"""A released model: what it predicts, and the files it is written to and read from.

Files are checked as they are read: anybody may have made them.
"""

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
from pretrain.cli.json_text import read_field
from pretrain.cli.output import new_directory
from pretrain.encoders.weights import read_tensors, write_tensors
from train_distributed.one_shot.class_prior import (
    LARGEST_WEIGHT,
    TOLERANCE,
    ClassPrior,
    checked_prior,
    log_odds_of,
    prior_shift,
    reported_prior,
    with_shift,
)
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.report_file import MEASURED, Report

MODEL, REPORT = "model.safetensors", "report.json"
PREFIX = "transform."  # of the public transform's tensors
SHARES = "class_shares"  # of the private rows, noised


def read_model(
    model: Path,
) -> tuple[Tensor, PublicTransform, tuple[str, ...], Tensor | None, dict[str, str]]:
    """Reads model.safetensors, whose parts fit one another.

    Returns:
        (d, K) finite float64 weights, the transform of their rows, the names of K distinct classes,
        their (K,) float64 shares or None, and the file's metadata.

    Raises:
        ValueError: naming the file that is missing, damaged or does not fit.
    """
    tensors, metadata = read_tensors(model, "a released model")
    weights = tensors.pop("weights", None)
    if weights is None or weights.ndim != 2 or not weights.is_floating_point():
        found = "none" if weights is None else f"{weights.dtype} {tuple(weights.shape)}"
        raise ValueError(f"{model}: weights must be a float (d, K), got {found}")
    if not (weights.abs() <= LARGEST_WEIGHT).all():  # also true for NaN
        largest = float(weights.abs().max())
        raise ValueError(
            f"{model}: weights must be finite and at most {LARGEST_WEIGHT:g}, got {largest:g}"
        )
    shares = tensors.pop(SHARES, None)
    if unknown := sorted(name for name in tensors if not name.startswith(PREFIX)):
        raise ValueError(f"{model} must hold weights and a transform, got {unknown} too")
    transform = _transform(model, {k.removeprefix(PREFIX): v for k, v in tensors.items()})
    if weights.shape[0] != transform.dim:
        raise ValueError(
            f"{model}: weights must have {transform.dim} rows, as the transform's rows have "
            f"columns, got {weights.shape[0]}"
        )
    names = _class_names(model, metadata)
    if weights.shape[1] != len(names):
        raise ValueError(
            f"{model}: class_names must name {weights.shape[1]} classes, got {len(names)}"
        )
    return (
        weights.double(),
        transform,
        names,
        _shares(model, shares, len(names), metadata.get("findings") == "true"),
        metadata,
    )


def _shares(path: Path, shares: Tensor | None, classes: int, findings: bool) -> Tensor | None:
    if shares is None:
        return None
    if shares.shape != (classes,) or not shares.is_floating_point():
        found = f"{shares.dtype} {tuple(shares.shape)}"
        raise ValueError(f"{path}: {SHARES} must be float ({classes},), got {found}")
    shares = shares.double()
    if not (shares > 0).all():  # also true for NaN
        raise ValueError(f"{path}: {SHARES} must be > 0, got {float(shares.min()):g}")
    if findings and not (shares < 1).all():
        raise ValueError(f"{path}: {SHARES} of findings must be < 1, got {float(shares.max()):g}")
    beyond = abs(float(shares.sum()) - 1)  # infinite where one is
    if not findings and not beyond <= TOLERANCE:
        raise ValueError(f"{path}: {SHARES} must have the sum 1, got {float(shares.sum()):.9g}")
    return shares


def _transform(path: Path, tensors: dict[str, Tensor]) -> PublicTransform:
    for name, values in tensors.items():
        if values.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{path}: {PREFIX}{name} must be float, got {values.dtype}")
    try:
        return PublicTransform.from_tensors(tensors)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from error


def _class_names(path: Path, metadata: dict[str, str]) -> tuple[str, ...]:
    names = read_field(metadata, "class_names", path)
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < max(2, len(names))
    ):
        raise ValueError(f"{path}: class_names must be two distinct names or more, got {names}")
    return tuple(names)


INSIDE = (
    "what it learned from carries the prior of its rows inside, so that only a new `run --prior` "
    "gives another"
)
UNKNOWN = "softmax of the scores; whether they are log-probabilities is unknown, not calibrated"


def reading(method: str | None) -> str:
    """Sentence on how a method computes probabilities, and whether they are calibrated."""
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
    """A released model with its report, which says whether it is suitable for release."""

    weights: Tensor  # (d, K) float64, constant row first
    transform: PublicTransform
    class_names: tuple[str, ...]
    report: Report = field(default_factory=Report)  # `of` is called of another mapping
    opened: Tensor | None = None  # (D,) float64 noised sums, as whoever opened them saw them
    encoding: Encoding | None = None  # how pictures became the embeddings; None: unknown
    temperature: float = 1.0  # T > 0: probabilities are the softmax of scores / T
    class_shares: Tensor | None = None  # (K,) float64 of the private rows, from the noised sum
    prior: ClassPrior | None = None  # of the classes, which the weights are for; None: unknown
    findings: bool = False  # scores are log odds of several findings a picture

    def __post_init__(self) -> None:
        if not isinstance(self.report, Report):
            object.__setattr__(self, "report", Report.of(self.report))

    @property
    def method(self) -> str | None:
        """Name of the method that learned it, where its report says so."""
        return self.report.method

    def with_report(self, **more: Any) -> Self:
        """Release with these keys added to its report or replaced in it."""
        return replace(self, report=self.report | more)

    def prior_shift(self, prior: ClassPrior) -> Tensor:
        """(K,) what is added to the scores for another prior of the classes; see `class_prior`.

        Raises:
            ValueError: no prior, or a model whose own cannot be told from its scores.
        """
        new = checked_prior(prior, len(self.class_names), findings=self.findings)
        if new == self.prior:
            return torch.zeros(len(self.class_names), dtype=torch.float64)
        if self.class_shares is None or self.prior is None:
            own = "unknown" if self.prior is None else repr(self.prior)
            raise ValueError(f"prior must be the model's own, {own} ({INSIDE}), got {prior!r}")
        if self.findings:
            return log_odds_of(new, self.class_shares) - log_odds_of(self.prior, self.class_shares)
        return prior_shift(new, self.prior, self.class_shares, self.temperature)

    def with_prior(self, prior: ClassPrior) -> Self:
        """Release for other frequencies of the classes where it will be used.

        Scores move by `prior_shift`, probabilities and classes with them. The report loses its
        metrics on test rows, which hold for the former prior.

        Args:
            prior: "equal", "private" (as in the private rows) or the share of every class.

        Raises:
            ValueError: as `prior_shift`.
        """
        shift = self.prior_shift(prior)
        new = checked_prior(prior, len(self.class_names), findings=self.findings)
        if new == self.prior:
            return self
        weights = with_shift(self.weights, shift, self.transform.constant)
        report = self.report.without(*MEASURED) | reported_prior(
            new, self.class_shares, self.class_names, findings=self.findings
        )
        return replace(self, weights=weights, prior=new, report=report)

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
        """(n,) int64 class with the largest score for each of raw (n, p) embeddings, or its name.

        For a model of findings (n, K) int64: 1 where a finding is more likely than not.
        """
        if self.findings:
            if names:
                raise ValueError("names must be False for findings, of which a row may have many")
            return (self.scores(embeddings) > 0).long()
        found = self.scores(embeddings).argmax(1)
        return np.array(self.class_names)[found.numpy()] if names else found

    def predict_proba(self, embeddings: np.ndarray | Tensor) -> Tensor:
        """(n, K) float64 probabilities of raw (n, p) embeddings.

        How well they are calibrated depends on the method: `report.probabilities` says it.
        """
        scores = self.scores(embeddings)
        if self.findings:
            return torch.sigmoid(scores / self.temperature)
        return probabilities(scores, self.temperature)

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
        findings = metadata.get("findings") == "true"
        try:
            if prior is not None:
                prior = checked_prior(prior, len(class_names), findings=findings)
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
            findings=findings,
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
        if self.findings:
            metadata["findings"] = "true"
        if self.encoding is not None:
            metadata |= self.encoding.metadata()
        write_tensors(directory / MODEL, tensors, metadata)
        self.report.write(directory / REPORT)
