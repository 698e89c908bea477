"""Audit of ADMM: exact privacy losses of ADMM's messages.

One node is watched; its neighbours' messages are held at zero, which an adversary may choose. The
noise density is known in closed form, so the log-likelihood ratio of two data sets, the best test
there is, is computed and not estimated.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from train_distributed.privacy.float_noise import exponential_norm
from train_distributed.research.admm import calibration, solver
from train_distributed.research.admm.algorithm import AdmmSettings
from train_distributed.research.admm.nodes import Nodes


@dataclass(frozen=True, eq=False)
class Pair:
    """Two data sets of one node that differ in one record."""

    x: Tensor  # (2, B, d) float64
    y: Tensor  # (2, B) float64, ±1

    def nodes(self, which: int, replicas: int) -> Nodes:
        """One of the two as a node with as many identical problems as there are replicas."""
        x, y = self.x[which : which + 1], self.y[which : which + 1]
        return Nodes(x, y[..., None].expand(-1, -1, replicas), torch.tensor([x.shape[1]]))


def worst_pair(rows: int, angle: float, *, filler_norm: float = 0.0) -> Pair:
    """Records y x at an angle to each other, in the plane; the other rows are ±filler_norm e_0.

    Near π both gradients can be -y x at once, far out between the two: they differ by almost 2,
    which is the most that two records can.
    """
    x = torch.zeros(2, rows, 2, dtype=torch.float64)
    x[:, :, 0] = filler_norm
    across, along = math.sin(angle / 2), math.cos(angle / 2)
    x[:, 0] = torch.tensor([[across, along], [-across, along]], dtype=torch.float64)
    return Pair(x, torch.ones(2, rows, dtype=torch.float64))


def dual_loss(
    pair: Pair,
    outputs: Tensor,
    linear: Tensor,
    *,
    loss_weight: float,
    quadratic: float,
    zeta: float,
) -> Tensor:
    """(R,), ln p(f | first) / p(f | second) of a dual-perturbed step that sent f.

    f determines its noise, e(f) = -(B/C) (C ∇loss(f) + q f + l), with Jacobian (B/C) H(f); so
    ln p(f) = -ζ ‖e(f)‖ + ln det H(f) + constant.

    Args:
        pair: the two data sets.
        outputs: (R, d) f.
        linear: (R, d) l, 2 λ and the anchors; the same for both.
        loss_weight: C.
        quadratic: q = ρ + Φ + 2 η N.
        zeta: ζ.
    """
    densities = []
    for which in range(2):
        nodes = pair.nodes(which, len(outputs))
        gradient = loss_weight * solver.loss_gradient(nodes, outputs[None])[0]
        noise = (gradient + quadratic * outputs + linear) * pair.x.shape[1] / loss_weight
        hessian = _hessian(pair, which, outputs, loss_weight, quadratic)
        densities.append(torch.linalg.slogdet(hessian).logabsdet - zeta * noise.norm(dim=-1))
    return densities[0] - densities[1]


def trajectory_losses(
    pair: Pair,
    settings: AdmmSettings,
    neighbours: int,
    *,
    truth: int,
    replicas: int,
    generator: torch.Generator,
    noise_scale: float = 1.0,
) -> Tensor:
    """(R,), ln p(all messages | first) / p(all messages | second), messages drawn from `truth`.

    Args:
        pair: the two data sets.
        settings: the method, its constants and α(t).
        neighbours: N of the node.
        truth: 0 or 1, the data set that the node holds.
        replicas: R, independent runs.
        generator: of the noise.
        noise_scale: below 1 adds less noise than the accounting believes (the mutation).
    """
    walk = _Walk(pair, settings, neighbours, replicas)
    for alpha in settings.alphas[:-1]:
        step = walk.dual if settings.method == "dvp" else walk.primal
        step(alpha, truth, generator, noise_scale)
    walk.dual(settings.alphas[-1], truth, generator, noise_scale)
    return walk.loss


class _Walk:
    """The messages so far, and both data sets' hidden states that explain them."""

    def __init__(self, pair: Pair, settings: AdmmSettings, neighbours: int, replicas: int) -> None:
        zero = torch.zeros(replicas, pair.x.shape[2], dtype=torch.float64)
        self.pair, self.settings, self.neighbours = pair, settings, neighbours
        self.loss = torch.zeros(replicas, dtype=torch.float64)
        self.sent, self.dual_variable = zero, zero
        self.own = [zero, zero]

    def dual(self, alpha: float, truth: int, generator: torch.Generator, scale: float) -> None:
        rows, weight, q = self._constants()
        zeta, phi = calibration.dual_noise(alpha, rows, weight, q)
        noise = scale * exponential_norm(tuple(self.sent.shape), generator) / zeta
        linear = 2 * self.dual_variable - self._pull(self.sent)
        shifted = linear + weight / rows * noise
        output = self._solve(truth, shifted, q + phi)
        self.loss = self.loss + dual_loss(
            self.pair,
            output,
            linear,
            loss_weight=weight,
            quadratic=q + phi,
            zeta=zeta / scale,
        )
        self.own = [output, output]
        self._send(output)

    def primal(self, alpha: float, truth: int, generator: torch.Generator, scale: float) -> None:
        rows, weight, q = self._constants()
        zeta = calibration.primal_noise(alpha, rows, weight, self.settings.rho)
        pulls = [self._pull(2 * own - self.sent) for own in self.own]  # f - e = 2 f - V
        self.own = [
            self._solve(which, 2 * self.dual_variable - pulls[which], q) for which in range(2)
        ]
        noise = scale * exponential_norm(tuple(self.sent.shape), generator) / zeta
        message = self.own[truth] + noise
        distance = [(message - own).norm(dim=-1) for own in self.own]
        self.loss = self.loss + zeta / scale * (distance[1] - distance[0])
        self._send(message)

    def _constants(self) -> tuple[int, float, float]:
        quadratic = self.settings.rho + 2 * self.settings.eta * self.neighbours
        return self.pair.x.shape[1], self.settings.loss_weight, quadratic

    def _pull(self, anchor: Tensor) -> Tensor:
        return self.settings.eta * self.neighbours * anchor  # the neighbours sent zeros

    def _solve(self, which: int, linear: Tensor, quadratic: float) -> Tensor:
        return solver.solve_step(
            self.pair.nodes(which, len(linear)),
            loss_weight=self.settings.loss_weight,
            quadratic=torch.full((1, 1, 1), quadratic, dtype=torch.float64),
            linear=linear[None],
            start=torch.zeros_like(linear)[None],
            tolerance=self.settings.tolerance,
        )[0]

    def _send(self, message: Tensor) -> None:
        self.sent = message
        change = self.settings.eta / 2 * self.neighbours * message
        self.dual_variable = self.dual_variable + change


def _hessian(
    pair: Pair, which: int, outputs: Tensor, loss_weight: float, quadratic: float
) -> Tensor:
    """(R, d, d), of C loss + q/2 ‖f‖² at each output."""
    x = pair.x[which]
    share = torch.sigmoid(outputs @ x.T)
    bend = loss_weight / len(x) * share * (1 - share)
    data = torch.einsum("rb,bi,bj->rij", bend, x, x)
    return data + quadratic * torch.eye(x.shape[1], dtype=torch.float64)
