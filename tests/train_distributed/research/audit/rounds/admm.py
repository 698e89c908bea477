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
from train_distributed.research.rivals.admm import calibration, solver
from train_distributed.research.rivals.admm.algorithm import AdmmSettings
from train_distributed.research.rivals.admm.graph import Nodes


@dataclass(frozen=True, eq=False)
class Pair:
    """Two data sets of one node that differ in one record."""

    x: Tensor  # (2, B, d) float64
    y: Tensor  # (2, B) float64, ±1

    def nodes(self, which: int, replicas: int) -> Nodes:
        """Node of one data set, with as many identical problems as there are replicas."""
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
        settings: the method, its constants and α.
        neighbours: N of the node.
        truth: 0 or 1, the data set that the node holds.
        replicas: R, independent runs.
        generator: of the noise.
        noise_scale: below 1 adds less noise than the accounting believes (the mutation).
    """
    rows, weight, alpha = pair.x.shape[1], settings.loss_weight, settings.alpha
    pull = settings.eta * neighbours  # the neighbours sent zeros
    q = settings.rho + 2 * pull
    zero = torch.zeros(replicas, pair.x.shape[2], dtype=torch.float64)
    loss, sent, dual = zero[:, 0], zero, zero
    own = [zero, zero]  # both data sets' hidden states that explain the messages so far

    def solve(which: int, linear: Tensor, quadratic: float) -> Tensor:
        return solver.solve_step(
            pair.nodes(which, replicas),
            loss_weight=weight,
            quadratic=torch.full((1, 1, 1), quadratic, dtype=torch.float64),
            linear=linear[None],
            start=torch.zeros_like(linear)[None],
            tolerance=settings.tolerance,
        )[0]

    for t in range(settings.iterations):
        if settings.method == "dvp" or t == settings.iterations - 1:
            zeta, phi = calibration.dual_noise(alpha, rows, weight, q)
            noise = noise_scale * exponential_norm(tuple(zero.shape), generator) / zeta
            linear = 2 * dual - pull * sent
            sent = solve(truth, linear + weight / rows * noise, q + phi)
            terms = {"loss_weight": weight, "quadratic": q + phi, "zeta": zeta / noise_scale}
            loss = loss + dual_loss(pair, sent, linear, **terms)
        else:
            zeta = calibration.primal_noise(alpha, rows, weight, settings.rho)
            linears = [2 * dual - pull * (2 * mine - sent) for mine in own]  # f - e = 2 f - V
            own = [solve(which, linear, q) for which, linear in enumerate(linears)]
            sent = own[truth] + noise_scale * exponential_norm(tuple(zero.shape), generator) / zeta
            distance = [(sent - mine).norm(dim=-1) for mine in own]
            loss = loss + zeta / noise_scale * (distance[1] - distance[0])
        dual = dual + pull / 2 * sent
    return loss


def _hessian(
    pair: Pair, which: int, outputs: Tensor, loss_weight: float, quadratic: float
) -> Tensor:
    """(R, d, d), of C loss + q/2 ‖f‖² at each output."""
    x = pair.x[which]
    share = torch.sigmoid(outputs @ x.T)
    bend = loss_weight / len(x) * share * (1 - share)
    data = torch.einsum("rb,bi,bj->rij", bend, x, x)
    return data + quadratic * torch.eye(x.shape[1], dtype=torch.float64)
