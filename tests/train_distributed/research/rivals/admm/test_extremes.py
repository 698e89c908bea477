"""ADMM over extreme scales: steps solved to what is charged, hidden states that move no further."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from train_distributed import partition
from train_distributed.one_shot.registry import MANY_ROUNDS
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.admm import algorithm, calibration
from train_distributed.research.rivals.admm.algorithm import AdmmSettings, Network
from train_distributed.research.rivals.admm.graph import Nodes, ring
from train_distributed.research.rivals.common import UserRows
from train_distributed.research.rivals.learn import learn_rows
from train_distributed.research.rivals.options import OPTIONS

U = np.longdouble


def networks(case):
    """Settings and two sets of nodes that differ in one record of node 0."""
    d, rows = case.whole(1, 8), case.whole(1, 12)
    problems = case.whole(1, 3)
    settings = AdmmSettings(
        method=case.draw.choice(("dvp", "pvp")),
        iterations=case.whole(1, 5),
        rho=case.scale(),
        eta=case.scale(),
        loss_weight=case.scale(),
        alpha=case.scale(),
        tolerance=case.draw.choice((1e-9, 1e-9, 1e-12, 1e-6)),
    )
    x = torch.stack([case.rows(rows, d, 1.0) for _ in range(3)])
    y = torch.randint(2, (3, rows, problems), generator=case.generator()).double() * 2 - 1
    counts = torch.full((3,), rows)
    other = x.clone(), y.clone()
    label = torch.zeros(rows, dtype=torch.int64)
    moved, flipped = case.neighbour(x[0], label, 2, 1.0)
    other[0][0], other[1][0] = moved, y[0] * (1 - 2 * flipped[:, None])
    return settings, Nodes(x, y, counts), Nodes(*other, counts)


def left_over(nodes, graph, settings, state, after, shift, phi):
    """‖∇‖ B/C of node 0's perturbed problem at what it sent, in extended precision."""
    wide = [t[0].numpy().astype(U) for t in (state.dual, state.sent, after.own, shift, phi)]
    dual, sent, own, shift, phi = wide
    x, y = nodes.x[0].numpy().astype(U), nodes.y[0].numpy().astype(U)
    share = 1 / (1 + np.exp(np.clip(y * (x @ own.T), -11000, 11000)))
    degree = U(float(graph.degrees[0]))
    around = degree * sent + graph.neighbour_sum(state.sent)[0].numpy().astype(U)
    gradient = -settings.loss_weight * (y * share).T @ x / len(x)
    gradient += (settings.rho + phi + 2 * settings.eta * degree) * own
    gradient += 2 * (dual + shift) - settings.eta * around
    return float(np.linalg.norm(gradient, axis=1).max()) * len(x) / settings.loss_weight


def dual_run(settings, nodes, generator):
    """The largest remainder of all steps."""
    graph, worst = ring(3), 0.0
    state = algorithm.AdmmState.zero(nodes)
    for _ in range(settings.iterations):
        alphas = torch.full((nodes.shape[1],), settings.alpha, dtype=torch.float64)
        kept = generator.get_state()
        after = Network(nodes, graph, settings).dual_step(state, alphas, generator)
        generator.set_state(kept)
        curvature = settings.rho + 2 * settings.eta * 2.0
        rows, weight = nodes.x.shape[1], settings.loss_weight
        zeta, phi = calibration.dual_noise(settings.alpha, rows, weight, curvature)
        noise = algorithm.exponential_norm(nodes.shape, generator) / zeta
        shift = settings.loss_weight / (2 * nodes.sizes) * noise
        phis = torch.full((len(nodes.x), 1, 1), phi, dtype=torch.float64)
        worst = max(worst, left_over(nodes, graph, settings, state, after, shift, phis))
        state = after
    assert bool(torch.isfinite(state.sent).all())
    return worst


def primal_run(settings, nodes, other, generator):
    """The largest distance of node 0's two hidden states, given what has been sent."""
    graph, worst = ring(3), 0.0
    network = Network(nodes, graph, settings)
    state = hidden = algorithm.AdmmState.zero(nodes)
    alphas = torch.full((nodes.shape[1],), settings.alpha, dtype=torch.float64)
    for _ in range(settings.iterations):
        after = network.primal_step(state, alphas, generator)
        anchor = hidden.own - hidden.noise
        found = replace(network, nodes=other)._advance(hidden, anchor=anchor)
        distance = (after.own - found.own)[0].norm(dim=1).max()
        worst = max(worst, float(distance))
        state = after
        own = after.own.clone()
        own[0] = found.own[0]
        hidden = replace(after, own=own, noise=after.sent - own)
    assert bool(torch.isfinite(state.sent).all())
    return worst


def check(case):
    settings, nodes, other = networks(case)
    slack = calibration.charged(1.0, settings.tolerance) - 1
    generator = case.generator()
    if settings.method == "dvp":
        assert dual_run(settings, nodes, generator) <= slack
    else:
        rows = nodes.x.shape[1]
        claimed = 2 * settings.loss_weight / rows / settings.rho * (1 + slack)
        assert primal_run(settings, nodes, other, generator) <= claimed


@pytest.mark.parametrize(
    "count", [60, pytest.param(6000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_step_is_further_from_its_problem_than_is_charged(count, held):
    held("admm", count, check)


def check_learner(case):
    """Any promise and scale through the learners of many rounds: finite, or refused by name."""
    name = case.draw.choice(list(MANY_ROUNDS))
    classes, clip = case.whole(2, 3), case.scale()
    x = case.rows(40, 3, clip)
    y = torch.randint(classes, (40,), generator=case.generator())
    if "charter" in name:
        options = {"cut_rounds": case.whole(1, 3), "half_width": case.scale()}
    else:
        options = {"iterations": case.whole(1, 6), "rho": case.scale(), "eta": case.scale()}
    weights, _ = learn_rows(
        UserRows(x, y, partition.split(y, 3), classes, clip),
        name,
        Privacy(case.scale(), case.scale(-12, -0.01)),
        OPTIONS[name](**options),
        case.generator(),
        measure_risk=case.draw.random() < 0.5,
    )
    assert bool(weights.isfinite().all())


@pytest.mark.parametrize(
    "count", [10, pytest.param(600, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_learners_of_many_rounds_end_or_say_why_not(count, held):
    held("rounds", count, check_learner)
