"""ADMM against its limit, against the paper's listing written out, and its graphs."""

import itertools

import numpy as np
import pytest
import scipy.optimize
import torch

from train_distributed import partition
from train_distributed.privacy.float_noise import exponential_norm
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


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_nodes(count=9, rows=30, dimension=5, problems=2, seed=0):
    draw = generator(seed)
    x = torch.randn(count, rows, dimension, generator=draw, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True).clamp(min=1)
    truth = torch.randn(dimension, problems, generator=draw, dtype=torch.float64)
    y = torch.sign(x @ truth + 0.3 * torch.randn(count, rows, problems, generator=draw))
    counts = torch.randint(rows // 2, rows + 1, (count,), generator=draw)
    x = torch.where((torch.arange(rows) < counts[:, None])[..., None], x, 0.0)
    return Nodes(x, y, counts)


GRID = (*((i, i + 1) for i in range(9) if i % 3 < 2), *((i, i + 3) for i in range(6)))  # 3 x 3
GRAPHS = {
    "ring": ring(9),
    "star": star(9),
    "grid": Graph(9, GRID),
    "regular": random_regular(9, 4, generator(1)),
}


def scipy_optimum(nodes, problem, rho):
    """argmin Σ_p Z_p by L-BFGS on the plain sum over rows."""

    def objective(f):
        total, slope = 0.0, np.zeros_like(f)
        for x, y, count in zip(nodes.x, nodes.y[..., problem], nodes.counts, strict=True):
            x, y = x[:count].numpy(), y[:count].numpy()
            margin = y * (x @ f)
            total += np.logaddexp(0, -margin).mean() + rho / 2 * f @ f
            slope += -(y / (1 + np.exp(margin))) @ x / len(y) + rho * f
        return total, slope

    start = np.zeros(nodes.x.shape[2])
    return scipy_minimum(objective, start)


def scipy_minimum(objective, start):
    options = {"ftol": 1e-17, "gtol": 1e-11, "maxiter": 5000, "maxcor": 30}
    return scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("name", GRAPHS)
def test_without_noise_every_node_reaches_the_optimum_of_the_sum(name):
    nodes, rho = random_nodes(), 0.05
    run = AdmmSettings(method="none", iterations=300, rho=rho, eta=0.1)
    *_, final = Network(nodes, GRAPHS[name], run).iterations(None)
    for problem in range(2):
        expected = torch.from_numpy(scipy_optimum(nodes, problem, rho))
        assert (final.own[:, problem] - expected).norm(dim=-1).max() < 1e-6


def naive_step(nodes, graph, run, noise, node, own, before, sent, dual, last):
    """(10) of one node, as the listings of Algorithms 2 and 3 write it, by SciPy."""
    x, count = nodes.x[node, : nodes.counts[node]], int(nodes.counts[node])
    y, weight = nodes.y[node, :count, 0], run.loss_weight / count
    neighbours = [a + b - node for a, b in graph.edges if node in (a, b)]
    perturbed = run.method == "dvp" or last
    curvature = run.rho + 2 * run.eta * len(neighbours)
    phi = (
        calibration.dual_noise(run.alpha, count, run.loss_weight, curvature)[1] if perturbed else 0
    )
    mu = dual[node] + (weight / 2 * noise[node] if perturbed else 0)
    mine = sent[node] if perturbed else own[node] - before[node]
    anchors = [(mine + sent[other]) / 2 for other in neighbours]

    def objective(f):
        f = torch.tensor(f, requires_grad=True)
        value = weight * torch.nn.functional.softplus(-y * (x @ f)).sum()
        value = value + (run.rho + phi) / 2 * (f @ f) + 2 * mu @ f
        value = value + run.eta * sum((f - anchor).square().sum() for anchor in anchors)
        return value.item(), torch.autograd.grad(value, f)[0].numpy()

    return torch.from_numpy(scipy_minimum(objective, np.zeros(x.shape[1])))


@pytest.mark.parametrize("method", ["dvp", "pvp"])
@pytest.mark.parametrize("alpha", [0.05, 2.0])
def test_the_iterates_are_those_of_the_listing(method, alpha):
    nodes, graph = random_nodes(count=4, rows=12, dimension=3, problems=1), star(4)
    run = AdmmSettings(method=method, iterations=3, rho=0.3, eta=0.2, loss_weight=2.0, alpha=alpha)
    draw, zeros = generator(5), torch.zeros(4, 3, dtype=torch.float64)
    own, before, sent, dual = zeros, zeros, zeros, zeros
    for state in Network(nodes, graph, run).iterations(generator(5)):
        last = state.iteration == run.iterations
        perturbed = method == "dvp" or last
        noise = exponential_norm((4, 1, 3), draw)[:, 0]
        for node in range(4):
            count = int(nodes.counts[node])
            curvature = run.rho + 2 * run.eta * float(graph.degrees[node])
            zeta = (
                calibration.dual_noise(alpha, count, run.loss_weight, curvature)[0]
                if perturbed
                else calibration.primal_noise(alpha, count, run.loss_weight, run.rho)
            )
            noise[node] /= zeta
        own = torch.stack(
            [
                naive_step(nodes, graph, run, noise, node, own, before, sent, dual, last)
                for node in range(4)
            ]
        )
        before = zeros if perturbed else noise
        sent = own + before
        dual = dual.clone()
        for a, b in graph.edges:
            dual[a] += run.eta / 2 * (sent[a] - sent[b])
            dual[b] += run.eta / 2 * (sent[b] - sent[a])
        assert torch.allclose(state.sent[:, 0], sent, rtol=1e-6, atol=1e-6)
        assert torch.allclose(state.dual[:, 0], dual, rtol=1e-6, atol=1e-6)


def test_shares_are_as_good_as_runs_of_their_own():
    nodes, graph = random_nodes(count=4, rows=12, dimension=3, problems=2), star(4)
    constants = {"method": "dvp", "iterations": 3, "rho": 0.01, "eta": 0.02}
    run = Network(nodes, graph, AdmmSettings(**constants, alpha=1.0))
    together = run.iterations(generator(), shares=torch.tensor([0.1, 2.0]))
    for problem, alpha in enumerate((0.1, 2.0)):
        settings = AdmmSettings(**constants, alpha=alpha)
        alone = Network(nodes, graph, settings).iterations(generator())
        together, copy = itertools.tee(together)
        for both, one in zip(copy, alone, strict=True):
            assert torch.allclose(both.sent[:, problem], one.sent[:, problem])
    for wrong in ([0.0, 1.0], [1.0]):
        with pytest.raises(ValueError, match="shares must be"):
            run.iterations(None, shares=torch.tensor(wrong))


def test_a_tolerance_below_rounding_is_an_error_and_not_a_release():
    with pytest.raises(ArithmeticError, match="gradient norm"):
        solver.accelerate(
            lambda f: torch.tensor([1.0, 3.0, 1e3]) * f + 1 / 3,
            torch.ones(1, 3, dtype=torch.float64),
            strong=torch.tensor(1.0, dtype=torch.float64),
            smooth=torch.tensor(1e3, dtype=torch.float64),
            tolerance=torch.tensor(1e-100, dtype=torch.float64),
        )


def test_a_graph_says_who_talks_to_whom():
    assert ring(3).degrees.tolist() == [2, 2, 2]
    assert star(4).degrees.tolist() == [3, 1, 1, 1]
    for nodes, degree, seed in itertools.product((7, 12, 20), (2, 4, 6), range(3)):
        assert (random_regular(nodes, degree, generator(seed)).degrees == degree).all()
    values = torch.randn(4, 2, 3, dtype=torch.float64)
    assert torch.allclose(star(4).neighbour_sum(values)[0], values[1:].sum(0))
    assert torch.equal(star(4).neighbour_sum(values)[3], values[0])


def test_nodes_are_gathered_from_a_partition():
    x = torch.arange(12.0).reshape(6, 2) / 20
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    users = partition.split(labels, 2, sizes=torch.tensor([4, 2]))
    nodes = gather(x, labels, users, 3)
    assert nodes.counts.tolist() == [4, 2]
    assert torch.equal(nodes.x[1], torch.cat([x[4:], torch.zeros(2, 2)]).double())
    assert nodes.y[0].tolist() == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, -1, -1]]
    assert gather(x, labels % 2, users, 2).y[0].tolist() == [[-1], [1], [-1], [-1]]


def settings(**changes):
    return AdmmSettings(**{"method": "none", "iterations": 1, "rho": 1, "eta": 1} | changes)


def filled(x, y, counts, nodes=None):
    shape = (len(counts), 1, 1)
    rows = torch.full((nodes or len(counts), 1, 1), x)
    return Nodes(rows, torch.full(shape, y), torch.tensor(counts))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: filled(0.0, 1.0, [1, 0]), "node 1 must hold a row"),
        (lambda: filled(0.0, 0.0, [1]), r"labels must be -1 or \+1"),
        (lambda: filled(1.1, 1.0, [1]), "rows must be finite with norm <= 1"),
        (lambda: filled(torch.nan, 1.0, [1]), "rows must be finite with norm <= 1"),
        (lambda: filled(0.0, 1.0, [1], nodes=2), "x, y, counts must agree"),
        (lambda: settings(method="adm"), "method must be one of"),
        (lambda: settings(rho=0.0), "rho must be finite and > 0"),
        (lambda: settings(method="dvp"), r"alpha must be in \(0, inf\)"),
        (lambda: settings(method="dvp", alpha=-1.0), r"alpha must be in \(0, inf\)"),
        (lambda: Network(random_nodes(), ring(4), settings()), "nodes_of_graph must be 9"),
        (lambda: Graph(4, ((0, 1), (2, 3))), "graph must be connected"),
        (lambda: Graph(2, ()), "graph must be connected"),
        (lambda: Graph(1, ()), "nodes must be >= 2"),
        (lambda: Graph(2, ((1, 1),)), r"edges must join two of 2 nodes"),
        (lambda: Graph(2, ((0, 1), (1, 0))), r"edges must be distinct"),
        (lambda: ring(2), "nodes must be >= 3"),
        (lambda: random_regular(5, 3, generator()), r"degree must be in \[2"),
        (lambda: random_regular(4, 4, generator()), r"degree must be in \[2"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
