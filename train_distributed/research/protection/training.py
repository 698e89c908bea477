"""A small federation that trains one model: what a protection costs in accuracy, and who leaks.

In every round the server sends w, every client takes one gradient step on S of its records and
sends w' = w − step · gradient through the mechanism, and the mean becomes the next w. The attacker
reads exactly these messages. A model is a flat vector of parameters, whose gradients can be
inverted.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from embed import EmbeddingSet, PublicTransform
from pretrain import check
from pretrain.datasets import TEST, TRAIN, ImageSet
from train_distributed.one_shot.source import own_partition
from train_distributed.partition import split
from train_distributed.research.protection.mechanisms import Mechanism, Unprotected

KERNEL, CHANNELS, STRIDES = 5, 12, (2, 2, 1)  # of Zhu, Liu and Han 2019's network
LEAST_MODELS = 6  # from which variances are estimated
PUBLIC_ROWS = 5000  # that a blind attacker guesses from


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


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """Clients and their training.

    Raises:
        ValueError: a setting out of its range.
    """

    clients: int
    rows: int  # most records of one client
    batch: int = 1  # S
    step: float
    rounds: int
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        check.positive(step=self.step)
        check.at_least(1, rows=self.rows, batch=self.batch)
        check.at_least(0, rounds=self.rounds)

    def first(self, groups: Sequence[Tensor]) -> list[Tensor]:
        """The first records of the first clients."""
        check.at_most(len(groups), clients=self.clients)
        return [group[: self.rows] for group in groups[: self.clients]]


@dataclass(frozen=True, eq=False)
class FederatedTraining:
    """Clients, test rows, and the public rows that the attacker knows.

    Raises:
        ValueError: one client, a batch larger than a client, or rows of another shape.
    """

    target: TargetModel
    clients: tuple[tuple[Tensor, Tensor], ...]  # (n_k, *record_shape) float64, (n_k,) int64
    test: tuple[Tensor, Tensor]
    public: Tensor  # (n, *record_shape) public rows that a blind attacker guesses from
    options: FederationOptions

    def __post_init__(self) -> None:
        check.at_least(2, clients=len(self.clients))
        check.at_most(min(len(y) for _, y in self.clients), batch=self.options.batch)
        for x in (*(x for x, _ in self.clients), self.test[0], self.public):
            check.shape(("n", *self.target.record_shape), rows=x)

    def batches(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(K, S, *record_shape) records and (K, S) labels, S of every client."""
        size = self.options.batch
        drawn = [torch.randperm(len(y), generator=generator)[:size] for _, y in self.clients]
        pairs = list(zip(self.clients, drawn, strict=True))
        return (
            torch.stack([x[rows] for (x, _), rows in pairs]),
            torch.stack([y[rows] for (_, y), rows in pairs]),
        )

    def updates(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(K, m) w' of every client from w (m,) and its batch."""
        targets = self.target.one_hot(y)
        slopes = vmap(self.target.gradient, in_dims=(None, 0, 0))(parameters, x, targets)
        return parameters - self.options.step * slopes

    def train(
        self, mechanism: Mechanism, generator: torch.Generator, rounds: int | None = None
    ) -> Tensor:
        """(m,) the model after that many rounds from a random start; all rounds by default."""
        parameters = self.target.start(generator)
        for _ in range(self.options.rounds if rounds is None else rounds):
            models = self.updates(parameters, *self.batches(generator))
            parameters = mechanism.mean(models, generator)
        return parameters

    def accuracy(self, mechanism: Mechanism, seed: int) -> float:
        """Test accuracy after all rounds; one seed gives every mechanism the same start."""
        parameters = self.train(mechanism, torch.Generator().manual_seed(seed))
        return self.target.accuracy(parameters, *self.test)

    def models(self, count: int, rounds: int, seed: int) -> list[Tensor]:
        """Algorithm 2: that many models from random starts, each after `rounds` rounds."""
        generator = torch.Generator().manual_seed(seed)
        return [self.train(Unprotected(), generator, rounds) for _ in range(count)]

    def inverse_variances(self, models: list[Tensor], seed: int) -> float:
        """A = √(Σ 1/s_i⁴), s_i the deviation of one client's parameter i over the models.

        1/s⁴ of ν + 1 normal draws is too large by ν²/((ν − 2)(ν − 4)) on average; that is divided
        out, as a larger A would ask for less noise.

        Raises:
            ValueError: fewer than 6 models, or a parameter that never varies.
        """
        check.at_least(LEAST_MODELS, models=len(models))
        generator = torch.Generator().manual_seed(seed)
        sent = []
        for model in models:
            x, y = self.batches(generator)
            client = int(torch.randint(len(x), (), generator=generator))
            sent.append(self.updates(model, x[client : client + 1], y[client : client + 1])[0])
        variances, free = torch.stack(sent).var(0), len(models) - 1
        if not (variances > 0).all():
            raise ValueError("every parameter must vary between models, got a constant one")
        correction = (free - 2) * (free - 4) / free**2
        return float((correction * variances.pow(-2).sum()).sqrt())


def head_federation(
    private: EmbeddingSet,
    public: EmbeddingSet,
    transform: PublicTransform,
    options: FederationOptions,
) -> FederatedTraining:
    """Clients with at most `rows` training rows each: the set's own users, else a random split.

    Raises:
        ValueError: no labels, fewer users or rows than clients, or no test rows.
    """
    private.need_labels()

    def features(source: EmbeddingSet, which: np.ndarray) -> Tensor:
        return transform(np.array(source.embeddings[which]))[:, 1:].double()

    def labels(which: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(private.labels[which]))

    generator = torch.Generator().manual_seed(options.seed)
    train = np.flatnonzero(private.split == TRAIN)
    test = np.flatnonzero(private.split == TEST)
    check.at_least(1, test_rows=len(test))
    if private.users is None:
        partition = split(labels(train), options.clients, "iid", generator=generator)
    else:
        partition = own_partition(private)
    groups = options.first(partition.order.split(partition.counts.tolist()))
    held = [train[group.numpy()] for group in groups]
    chosen = np.arange(len(public))[:: max(1, len(public) // PUBLIC_ROWS)]
    classes = max(2, len(private.meta.get("class_names", ())), int(private.labels.max()) + 1)
    return FederatedTraining(
        TargetHead(transform.dim - 1, classes, transform.constant),
        tuple((features(private, which), labels(which)) for which in held),
        (features(private, test), labels(test)),
        features(public, chosen),
        options,
    )


def image_federation(
    images: ImageSet, options: FederationOptions, *, test_rows: int
) -> FederatedTraining:
    """The first writers as clients; half of the test images are the blind attacker's.

    Images of three equal channels become one.

    Raises:
        ValueError: images without labels or users, or fewer users than clients.
    """
    images.need_labels()
    if images.users is None:
        raise ValueError("images must name their writers (writer_train), got none")
    train, test = np.flatnonzero(images.split == TRAIN), np.flatnonzero(images.split == TEST)
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(options.seed)).numpy()
    test, public = test[order[:test_rows]], test[order[test_rows:][:PUBLIC_ROWS]]
    if not (len(test) and len(public)):
        raise ValueError(f"images must hold more than {test_rows} test images, got {len(order)}")
    writers = images.users[train]
    own = [torch.from_numpy(train[writers == i]) for i in np.unique(writers)]

    def pixels(which: np.ndarray) -> Tensor:
        block = torch.from_numpy(np.array(images.images(which))).double() / 255
        grey = bool((block == block[:, :1]).all())
        return block[:, :1].contiguous() if grey else block

    def labelled(which: np.ndarray) -> tuple[Tensor, Tensor]:
        return pixels(which), torch.from_numpy(images.labels[which])

    seen = labelled(test)
    return FederatedTraining(
        TargetNetwork(seen[0].shape[1], seen[0].shape[2], len(images.class_names)),
        tuple(labelled(group.numpy()) for group in options.first(own)),
        seen,
        pixels(public),
        options,
    )
