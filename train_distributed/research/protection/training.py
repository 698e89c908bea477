"""A small federation that trains one surface: what a protection costs in accuracy, and who leaks.

In every round the server sends w, every client takes one gradient step on S of its records and
sends w' = w − step · gradient through the mechanism, and the mean becomes the next w. The attacker
reads exactly these messages.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from train_distributed.research.protection.mechanisms import Mechanism, Unprotected
from train_distributed.research.protection.models import HeadSurface, Surface


@dataclass(frozen=True, eq=False)
class FederatedTraining:
    """Clients, test rows, and what the attacker knows without any message.

    Raises:
        ValueError: a setting out of its range, or rows of another shape.
    """

    surface: Surface
    clients: tuple[tuple[Tensor, Tensor], ...]  # (n_k, *record_shape) float64, (n_k,) int64
    test: tuple[Tensor, Tensor]
    public: Tensor  # (n, *record_shape) nobody's secret: what a blind attacker guesses
    batch: int  # S
    step: float
    rounds: int

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("rounds", self.rounds)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if not self.step > 0:
            raise ValueError(f"step must be > 0, got {self.step}")
        if len(self.clients) < 2:
            raise ValueError(f"clients must be >= 2, got {len(self.clients)}")
        shortest = min(len(y) for _, y in self.clients)
        if self.batch > shortest:
            raise ValueError(
                f"batch must be <= {shortest}, the smallest client's rows, got {self.batch}"
            )
        for x in (*(x for x, _ in self.clients), self.test[0], self.public):
            if x.shape[1:] != self.surface.record_shape:
                raise ValueError(
                    f"rows must have shape {self.surface.record_shape}, got {tuple(x.shape[1:])}"
                )

    def batches(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(K, S, *record_shape) records and (K, S) labels, S of every client."""
        drawn = [torch.randperm(len(y), generator=generator)[: self.batch] for _, y in self.clients]
        pairs = list(zip(self.clients, drawn, strict=True))
        return (
            torch.stack([x[rows] for (x, _), rows in pairs]),
            torch.stack([y[rows] for (_, y), rows in pairs]),
        )

    def updates(self, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(K, m) w' of every client from w (m,) and its batch."""
        targets = self.surface.one_hot(y)
        if isinstance(self.surface, HeadSurface):
            slopes = [self.surface.gradient(parameters, *each) for each in zip(x, targets)]  # noqa: B905
            return parameters - self.step * torch.stack(slopes)
        slope = vmap(grad(self.surface.loss), in_dims=(None, 0, 0))
        return parameters - self.step * slope(parameters, x, targets)

    def train(
        self, mechanism: Mechanism, generator: torch.Generator, rounds: int | None = None
    ) -> Tensor:
        """(m,) the model after that many rounds from a random start; all rounds by default."""
        parameters = self.surface.start(generator)
        for _ in range(self.rounds if rounds is None else rounds):
            models = self.updates(parameters, *self.batches(generator))
            parameters = mechanism.mean(models, generator)
        return parameters

    def accuracy(self, mechanism: Mechanism, seed: int) -> float:
        """Test accuracy after all rounds; one seed gives every mechanism the same start."""
        parameters = self.train(mechanism, torch.Generator().manual_seed(seed))
        return self.surface.accuracy(parameters, *self.test)

    def models(self, count: int, rounds: int, seed: int) -> list[Tensor]:
        """Algorithm 2: that many models from random starts, each after `rounds` rounds."""
        generator = torch.Generator().manual_seed(seed)
        return [self.train(Unprotected(), generator, rounds) for _ in range(count)]


def inverse_variances(federation: FederatedTraining, models: list[Tensor], seed: int) -> float:
    """A = √(Σ 1/s_i⁴), s_i the standard deviation of one client's parameter i over the models.

    1/s⁴ of ν + 1 normal draws is too large by ν²/((ν − 2)(ν − 4)) on average; that is divided out,
    as a larger A would ask for less noise.

    Raises:
        ValueError: fewer than 6 models, or a parameter that never varies.
    """
    if len(models) < 6:
        raise ValueError(f"models must be >= 6 to estimate variances, got {len(models)}")
    generator = torch.Generator().manual_seed(seed)
    sent = []
    for model in models:
        x, y = federation.batches(generator)
        client = int(torch.randint(len(x), (), generator=generator))
        sent.append(federation.updates(model, x[client : client + 1], y[client : client + 1])[0])
    variances, free = torch.stack(sent).var(0), len(models) - 1
    if not (variances > 0).all():
        raise ValueError("every parameter must vary between models, got a constant one")
    correction = (free - 2) * (free - 4) / free**2
    return float((correction * variances.pow(-2).sum()).sqrt())
