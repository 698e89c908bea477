"""A whole ADMM run and its costs."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from train_distributed.research.admm import calibration, solver
from train_distributed.research.admm.algorithm import AdmmSettings, Network
from train_distributed.research.admm.nodes import Nodes


@dataclass(frozen=True, eq=False)
class AdmmResult:
    """The classifiers that the nodes end with, and the costs of the run."""

    weights: Tensor  # (P, K, d)
    report: dict[str, Any]


def run(
    network: Network,
    *,
    delta: float = 1e-5,
    generator: torch.Generator | None = None,
    measure_risk: bool = True,
) -> AdmmResult:
    """Trains on all nodes and reports privacy and communication.

    Args:
        network: nodes, graph and method.
        delta: δ of the composed guarantee.
        generator: of the noise; None draws from the operating system.
        measure_risk: whether to report the excess risk, which needs the minimiser.

    Raises:
        ValueError: an argument outside its range.
    """
    began, bits, state = time.perf_counter(), 0, None
    nodes, settings = network.nodes, network.settings
    for state in network.iterations(generator):
        bits += 8 * state.sent[0].nbytes
    assert state is not None
    weights, seconds = state.sent, time.perf_counter() - began
    private = settings.method != "none"
    report: dict[str, Any] = account(settings, nodes.shape[1], delta) if private else {}
    report |= {
        "rounds": settings.iterations,
        "bits_per_edge": 2 * bits,  # one message each way
        "bits_per_user": bits * float(network.graph.degrees.mean()),
        "simulation_only": {"seconds": seconds},
    }
    if measure_risk:
        report["simulation_only"]["excess_risk"] = excess_risk(nodes, settings, weights)
    return AdmmResult(weights, report)


def account(settings: AdmmSettings, problems: int, delta: float) -> dict[str, Any]:
    """Per-iteration and composed privacy of a run with K one-vs-rest problems.

    One record takes part in all problems, so an iteration costs K α(t).
    """
    alphas = [calibration.charged(alpha, settings.tolerance) for alpha in settings.alphas]
    composed = calibration.compose(problems * alphas, delta)
    return {
        "alpha_per_problem_and_iteration": max(alphas),
        "epsilon_per_iteration": problems * max(alphas),
        "epsilon_composed_pure": composed.pure,
        "epsilon_composed": composed.epsilon,
    }


def excess_risk(nodes: Nodes, settings: AdmmSettings, weights: Tensor) -> float:
    """Mean over p of Z_p at the nodes' mean classifier, over the least possible; summed over K."""

    def risk(f: Tensor) -> float:
        everywhere = solver.loss(nodes, f.expand(nodes.shape)).mean(0)
        penalty = settings.rho / 2 * f.square().sum(-1)
        return float((settings.loss_weight * everywhere + penalty).sum())

    best = solver.consensus_optimum(nodes, loss_weight=settings.loss_weight, rho=settings.rho)
    return risk(weights.mean(0)) - risk(best)
