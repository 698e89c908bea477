"""From many users' embeddings to one released model: train, add noise once, sum once."""

import json
import math
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TEST
from pretrain.cli.output import new_directory
from train_distributed.one_shot.methods import Method, build_method, check_method
from train_distributed.one_shot.private_statistics import ClassSums, LeastSquares
from train_distributed.one_shot.source import Source
from train_distributed.one_shot.summation import FloatSum, IntegerSum, Summation
from train_distributed.one_shot.users import Users, check_stream
from train_distributed.partition import Partition
from train_distributed.privacy.float_noise import system_generator
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.promise import Privacy

Noise = Literal["discrete", "float"]


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
            ValueError: the split is empty.
        """
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
        """Writes model.safetensors and report.json, whole or not at all."""
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


def release(
    embeddings: EmbeddingSet | Users,
    method: str | Method,
    privacy: Privacy,
    *,
    transform: PublicTransform | None = None,
    num_classes: int | None = None,
    partition: Partition | None = None,
    noise: Noise = "discrete",
    generator: torch.Generator | None = None,
    min_survivors: int | None = None,
    dropped: Collection[int] = (),
    known_noise: Collection[int] = (),
    vouch_for_transform: bool = False,
    **options: Any,
) -> Release:
    """One private model from all users' rows, by one sum.

    What is wrong with the rows, the classes or the transform is refused before any work, for the
    set as a whole; see `intake` for what a refusal shows.

    Args:
        embeddings: what users hold: the training rows of a set, or any stream of `Users`.
        method: "class-sums", "least-squares", "softmax", "svm", "logistic", or a `Method` made for
            the same transform and classes.
        privacy: (ε, δ), honest fraction, unit and group.
        transform: the public transform, which alone clips the rows; None: the `Method`'s own, or
            only the constant 1 and a clip to 1.
        num_classes: K, public; None: as many as the set's class names.
        partition: which user holds which training row; None: as the set's own users say.
        noise: "discrete" is what is deployed; "float" is for simulations and marked.
        generator: makes a "float" run reproducible, and unsuitable for release once more.
        min_survivors: m_min, the fewest users that a sum is opened for; None: all.
        dropped: users whose submission never arrives.
        known_noise: dishonest users, whose noise an attacker knows and subtracts: none of it is
            left in the sum, and the model is marked. For audits.
        vouch_for_transform: somebody answers for it that a transform without the hashes of its
            public rows has seen no private one; the report says so.
        **options: settings of the method, as in `methods.build_method`.

    Raises:
        ValueError: a setting out of range, rows longer than the clip norm or not finite, rows that
            the transform has seen, a method made for other rows, classes that nobody declared,
            fewer survivors than m_min. Nothing has been released then.
    """
    privacy.validate()
    if noise not in ("discrete", "float"):
        raise ValueError(f"noise must be 'discrete' or 'float', got {noise!r}")
    if generator is not None and noise == "discrete":
        raise ValueError("generator must be None for noise 'discrete', which nothing reproduces")
    if transform is None and isinstance(method, ClassSums | LeastSquares):
        transform = method.transform
    discrete = noise == "discrete" and privacy.private
    source = Source.of(embeddings, transform, partition, num_classes)
    transform, users = source.transform, source.users
    method = _method(method, transform, source.num_classes, options)
    sizes = users.sizes
    guarantee = Guarantee.of(sizes, method, privacy, min_survivors)
    _check_users("known_noise", known_noise, len(sizes))
    kept = surviving(len(sizes), dropped, guarantee.min_survivors)
    summation = _summation(method, guarantee, sizes, noise, generator, frozenset(known_noise))
    admitted = source.admit(privacy, discrete=discrete, vouched=vouch_for_transform)
    for chunk in source.chunks():
        arrived = kept[chunk.users]
        if arrived.any():
            if source.embeddings is None and method.grid_powers is not None:
                check_stream(chunk, transform.clip_norm, transform.constant)
            present = chunk.select(arrived).rounded(summation.grid)
            summation.add(present.users, method.submit(present) * method.scale)
    rows, survivors = int(sizes[kept].sum()), int(kept.sum())
    noise_std = summation.local_std * math.sqrt(survivors)
    opened = summation.total()
    released = Release(
        method.classifier(opened / method.scale, rows, noise_std),
        transform,
        class_names_of(source.embeddings, method.num_classes),
        opened=opened,
    )
    report = guarantee.report() | summation.report() | admitted.report
    report |= {"users": len(sizes), "survivors": survivors, "rows": rows, "rounds": 1}
    report |= suitability(
        privacy,
        noise,
        seeded=generator is not None,
        bare_users=len(set(known_noise)),
        others=admitted.unsuitable,
    )
    report |= {"versions": versions()}
    if source.embeddings is not None and (source.embeddings.split == TEST).any():
        report |= accuracy_report(released, source.embeddings)
    return replace(released, report=report)


def suitability(
    privacy: Privacy,
    noise: Noise,
    *,
    seeded: bool,
    bare_users: int = 0,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Whether the model may leave the building, and if not, why."""
    reasons = {
        "it has no noise: not private": not privacy.private,
        "floating-point noise": noise == "float" and privacy.private,
        "seeded: whoever knows the seed can subtract the noise": seeded,
        f"an audit: {bare_users} users added no noise": bare_users > 0,
    }
    why = [*(reason for reason, holds in reasons.items() if holds), *others]
    return {"suitable_for_release": not why} | ({"unsuitable_because": why} if why else {})


def versions() -> dict[str, str]:
    """Of Python and the libraries that results depend on."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "opendp", "blind-averaging")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def accuracy_report(released: Release, embeddings: EmbeddingSet) -> dict[str, Any]:
    """Accuracy on the test split, over all classes and by class."""
    confusion = released.confusion(embeddings)
    hits, rows = confusion.diagonal(), confusion.sum(1)
    shares = {
        name: int(hit) / int(of)
        for name, hit, of in zip(released.class_names, hits, rows, strict=True)
        if of
    }
    accuracy = int(hits.sum()) / int(rows.sum())
    return {"test_accuracy": accuracy, "test_accuracy_per_class": shares}


def _method(
    method: str | Method, transform: PublicTransform, num_classes: int, options: dict[str, Any]
) -> Method:
    if isinstance(method, str):
        return build_method(method, transform, num_classes, options)
    if options:
        raise ValueError(f"options must go into the Method itself, got {sorted(options)}")
    check_method(method, transform, num_classes)
    return method


def _summation(
    method: Method,
    guarantee: Guarantee,
    sizes: Tensor,
    noise: Noise,
    generator: torch.Generator | None,
    bare: frozenset[int],
) -> Summation:
    if noise == "float" or not guarantee.privacy.private:
        generator = system_generator() if generator is None else generator
        return FloatSum(method.dimension, guarantee.local_std, generator, bare)
    return replace(IntegerSum.of(method, guarantee, sizes), bare=bare)


def surviving(users: int, dropped: Collection[int], min_survivors: int) -> Tensor:
    """(users,) bool: who is left.

    Raises:
        ValueError: fewer than m_min, or a user that does not exist.
    """
    _check_users("dropped", dropped, users)
    kept = torch.ones(users, dtype=torch.bool)
    kept[list(dropped)] = False
    if kept.sum() < min_survivors:
        raise ValueError(
            f"survivors must be >= min_survivors = {min_survivors}, got {int(kept.sum())}; "
            "nothing is released"
        )
    return kept


def _check_users(name: str, given: Collection[int], users: int) -> None:
    for user in given:
        if not 0 <= user < users:
            raise ValueError(f"{name} must hold users in [0, {users}), got {user}")


def class_names_of(embeddings: EmbeddingSet | None, num_classes: int) -> tuple[str, ...]:
    """The set's names, or numbers."""
    names = () if embeddings is None else embeddings.declared_classes
    return names or tuple(map(str, range(num_classes)))
