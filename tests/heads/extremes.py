"""Adversarial neighbours at any scale, for the tests of extreme scales."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heads import Head, HuberSVMHead, LogisticHead, SoftmaxHead

KINDS = (SoftmaxHead, HuberSVMHead, LogisticHead)
LIMIT = 12  # scales from 1e-12 to 1e12


@dataclass(frozen=True)
class Extreme:
    """One head, and many pairs of data sets that differ in one record."""

    head: Head
    x: Tensor  # (2, pairs, n, d), norms up to the clip norm
    y: Tensor  # (2, pairs, n)

    @property
    def pairs(self) -> int:
        return self.x.shape[1]

    def moved(self, weights: Tensor) -> float:
        """The largest movement of a composition; weights (2 · pairs, d, K)."""
        first, second = weights.double().unflatten(0, (2, self.pairs))
        return float(torch.linalg.vector_norm(first - second, dim=self.head.norm_dims).max())

    def largest(self, weights: Tensor) -> float:
        """The largest norm of a composition, in more digits than float64 has."""
        wide = np.square(weights.numpy().astype(np.longdouble))
        return float(np.sqrt(wide.sum(self.head.norm_dims)).max())


class Dice:
    """Explicitly seeded draws."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def scale(self, low: float = -LIMIT, high: float = LIMIT) -> float:
        return 10.0 ** self.draw.uniform(low, high)

    def often(self, share: float) -> bool:
        return bool(self.draw.random() < share)

    def whole(self, low: int, high: int) -> int:
        return int(self.draw.integers(low, high + 1))

    def steps(self) -> dict[str, Any]:
        """Epochs and batch size."""
        return {"epochs": int(self.scale(0, 1.6)), "batch_size": self.whole(1, 10)}

    def head(self, condition: tuple[float, float] | None = None, **fixed: Any) -> Head:
        """Any head; with `condition`, curvature / Λ between these powers of ten."""
        kind = KINDS[self.whole(0, 2)]
        options: dict[str, Any] = {"num_classes": self.whole(2, 4)}
        options["clip_norm"] = 1.0 if self.often(0.4) else self.scale()
        if kind is HuberSVMHead and self.often(0.3):
            options["relaxation"] = self.scale() if condition is None else self.scale(-2, 2)
        if condition is None:
            options["l2_reg"] = self.scale() if self.often(0.5) else self.scale(-3, 3)
        else:
            curvature = kind(**options, l2_reg=1.0).curvature
            options["l2_reg"] = curvature / self.scale(*condition)
        head = kind(**options)
        reach = head.lipschitz / head.l2_reg
        radius = self.scale() if self.often(0.3) else reach * self.scale(-6, 0.3)
        return kind(**{**options, "radius": None if self.often(0.2) else radius, **fixed})

    def rows(self, head: Head, dtype: torch.dtype) -> Extreme:
        """Pairs for users of one size; the record that differs is anywhere."""
        n, d = self.whole(1, 12), self.whole(2, 16)
        if self.often(0.5):
            d += 16  # the Gram matrix is smaller
        first = [self._others(n, d, head.num_classes) for _ in range(12)]
        x, y = (np.stack(part) for part in zip(*first, strict=True))
        x, y = np.stack([x, x]), np.stack([y, y])
        for pair in range(len(first)):
            self._replace(x[:, pair], y[:, pair], head.num_classes)
        short = 1e-6 if dtype == torch.float32 else 2.0**-40
        rows = torch.from_numpy(x * (head.clip_norm * (1 - short))).to(dtype)
        return Extreme(head, rows, torch.from_numpy(y))

    def _others(self, n: int, d: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of length 1 or less, and labels."""
        equal = np.ones((n, d)) / math.sqrt(d)
        random = self.draw.standard_normal((n, d))
        random /= np.linalg.norm(random, axis=1, keepdims=True)
        signs = np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]
        tiny = random * 10.0 ** self.draw.uniform(-320, 0, (n, 1))  # denormal numbers too
        kinds = (equal, equal * signs, random, tiny, np.zeros((n, d)), np.eye(n, d))
        labels = (np.arange(n) % classes, np.zeros(n, int), self.draw.integers(0, classes, n))
        return kinds[self.whole(0, 5)], labels[self.whole(0, 2)].astype(np.int64)

    def _replace(self, x: np.ndarray, y: np.ndarray, classes: int) -> None:
        """Makes (2, n, d) rows and (2, n) labels differ in one record."""
        place = self.whole(0, x.shape[1] - 1)
        row = np.zeros(x.shape[2])
        row[self.whole(0, len(row) - 1)] = 1.0
        if self.often(0.5):
            x[0, place] = x[1, place] = row
        change = self.whole(0, 3)
        if change != 1:
            x[1, place] = (-x[0, place], None, row, -x[0, place])[change]
        if change in (1, 3):
            y[1, place] = (y[0, place] + 1) % classes
