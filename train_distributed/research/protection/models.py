"""Models under attack, as flat vectors of parameters, with gradients that can be inverted."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from pretrain import check

KERNEL, CHANNELS, STRIDES = 5, 12, (2, 2, 1)  # of Zhu, Liu and Han 2019's network


class TargetModel(ABC):
    """A classifier whose parameters are one vector (m,), float64, under mean cross-entropy."""

    num_classes: int  # K

    @property
    @abstractmethod
    def parameters(self) -> int:
        """The number of parameters m."""

    @property
    @abstractmethod
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record, known columns left out."""

    @abstractmethod
    def start(self, generator: torch.Generator) -> Tensor:
        """(m,) random parameters."""

    @abstractmethod
    def scores(self, parameters: Tensor, x: Tensor) -> Tensor:
        """(n, K) from (m,) and (n, *record_shape)."""

    @abstractmethod
    def bias(self, vector: Tensor) -> Tensor:
        """(K,) the last layer's bias entries of a vector (m,)."""

    @abstractmethod
    def similarity(self, guess: Tensor, record: Tensor) -> float:
        """Likeness of a finite guess and a record, at most 1."""

    def recovered(self, guesses: Tensor, records: Tensor, threshold: float) -> Tensor:
        """(S,) bool: whether any finite guess (G, ...) is more alike to a record (S, ...)."""
        finite = [guess for guess in guesses if torch.isfinite(guess).all()]
        return torch.tensor(
            [any(self.similarity(guess, r) > threshold for guess in finite) for r in records]
        )

    def loss(self, parameters: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy with (n, K) soft labels."""
        return -(targets * torch.log_softmax(self.scores(parameters, x), -1)).sum(-1).mean()

    def gradient(self, parameters: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        """(m,) gradient of the loss; differentiable by x and targets where they ask for it."""
        return grad(self.loss)(parameters, x, targets)

    def accuracy(self, parameters: Tensor, x: Tensor, y: Tensor) -> float:
        """Share of rows labelled rightly."""
        with torch.no_grad():
            guesses = [self.scores(parameters, part).argmax(1) for part in x.split(2048)]
        return float((torch.cat(guesses) == y).double().mean())

    def one_hot(self, y: Tensor) -> Tensor:
        """(n, K) float64 rows of the identity."""
        return torch.nn.functional.one_hot(y, self.num_classes).double()


@dataclass(frozen=True)
class TargetHead(TargetModel):
    """A softmax head W (d, K) on rows [a, x]: its gradient is Σ [a, x] (p − y)ᵀ / n."""

    dim: int  # p, the constant excluded
    num_classes: int
    constant: float = 0.5  # a

    @property
    def parameters(self) -> int:
        """Weights of the head, (p + 1) K."""
        return (self.dim + 1) * self.num_classes

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape (p,) of a row without the constant."""
        return (self.dim,)

    def start(self, generator: torch.Generator) -> Tensor:
        """Normal entries of deviation 1/√(p + 1)."""
        drawn = torch.randn(self.parameters, generator=generator, dtype=torch.float64)
        return drawn / math.sqrt(self.dim + 1)

    def scores(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Rows [a, x] times W."""
        return self.rows(x) @ self.matrix(parameters)

    def gradient(self, parameters: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        """In closed form, so that inverting it needs no second derivative."""
        rows = self.rows(x)
        residual = torch.softmax(rows @ self.matrix(parameters), -1) - targets
        return (rows.mT @ residual / len(x)).flatten()

    def bias(self, vector: Tensor) -> Tensor:
        """The constant's row."""
        return vector[: self.num_classes]

    def similarity(self, guess: Tensor, record: Tensor) -> float:
        """Cosine of the angle between two rows."""
        return float(torch.nn.functional.cosine_similarity(guess, record, dim=0))

    def matrix(self, vector: Tensor) -> Tensor:
        """(p + 1, K) view of (m,)."""
        return vector.unflatten(0, (self.dim + 1, self.num_classes))

    def rows(self, x: Tensor) -> Tensor:
        """(n, p + 1) with the constant first."""
        return torch.cat([x.new_full((len(x), 1), self.constant), x], 1)


@dataclass(frozen=True)
class TargetNetwork(TargetModel):
    """Three 5x5 convolutions of 12 channels, sigmoid, and a linear layer (Zhu et al. 2019).

    Strides 2, 2, 1; every parameter starts uniform on (−.5, .5).
    """

    channels: int
    size: int  # pixels a side
    num_classes: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of every weight and bias, in the order of the vector."""
        inside, shapes, side = self.channels, [], self.size
        for stride in STRIDES:
            shapes += [(CHANNELS, inside, KERNEL, KERNEL), (CHANNELS,)]
            inside, side = CHANNELS, -(-side // stride)
        return (*shapes, (self.num_classes, CHANNELS * side**2), (self.num_classes,))

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """(channels, size, size)."""
        return (self.channels, self.size, self.size)

    def start(self, generator: torch.Generator) -> Tensor:
        """Uniform on (−.5, .5)."""
        return torch.rand(self.parameters, generator=generator, dtype=torch.float64) - 0.5

    def scores(self, parameters: Tensor, x: Tensor) -> Tensor:
        """The network's outputs."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = [
            part.view(shape)
            for part, shape in zip(parameters.split(sizes), self.shapes, strict=True)
        ]
        for layer, stride in enumerate(STRIDES):
            weight, bias = parts[2 * layer], parts[2 * layer + 1]
            x = torch.nn.functional.conv2d(x, weight, bias, stride, padding=KERNEL // 2)
            x = torch.sigmoid(x)
        return x.flatten(1) @ parts[-2].mT + parts[-1]

    def bias(self, vector: Tensor) -> Tensor:
        """The linear layer's bias."""
        return vector[-self.num_classes :]

    def similarity(self, guess: Tensor, record: Tensor) -> float:
        """Structural similarity of two images (channels, h, w), the guess clipped to [0, 1]."""
        metrics = check.installed(
            "skimage.metrics", "ssim", package="scikit-image", extra="protection"
        )
        pictures = guess.clamp(0, 1).numpy(), record.numpy()
        return float(metrics.structural_similarity(*pictures, data_range=1.0, channel_axis=0))
