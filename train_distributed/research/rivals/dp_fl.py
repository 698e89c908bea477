"""DP-FL: DP-SGD (Abadi et al. 2016) on one softmax layer, by Opacus, as Kirschte et al. 2024 do.

All users' rows are sampled as one data set. Without a secure sum every user must add all of the
noise itself, so w users add √w times as much to the sum. Replacing one record moves a sum of
clipped gradients by at most 2C, so the noise multiplier of the account is noise over 2C, half of
what Opacus calls by that name. Opacus samples at the rate 1/⌈N/b⌉; the account is for that rate.
"""

import math
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pretrain import check
from train_distributed import accounting
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.research.rivals.common import (
    finish,
    pooled,
    refuse_sum,
    require_records,
    spend,
    users_of,
)
from train_distributed.research.rivals.options import DpFlOptions

FINE, COARSE = 1e-4, 1e-3  # grids of the privacy loss; both err upwards


def train(request: ReleaseRequest, options: DpFlOptions) -> Release:
    """Trains from zero and releases the last weights.

    Args:
        request: rows and promise; only the noise knows how many users there are.
        options: of SGD.

    Raises:
        ValueError: a setting out of range, or Opacus is missing.
    """
    refuse_sum(request)
    require_records(request.method, request.privacy)
    x, y = pooled(request)
    batches = math.ceil(len(x) / options.batch_size)
    rate, steps = 1 / batches, options.epochs * batches
    multiplier = noise_multiplier(request.privacy.epsilon, request.privacy.delta, rate, steps)
    users, classes = users_of(request).partition.users, request.source.num_classes
    _opacus()  # where it is missing, nothing is spent
    spend(request)
    weights = fit_private(
        x,
        y,
        classes,
        noise=2 * multiplier * math.sqrt(users) * rounding(len(x), x.shape[1] * classes),
        generator=request.draws,
        **vars(options),
    )
    report = request.privacy.report() | _account(request, multiplier, rate, steps)
    report |= vars(options)
    report |= {"rounds": steps, "bytes_per_user": 4 * weights.numel() * steps}
    report |= {"noise": "float" if multiplier else "none", "secure_sum": "none"}
    return finish(request, weights, report)


def fit_private(
    x: Tensor,
    y: Tensor,
    num_classes: int,
    *,
    noise: float,
    learning_rate: float,
    gradient_clip: float,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
) -> Tensor:
    """(d, K) float64 weights by Opacus: Poisson batches, clipped gradients, noise of `noise`·C.

    All in float64, where a sum of clipped gradients is off by what `rounding` charges; in float32
    one of many rows could move by more than 2C.

    Args:
        x: (N, d) rows, constant column first.
        y: (N,) labels.
        num_classes: K.
        noise: Opacus' noise multiplier, in units of C.
        learning_rate: of SGD.
        gradient_clip: C.
        epochs: passes in expectation.
        batch_size: b.
        generator: of batches and noise.

    Raises:
        ArithmeticError: weights that leave the range of float64.
    """
    opacus = _opacus()
    x, layer = x.double(), nn.Linear(x.shape[1], num_classes, bias=False).double()
    nn.init.zeros_(layer.weight)
    with warnings.catch_warnings():
        # not cryptographic (the report says float), and hooks on a layer whose input needs no grad
        warnings.simplefilter("ignore")
        layer, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=layer,
            optimizer=torch.optim.SGD(layer.parameters(), lr=learning_rate),
            data_loader=DataLoader(
                _Rows(x, y), batch_size, generator=generator, collate_fn=lambda batch: batch
            ),
            noise_multiplier=noise,
            max_grad_norm=gradient_clip,
            noise_generator=generator,
        )
        for _ in range(epochs):
            for rows, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(rows), labels).backward()
                optimizer.step()
    weights = next(layer.parameters()).detach().T.double()
    if not bool(weights.isfinite().all()):
        raise ArithmeticError(
            f"learning_rate must keep the weights finite, got {learning_rate} with noise of "
            f"{noise * gradient_clip:.3g}"
        )
    return weights


def rounding(rows: int, numbers: int) -> float:
    """Factor by which float64 may stretch the 2C that a record moves a sum of gradients.

    A sum of n vectors of norm C is exact to n 2⁻⁵³ of n C on either neighbour, whatever the order;
    a vector of m numbers is clipped to C but for m 2⁻⁵³ of it.
    """
    return 1 + (rows**2 + numbers + 16) * 2.0**-52


@cache
def noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise over 2C, to one thousandth, with which `steps` rounds are (ε, δ).

    Raises:
        ValueError: ε that no noise multiplier from 0.3 to 10⁵ meets.
    """
    if math.isinf(epsilon):
        return 0.0
    low, high = 0.3, 1.0
    while account(delta, high, rate, steps, COARSE) > epsilon:
        low, high = high, 2 * high
        if high > 1e5:
            raise ValueError(f"epsilon must be reachable by noise below 1e5 x 2C, got {epsilon}")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if account(delta, middle, rate, steps, COARSE) > epsilon:
            low = middle
        else:
            high = middle
    return high


def account(
    delta: float, noise_multiplier: float, rate: float, steps: int, grid: float = FINE
) -> float:
    """ε at δ by dp-accounting's privacy loss distributions, rounded towards less privacy.

    Replacing one record is accounted for as adding one whose gradient has norm 2C; for
    Poisson-sampled Gaussians that is never less than what dp-accounting finds for replacement
    itself (tests compare them).
    """
    dpa = check.installed("dp_accounting", "dp-fl", package="dp-accounting", extra="baselines")
    accountant = dpa.pld.PLDAccountant(value_discretization_interval=grid)
    gaussian = dpa.GaussianDpEvent(noise_multiplier)
    accountant.compose(dpa.PoissonSampledDpEvent(rate, gaussian), steps)
    asked = accounting.discretised_delta(delta, steps)
    if not asked > 0:
        raise ValueError(f"delta must be > {delta - asked:.3g} for {steps} steps, got {delta}")
    return accountant.get_epsilon(asked)


class _Rows(Dataset[tuple[Tensor, Tensor]]):
    """Fetches a whole batch with one index instead of a row at a time."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        index = torch.tensor(rows, dtype=torch.int64)
        return self.x[index], self.y[index]


def _account(request: ReleaseRequest, multiplier: float, rate: float, steps: int) -> dict[str, Any]:
    if not request.privacy.private:
        return {"sampling_rate": rate, "noise_multiplier": 0.0}
    found = account(request.privacy.delta, multiplier, rate, steps)
    return {
        "epsilon": found,
        "epsilon_asked_for": request.privacy.epsilon,
        "sampling_rate": rate,
        "noise_multiplier": multiplier,
        "accountant": "dp-accounting, privacy loss distribution, Poisson sampling",
    }


def _opacus() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check.installed("opacus", "dp-fl", extra="baselines")
