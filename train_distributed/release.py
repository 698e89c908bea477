"""From many users' embeddings to one released model: train, add noise once, sum once."""

import json
import math
import platform
from collections.abc import Collection
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
from embed.store import TEST, TRAIN
from pretrain.output import new_directory
from train_distributed.guarantee import Guarantee
from train_distributed.methods import Method, build_method
from train_distributed.noise import system_generator
from train_distributed.partition import Partition
from train_distributed.privacy import Privacy
from train_distributed.summation import FloatSum, IntegerSum, Summation
from train_distributed.users import Chunk, EmbeddingUsers, Users, check_stream, own_partition

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
    **options: Any,
) -> Release:
    """One private model from all users' rows, by one sum.

    Args:
        embeddings: what users hold: the training rows of a set, or any stream of `Users`.
        method: "class-sums", "least-squares", "softmax", "svm", "logistic", or a `Method`.
        privacy: (ε, δ), honest fraction, unit and group.
        transform: the public transform of the rows; None: only the constant 1 and a clip to 1.
        num_classes: K, public; None: as many as the set's class names.
        partition: which user holds which training row; None: as the set's own users say.
        noise: "discrete" is what is deployed; "float" is for simulations and marked.
        generator: makes a "float" run reproducible, and unsuitable for release once more.
        min_survivors: m_min, the fewest users that a sum is opened for; None: all.
        dropped: users whose submission never arrives.
        known_noise: dishonest users, whose noise an attacker knows and subtracts: none of it is
            left in the sum, and the model is marked. For audits.
        **options: settings of the method, as in `methods.build_method`.

    Raises:
        ValueError: a setting out of range, rows longer than the clip norm or not finite, fewer
            survivors than m_min. Nothing has been released then.
    """
    privacy.validate()
    if noise not in ("discrete", "float"):
        raise ValueError(f"noise must be 'discrete' or 'float', got {noise!r}")
    if generator is not None and noise == "discrete":
        raise ValueError("generator must be None for noise 'discrete', which nothing reproduces")
    transform, users = _stream(embeddings, transform, partition)
    method = _method(method, transform, known_classes(embeddings, num_classes), options)
    sizes = users.sizes
    guarantee = Guarantee.of(sizes, method, privacy, min_survivors)
    _check_users("known_noise", known_noise, len(sizes))
    kept = surviving(len(sizes), dropped, guarantee.min_survivors)
    summation = _summation(method, guarantee, sizes, noise, generator, frozenset(known_noise))
    seen = torch.zeros(len(sizes), dtype=torch.bool)
    for chunk in users.chunks():
        _check_chunk(chunk, sizes, seen)
        arrived = kept[chunk.users]
        if arrived.any():
            if not isinstance(embeddings, EmbeddingSet) and method.grid_powers is not None:
                check_stream(chunk, transform.clip_norm, transform.constant)
            present = chunk.select(arrived).rounded(summation.grid)
            summation.add(present.users, method.submit(present) * method.scale)
    rows, survivors = int(sizes[kept].sum()), int(kept.sum())
    noise_std = summation.local_std * math.sqrt(survivors)
    opened = summation.total()
    released = Release(
        method.classifier(opened / method.scale, rows, noise_std),
        transform,
        class_names_of(embeddings, method.num_classes),
        opened=opened,
    )
    report = guarantee.report() | summation.report()
    report |= {"users": len(sizes), "survivors": survivors, "rows": rows, "rounds": 1}
    seeded = generator is not None
    report |= suitability(privacy, noise, seeded=seeded, bare_users=len(set(known_noise)))
    report |= {"versions": versions()}
    if isinstance(embeddings, EmbeddingSet) and (embeddings.split == TEST).any():
        report |= accuracy_report(released, embeddings)
    return replace(released, report=report)


def suitability(
    privacy: Privacy, noise: Noise, *, seeded: bool, bare_users: int = 0
) -> dict[str, Any]:
    """Whether the model may leave the building, and if not, why."""
    reasons = {
        "it has no noise: not private": not privacy.private,
        "floating-point noise": noise == "float" and privacy.private,
        "seeded: whoever knows the seed can subtract the noise": seeded,
        f"an audit: {bare_users} users added no noise": bare_users > 0,
    }
    why = [reason for reason, holds in reasons.items() if holds]
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


def _stream(
    embeddings: EmbeddingSet | Users, transform: PublicTransform | None, partition: Partition | None
) -> tuple[PublicTransform, Users]:
    if not isinstance(embeddings, EmbeddingSet):
        if partition is not None:
            raise ValueError("partition must be None for a stream of users, which has its own")
        if transform is None:
            transform = PublicTransform.identity(embeddings.dim - 1)
        return transform, embeddings
    if transform is None:
        transform = PublicTransform.identity(embeddings.dim)
    if partition is None:
        partition = own_partition(embeddings)
    train = int((embeddings.split == TRAIN).sum())
    if len(partition.order) != train:
        raise ValueError(
            f"partition must cover the {train} training rows, got {len(partition.order)}"
        )
    return transform, EmbeddingUsers(embeddings, transform, partition)


def _method(
    method: str | Method, transform: PublicTransform, num_classes: int, options: dict[str, Any]
) -> Method:
    if isinstance(method, str):
        return build_method(method, transform, num_classes, options)
    if options:
        raise ValueError(f"options must go into the Method itself, got {sorted(options)}")
    method.validate()
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


def _check_chunk(chunk: Chunk, sizes: Tensor, seen: Tensor) -> None:
    """Notes the chunk's users in (users,) `seen`; the noise rests on their sizes, once each."""
    if seen[chunk.users].any() or len(chunk.users.unique()) < len(chunk.users):
        raise ValueError("users must stream in once each, got one twice")
    if not torch.equal(chunk.counts, sizes[chunk.users]):
        raise ValueError("users must hold as many rows as their sizes say, got others")
    seen[chunk.users] = True


def _check_users(name: str, given: Collection[int], users: int) -> None:
    for user in given:
        if not 0 <= user < users:
            raise ValueError(f"{name} must hold users in [0, {users}), got {user}")


def known_classes(embeddings: EmbeddingSet | Users, num_classes: int | None) -> int:
    """K, from configuration or class names, never from the private labels."""
    known = isinstance(embeddings, EmbeddingSet) and len(embeddings.meta.get("class_names", ()))
    if num_classes is None:
        if not known:
            raise ValueError("num_classes must be given where the set names no classes, got None")
        return int(known)
    if known and known != num_classes:
        raise ValueError(f"num_classes must be {known}, the set's class names, got {num_classes}")
    if isinstance(embeddings, EmbeddingSet) and embeddings.labels.max() >= num_classes:
        worst = int(embeddings.labels.max())
        raise ValueError(f"labels must lie in [0, {num_classes}), got {worst}")
    return num_classes


def class_names_of(embeddings: EmbeddingSet | Users, num_classes: int) -> tuple[str, ...]:
    """The set's names, or numbers."""
    names = embeddings.meta.get("class_names") if isinstance(embeddings, EmbeddingSet) else None
    return tuple(names or map(str, range(num_classes)))
