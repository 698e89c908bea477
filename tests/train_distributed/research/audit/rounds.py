"""Exact privacy losses: of an ADMM node whose neighbours send zeros, and of a client of Charter."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tests.train_distributed.research.learning import Distance
from train_distributed.privacy.float_noise import exponential_norm
from train_distributed.research.audit.attack import epsilon_of_test, power_and_size
from train_distributed.research.rivals.admm import calibration, solver
from train_distributed.research.rivals.admm.algorithm import AdmmSettings
from train_distributed.research.rivals.admm.graph import Nodes
from train_distributed.research.rivals.charter.algorithm import Client
from train_distributed.research.rivals.charter.plan import CharterPlan


@dataclass(frozen=True, eq=False)
class Pair:
    """Two data sets of one node that differ in one record."""

    x: Tensor  # (2, B, d) float64
    y: Tensor  # (2, B) float64, ±1

    def nodes(self, which: int, replicas: int) -> Nodes:
        """Node of one data set, with as many identical problems as there are replicas."""
        x, y = self.x[which : which + 1], self.y[which : which + 1]
        return Nodes(x, y[..., None].expand(-1, -1, replicas), torch.tensor([x.shape[1]]))


def worst_pair(rows: int, angle: float) -> Pair:
    """Records y x at an angle to each other, in the plane; the other rows are zeros.

    Near π both gradients can be -y x at once, far out between the two: they differ by almost 2,
    which is the most that two records can.
    """
    x = torch.zeros(2, rows, 2, dtype=torch.float64)
    across, along = math.sin(angle / 2), math.cos(angle / 2)
    x[:, 0] = torch.tensor([[across, along], [-across, along]], dtype=torch.float64)
    return Pair(x, torch.ones(2, rows, dtype=torch.float64))


def dual_loss(
    pair: Pair, outputs: Tensor, linear: Tensor, loss_weight: float, quadratic: float, zeta: float
) -> Tensor:
    """(R,), ln p(f | first) / p(f | second) of a dual-perturbed step that sent f.

    f determines its noise, e(f) = -(B/C) (C ∇loss(f) + q f + l), with Jacobian (B/C) H(f); so
    ln p(f) = -ζ ‖e(f)‖ + ln det H(f) + constant. Outputs f and `linear`, l = 2 λ and the anchors,
    are (R, d); `loss_weight` is C, `quadratic` q = ρ + Φ + 2 η N, and `zeta` ζ.
    """
    densities = []
    for which in range(2):
        nodes = pair.nodes(which, len(outputs))
        gradient = loss_weight * solver.loss_gradient(nodes, outputs[None])[0]
        noise = (gradient + quadratic * outputs + linear) * pair.x.shape[1] / loss_weight
        x = pair.x[which]
        share = torch.sigmoid(outputs @ x.T)
        bend = loss_weight / len(x) * share * (1 - share)
        data = torch.einsum("rb,bi,bj->rij", bend, x, x)
        hessian = data + quadratic * torch.eye(x.shape[1], dtype=torch.float64)
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

    The node has so many neighbours. With a `noise_scale` below 1 it adds less noise than the
    accounting believes.
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


def epsilon_below(first: Tensor, second: Tensor, delta: float) -> float:
    """A lower bound of ε at δ, 99.9 % certain, from (R,) losses drawn under either data set.

    Its threshold is from one half of the draws, its Clopper-Pearson bounds are from the other.
    """
    halves = [losses.numpy().reshape(2, -1) for losses in (first, second)]

    def bound(half: int, cut: float) -> float:
        one, other = (each[half] > cut for each in halves)
        rates = power_and_size(int(one.sum()), one.size, int(other.sum()), other.size, 0.999)
        return epsilon_of_test(*map(float, rates), delta=delta)

    cuts = np.quantile(halves[0][0], np.linspace(0.02, 0.995, 79))
    return bound(1, max(cuts, key=lambda cut: bound(0, cut)))


def learning_losses(
    plan: CharterPlan,
    *,
    truth: int,
    replicas: int,
    generator: torch.Generator,
    noise_scale: float = 1.0,
) -> Tensor:
    """(R,) ln p(messages | +G0) / p(messages | -G0) of whole learning stages of a real client.

    All records but one have gradient zero. That one is in round k with chance t_k/n, and the noise
    is Gaussian, so the ratio is known but for the quantisation, which can only lose information.
    The plan is of one client with one number in a message; `truth` is 0 for +G0, 1 for -G0.
    """
    std = noise_scale * plan.gradient_std
    watched = replace(plan, gradient_std=std)
    x = torch.zeros(plan.task.rows, 1, dtype=torch.float64)  # gradients of ½(w - x)² at 0 are -x
    x[0] = (2 if truth else -2) * plan.gradient_clip
    labels, origin = torch.zeros(len(x), dtype=torch.int64), torch.zeros(1, 1, dtype=torch.float64)
    drawn = np.empty((replicas, plan.rounds))  # what the server decodes
    for run in drawn:
        client = Client(x, labels, watched, Distance(1), generator)
        for number in range(plan.rounds):
            run[number] = watched.gradient_encoding.mean([client.gradient(origin)], 1)[0]
    drawn *= np.array(plan.fresh) / plan.batch
    height = plan.gradient_clip / plan.batch
    shares = np.array(plan.fresh) / plan.learning_rows
    never = 1 - shares.sum()
    lift = drawn * height / std**2
    shrink = math.exp(-((height / std) ** 2) / 2)
    above = never + shrink * (np.exp(lift) @ shares)
    below = never + shrink * (np.exp(-lift) @ shares)
    return torch.from_numpy(np.log(above / below))
