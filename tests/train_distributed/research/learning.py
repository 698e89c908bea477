"""Calls of learners: any method by its name, and DP-SGD as the documentation of Opacus runs it."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from embed import EmbeddingSet
from train_distributed import Privacy, Release
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.research.rivals.learn import run_method

SETTINGS = {field.name for field in fields(ReleaseRequest)}


@dataclass(frozen=True)
class Distance:
    """½ ‖w - x‖²: the population's minimiser is the mean of x, the excess risk ½ ‖w - mean‖²."""

    dimension: int

    @property
    def problems(self) -> int:
        """One problem."""
        return 1

    def losses(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n,); y is not used."""
        return (points - x).square().sum(1) / 2

    def gradients(self, points: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(n, 1, d) gradients; y is not used."""
        return (points - x)[:, None]


def learn(rows: EmbeddingSet, method: str, privacy: Privacy, **given: Any) -> Release:
    """Settings that a request does not know are options of the method."""
    options = {name: value for name, value in given.items() if name not in SETTINGS}
    settings = {name: value for name, value in given.items() if name in SETTINGS}
    settings |= {"method": method, "privacy": privacy, "options": options}
    return run_method(ReleaseRequest(embeddings=rows, **settings))


def plain_opacus(
    x: Tensor, y: Tensor, classes: int, *, generator: torch.Generator, **settings: Any
) -> Tensor:
    """(d, K) weights by the loop that its documentation shows, in the rows' own precision."""
    import opacus

    model = nn.Linear(x.shape[1], classes, bias=False).to(x.dtype)
    nn.init.zeros_(model.weight)
    rows = DataLoader(TensorDataset(x, y), batch_size=settings["batch_size"], generator=generator)
    made: Any = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=settings["learning_rate"]),
        data_loader=rows,
        noise_multiplier=settings["noise"],
        max_grad_norm=settings["gradient_clip"],
        noise_generator=generator,
    )
    model, optimizer, loader = made
    for _ in range(settings["epochs"]):
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
    return next(model.parameters()).detach().T
