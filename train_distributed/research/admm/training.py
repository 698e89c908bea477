"""A whole ADMM run and its report."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from train_distributed.research.admm import calibration, solver
from train_distributed.research.admm.algorithm import AdmmSettings, State, iterations
from train_distributed.research.admm.graph import Graph
from train_distributed.research.admm.nodes import Nodes


@dataclass(frozen=True, eq=False)
class AdmmResult:
    """The classifiers that the nodes end with, and what the run cost."""

    weights: Tensor  # (P, K, d)
    report: dict[str, Any]


def run(
    nodes: Nodes,
    graph: Graph,
    settings: AdmmSettings,
    *,
    delta: float = 1e-5,
    test: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator | None = None,
    observe: Callable[[State], None] | None = None,
    measure_risk: bool = True,
) -> AdmmResult:
    """Trains on all nodes and reports privacy, communication and accuracy.

    Args:
        nodes: the rows, one node per node of the graph.
        graph: who talks to whom.
        settings: the method and its constants.
        delta: δ of the composed guarantee.
        test: (n, d) rows and (n,) int64 classes; their accuracy is a mean over nodes.
        generator: of the noise; None draws from the operating system.
        observe: called with every state, for curves and progress.
        measure_risk: whether to report the excess risk, which needs the minimiser.

    Raises:
        ValueError: an argument outside its range.
    """
    private = settings.method != "none"
    cost = account(settings, nodes.shape[1], delta) if private else {"privacy": "not private"}
    began, bits, state = time.perf_counter(), 0, None
    for state in iterations(nodes, graph, settings, generator):
        bits += 8 * state.sent[0].nbytes
        if observe is not None:
            observe(state)
    assert state is not None
    weights, seconds = state.sent, time.perf_counter() - began
    report: dict[str, Any] = {
        "configuration": asdict(settings) | {"nodes": graph.nodes, "edges": len(graph.edges)},
        **cost,
        "noise": "float" if private else "none",
        "reproducible": generator is not None,
        "unsuitable_for_release": "floating-point noise" if private else "not private",
        "rounds": settings.iterations,
        "bits_per_edge": 2 * bits,  # one message each way
        "bits_per_user": bits * float(graph.degrees.mean()),
        "simulation_only": {"seconds": seconds},
    }
    if measure_risk:
        report["simulation_only"]["excess_risk"] = excess_risk(nodes, settings, weights)
    if test is not None:
        report["accuracy"] = float(accuracy(weights, *test).mean())
    return AdmmResult(weights, report)


def account(settings: AdmmSettings, problems: int, delta: float) -> dict[str, Any]:
    """Per-iteration and composed privacy of a run with K one-vs-rest problems.

    One record takes part in all problems, so an iteration costs K α(t).
    """
    alphas = [calibration.charged(alpha, settings.tolerance) for alpha in settings.alphas]
    composed = calibration.compose(problems * alphas, delta)
    return {
        "neighbours": "one record of one node replaced",
        "alpha_per_problem_and_iteration": max(alphas),
        "epsilon_per_iteration": problems * max(alphas),
        "epsilon_composed_pure": composed.pure,
        "epsilon_composed": composed.epsilon,
        "delta": delta,
    }


def accuracy(weights: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """(P,), share of rows that each node's classifier (P, K, d) labels rightly; K = 1 is binary."""
    scores = torch.einsum("pkd,nd->pnk", weights, x.double())
    guess = (scores[..., 0] > 0).long() if weights.shape[1] == 1 else scores.argmax(-1)
    return (guess == labels).double().mean(1)


def excess_risk(nodes: Nodes, settings: AdmmSettings, weights: Tensor) -> float:
    """Mean over p of Z_p at the nodes' mean classifier, over the least possible; summed over K."""

    def risk(f: Tensor) -> float:
        everywhere = solver.loss(nodes, f.expand(nodes.shape)).mean(0)
        penalty = settings.rho / 2 * f.square().sum(-1)
        return float((settings.loss_weight * everywhere + penalty).sum())

    best = solver.consensus_optimum(nodes, loss_weight=settings.loss_weight, rho=settings.rho)
    return risk(weights.mean(0)) - risk(best)
