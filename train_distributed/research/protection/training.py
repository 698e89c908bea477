"""A small federation that trains one model: what a protection costs in accuracy, and who leaks.

In every round the server sends w, every client takes one gradient step on S of its records and
sends w' = w − step · gradient through the mechanism, and the mean becomes the next w. The attacker
reads exactly these messages.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from pretrain import check
from train_distributed.research.protection.mechanisms import Mechanism, Unprotected
from train_distributed.research.protection.models import TargetHead, TargetModel

LEAST_MODELS = 6  # from which variances are estimated


@dataclass(frozen=True, eq=False)
class FederatedTraining:
    """Clients, test rows, and the public rows that the attacker knows.

    Raises:
        ValueError: a setting out of its range, or rows of another shape.
    """

    target: TargetModel
    clients: tuple[tuple[Tensor, Tensor], ...]  # (n_k, *record_shape) float64, (n_k,) int64
    test: tuple[Tensor, Tensor]
    public: Tensor  # (n, *record_shape) public rows that a blind attacker guesses from
    batch: int  # S
    step: float
    rounds: int

    def __post_init__(self) -> None:
        check.positive(step=self.step)
        check.at_least(1, batch=self.batch, rounds=self.rounds)
        check.at_least(2, clients=len(self.clients))
        check.at_most(min(len(y) for _, y in self.clients), batch=self.batch)
        for x in (*(x for x, _ in self.clients), self.test[0], self.public):
            check.shape(("n", *self.target.record_shape), rows=x)

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
        targets = self.target.one_hot(y)
        if isinstance(self.target, TargetHead):
            slopes = [self.target.gradient(parameters, *each) for each in zip(x, targets)]  # noqa: B905
            return parameters - self.step * torch.stack(slopes)
        slope = vmap(grad(self.target.loss), in_dims=(None, 0, 0))
        return parameters - self.step * slope(parameters, x, targets)

    def train(
        self, mechanism: Mechanism, generator: torch.Generator, rounds: int | None = None
    ) -> Tensor:
        """(m,) the model after that many rounds from a random start; all rounds by default."""
        parameters = self.target.start(generator)
        for _ in range(self.rounds if rounds is None else rounds):
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


def inverse_variances(federation: FederatedTraining, models: list[Tensor], seed: int) -> float:
    """A = √(Σ 1/s_i⁴), s_i the standard deviation of one client's parameter i over the models.

    1/s⁴ of ν + 1 normal draws is too large by ν²/((ν − 2)(ν − 4)) on average; that is divided out,
    as a larger A would ask for less noise.

    Raises:
        ValueError: fewer than 6 models, or a parameter that never varies.
    """
    check.at_least(LEAST_MODELS, models=len(models))
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
