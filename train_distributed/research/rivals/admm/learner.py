"""ADMM as a learner: nodes are users, all messages together spend the promised ε."""

import math
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train_distributed.privacy.float_noise import system_generator
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.admm import calibration, solver
from train_distributed.research.rivals.admm.algorithm import AdmmSettings, Network
from train_distributed.research.rivals.admm.graph import (
    Graph,
    Nodes,
    gather,
    random_regular,
    ring,
    star,
)
from train_distributed.research.rivals.common import UserRows, as_columns, excess
from train_distributed.research.rivals.options import AdmmOptions

VARIANTS = {"admm-dual": "dvp", "admm-primal": "pvp"}
TOLERANCE = 1e-9  # of a step, in units of C/B


def settings(options: AdmmOptions, method: str, alpha: float) -> AdmmSettings:
    """Settings of a run in which every message spends α."""
    shared = ("iterations", "rho", "eta", "loss_weight")
    constants = {name: getattr(options, name) for name in shared}
    return AdmmSettings(method=method, alpha=alpha, tolerance=TOLERANCE, **constants)


def connect(options: AdmmOptions, users: int, generator: torch.Generator | None) -> Graph:
    """The graph of these users; a random one is public.

    Raises:
        ValueError: a graph in pieces, or not of these users.
    """
    if options.edges is not None:
        return _listed(options.edges, users)
    if options.graph == "star":
        return star(users)
    if options.graph == "ring":
        return ring(users)
    if users <= options.degree + 1:
        return Graph(users, tuple(combinations(range(users), 2)))
    return random_regular(users, options.degree, generator or system_generator())


def learn_by_admm(
    rows: UserRows,
    method: str,
    privacy: Privacy,
    options: AdmmOptions,
    generator: torch.Generator | None,
    measure_risk: bool,
) -> tuple[Tensor, dict[str, Any]]:
    """(d, K) mean of the messages that all nodes sent last, and their costs.

    α of a message is the largest with which all T K messages of a node compose to (ε, δ).

    Args:
        rows: of all users, in the clear: a simulation of the network on one machine.
        method: "admm-dual" or "admm-primal".
        privacy: of everything that a node's neighbours ever see.
        options: graph and constants.
        generator: of graph and noise; None draws from the operating system.
        measure_risk: whether to find the excess risk.

    Raises:
        ValueError: constants out of range, a graph in pieces.
    """
    graph = connect(options, rows.users.users, generator)
    messages = options.iterations * rows.problems
    alpha = math.inf
    if privacy.private:
        alpha = calibration.largest_alpha(privacy.epsilon, privacy.delta, messages, TOLERANCE)
    constants = settings(options, VARIANTS[method] if privacy.private else "none", alpha)
    nodes = gather(rows.x / rows.clip_norm, rows.y, rows.users, rows.num_classes)
    network = Network(nodes, graph, constants)
    sent, report = run(network, privacy.delta, generator, measure_risk=measure_risk)
    report["who_sees_what"] = "neighbours see every message of a user"
    return as_columns(sent.mean(0) / rows.clip_norm), report


def run(
    network: Network, delta: float, generator: torch.Generator | None, *, measure_risk: bool
) -> tuple[Tensor, dict[str, Any]]:
    """(P, K, d) classifiers that the nodes end with; privacy and communication of the run.

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
    seconds = time.perf_counter() - began
    report = {} if settings.method == "none" else account(settings, nodes.shape[1], delta)
    report |= {
        "rounds": settings.iterations,
        "bits_per_edge": 2 * bits,  # one message each way
        "bits_per_user": bits * float(network.graph.degrees.mean()),
        "simulation_only": {"seconds": seconds},
    }
    if measure_risk:
        report["simulation_only"]["excess_risk"] = excess_risk(nodes, settings, state.sent)
    return state.sent, report


def account(settings: AdmmSettings, problems: int, delta: float) -> dict[str, Any]:
    """Per-iteration and composed privacy of a run with K one-vs-rest problems.

    One record takes part in all problems, so an iteration costs K α.
    """
    alpha = calibration.charged(settings.alpha, settings.tolerance)
    composed = calibration.compose(alpha, problems * settings.iterations, delta)
    return {
        "alpha_per_problem_and_iteration": alpha,
        "epsilon_per_iteration": problems * alpha,
        "epsilon_composed_pure": composed.pure,
        "epsilon_composed": composed.epsilon,
    }


def excess_risk(nodes: Nodes, settings: AdmmSettings, weights: Tensor) -> float:
    """Mean over p of Z_p at the nodes' mean classifier, over the least possible; summed over K."""

    def risk(f: Tensor) -> Tensor:
        everywhere = solver.loss(nodes, f.expand(nodes.shape)).mean(0)
        penalty = settings.rho / 2 * f.square().sum(-1)
        return (settings.loss_weight * everywhere + penalty).sum()

    return excess(risk, weights.mean(0), ftol=1e-16, gtol=1e-10, maxiter=10_000)


def _listed(path: Path, users: int) -> Graph:
    edges = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if words and not (len(words) == 2 and all(word.isdecimal() for word in words)):
            raise ValueError(f"edges must be two numbers a line, got {line!r} in line {number}")
        edges += [(int(words[0]), int(words[1]))] if words else []
    return Graph(users, tuple(edges))
