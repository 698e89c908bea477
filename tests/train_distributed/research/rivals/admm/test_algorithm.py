"""ADMM against the paper's listing; audits that know its noise; rows of UCI Adult."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

from tests.benchmarks.rivals import read_adult
from tests.train_distributed.research.audit import rounds as audit
from train_distributed import partition
from train_distributed.privacy.float_noise import exponential_norm
from train_distributed.research.rivals.admm import calibration, graph, solver
from train_distributed.research.rivals.admm.algorithm import AdmmSettings, Network
from train_distributed.research.rivals.admm.graph import Graph, Nodes, random_regular, ring, star


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_nodes(count=4, rows=12, dimension=3):
    draw = generator()
    x = torch.randn(count, rows, dimension, generator=draw, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True).clamp(min=1)
    truth = torch.randn(dimension, 1, generator=draw, dtype=torch.float64)
    y = torch.sign(x @ truth + 0.3 * torch.randn(count, rows, 1, generator=draw))
    counts = torch.randint(rows // 2, rows + 1, (count,), generator=draw)
    x = torch.where((torch.arange(rows) < counts[:, None])[..., None], x, 0.0)
    return Nodes(x, y, counts)


def naive_step(nodes, graph, run, node, last, noise, own, before, sent, dual):
    """(10) of one node, as the listings of Algorithms 2 and 3 write it, by SciPy."""
    x, count = nodes.x[node, : nodes.counts[node]], int(nodes.counts[node])
    y, weight = nodes.y[node, :count, 0], run.loss_weight / count
    neighbours = [a + b - node for a, b in graph.edges if node in (a, b)]
    perturbed = run.method == "dvp" or (run.method == "pvp" and last)
    curvature = run.rho + 2 * run.eta * len(neighbours)
    _, phi = calibration.dual_noise(run.alpha, count, run.loss_weight, curvature)
    phi = phi if perturbed else 0
    mu = dual[node] + (weight / 2 * noise[node] if perturbed else 0)
    mine = sent[node] if perturbed else own[node] - before[node]
    anchors = [(mine + sent[other]) / 2 for other in neighbours]

    def objective(f):
        f = torch.tensor(f, requires_grad=True)
        value = weight * torch.nn.functional.softplus(-y * (x @ f)).sum()
        value = value + (run.rho + phi) / 2 * (f @ f) + 2 * mu @ f
        value = value + run.eta * sum((f - anchor).square().sum() for anchor in anchors)
        return value.item(), torch.autograd.grad(value, f)[0].numpy()

    options = {"ftol": 1e-17, "gtol": 1e-11, "maxiter": 5000, "maxcor": 30}
    given = {"jac": True, "method": "L-BFGS-B", "options": options}
    return torch.from_numpy(scipy.optimize.minimize(objective, np.zeros(x.shape[1]), **given).x)


PATH = Graph(4, ((0, 1), (1, 2), (2, 3)))


@pytest.mark.parametrize("graph", [star(4), ring(4), PATH, random_regular(4, 2, generator())])
@pytest.mark.parametrize(
    ("method", "alpha"), [("dvp", 0.05), ("dvp", 2.0), ("pvp", 0.05), ("pvp", 2.0), ("none", 1.0)]
)
def test_the_iterates_are_those_of_the_listing(method, alpha, graph):
    nodes = random_nodes()
    run = AdmmSettings(method=method, iterations=3, rho=0.3, eta=0.2, loss_weight=2.0, alpha=alpha)
    draw, zeros = generator(5), torch.zeros(4, 3, dtype=torch.float64)
    own, before, sent, dual = zeros, zeros, zeros, zeros
    for state in Network(nodes, graph, run).iterations(generator(5)):
        last = state.iteration == run.iterations
        perturbed = method == "dvp" or (method == "pvp" and last)
        noise = zeros if method == "none" else exponential_norm((4, 1, 3), draw)[:, 0]
        for node, count in enumerate(nodes.counts.tolist()):
            curvature = run.rho + 2 * run.eta * float(graph.degrees[node])
            if perturbed:
                noise[node] /= calibration.dual_noise(alpha, count, run.loss_weight, curvature)[0]
            else:
                noise[node] /= calibration.primal_noise(alpha, count, run.loss_weight, run.rho)
        before_step = (noise, own, before, sent, dual)
        steps = [naive_step(nodes, graph, run, node, last, *before_step) for node in range(4)]
        own = torch.stack(steps)
        before = zeros if perturbed else noise
        sent = own + before
        dual = dual.clone()
        for a, b in graph.edges:
            dual[a] += run.eta / 2 * (sent[a] - sent[b])
            dual[b] += run.eta / 2 * (sent[b] - sent[a])
        assert torch.allclose(state.sent[:, 0], sent, rtol=1e-6, atol=1e-6)
        assert torch.allclose(state.dual[:, 0], dual, rtol=1e-6, atol=1e-6)


def test_a_tolerance_below_rounding_is_an_error_and_not_a_release():
    given = {"strong": 1.0, "smooth": 1e3, "tolerance": 1e-100}
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in given.items()}
    slopes = torch.tensor([1.0, 3.0, 1e3])
    for start, says in ((1.0, "gradient norm"), (math.inf, "gradients must be finite")):
        begin = torch.full((1, 3), start, dtype=torch.float64)
        with pytest.raises(ArithmeticError, match=says):
            solver.accelerate(lambda f: slopes * f + 1 / 3, begin, **given)


def test_a_step_that_float64_cannot_resolve_is_refused():
    """A linear term of 1e12 hides a gradient of 1e-4, far more than is charged."""
    x, zero = torch.eye(2, dtype=torch.float64)[None], torch.zeros(1, 1, 2, dtype=torch.float64)
    nodes = Nodes(x, torch.ones(1, 2, 1, dtype=torch.float64), torch.tensor([2]))
    given = {"quadratic": torch.full((1, 1, 1), 1.0).double(), "tolerance": 1e-9}

    def solve(size: float, loss_weight: float = 1.0, start: float = 0.0) -> torch.Tensor:
        given["start"] = zero + start
        return solver.solve_step(nodes, loss_weight=loss_weight, linear=zero + size, **given)

    assert bool(solve(100.0).isfinite().all())
    far, near = (solve(0.0, 1e4, start) for start in (100.0, 0.0))  # Newton's step is too long
    assert torch.allclose(far, near, rtol=0, atol=2 * 1e4 / 2 * 1e-9)  # gradients of C/B τ each
    with pytest.raises(ArithmeticError, match="rounding of a step must be at most"):
        solve(1e12)
    assert calibration.charged(1.0, 1e-9) >= 1 + 1e-9 + calibration.ROUNDING
    with pytest.raises(ValueError, match=r"loss_weight / .* must be below 1e.08"):
        solve(0.0, loss_weight=1e12)


def test_nodes_are_gathered_from_a_partition():
    x = torch.arange(12.0).reshape(6, 2) / 20
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    users = partition.split(labels, 2, sizes=torch.tensor([4, 2]))
    nodes = graph.gather(x, labels, users, 3)
    assert nodes.counts.tolist() == [4, 2]
    assert torch.equal(nodes.x[1], torch.cat([x[4:], torch.zeros(2, 2)]).double())
    assert nodes.y[0].tolist() == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, -1, -1]]
    assert graph.gather(x, labels % 2, users, 2).y[0].tolist() == [[-1], [1], [-1], [-1]]


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
        (lambda: filled(0.0, 1.0, [1], nodes=2), "x, y, counts must agree"),
        (lambda: settings(method="adm"), "method must be one of"),
        (lambda: settings(rho=0.0), "rho must be finite and > 0"),
        (lambda: settings(method="dvp", alpha=-1.0), r"alpha must be in \(0, inf\)"),
        (lambda: Network(random_nodes(), ring(5), settings()), "nodes_of_graph must be 4"),
        (lambda: Graph(4, ((0, 1), (2, 3))), "graph must be connected"),
        (lambda: Graph(1, ()), "nodes must be >= 2"),
        (lambda: Graph(2, ((1, 1),)), r"edges must join two of 2 nodes"),
        (lambda: Graph(2, ((0, 1), (1, 0))), r"edges must be distinct"),
        (lambda: ring(2), "nodes must be >= 3"),
        (lambda: random_regular(5, 3, generator()), r"degree must be in \[2"),
        (lambda: calibration.compose(1.0, 1, 0), r"delta must be in \(0, 1\)"),
        (lambda: calibration.compose(1.0, 0, 1e-5), "messages must be >= 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_noise_rates_by_hand():
    # B/C (ρ + 2ηN) = 100 · .45 = 45;  α̂ = 1 - 2 ln(1 + .25/45) = .98891964;  ζ = α̂/2.
    assert calibration.dual_noise(1.0, 100, 1.0, 0.45) == pytest.approx((0.49445982, 0), abs=1e-8)
    # 2 ln(1 + .25/.043) = 3.84 > 1, so Φ = .25/(e^.25 - 1) - .043 = .88020292 - .043;  ζ = 1/4.
    assert calibration.dual_noise(1.0, 1, 1.0, 0.043) == pytest.approx((0.25, 0.83720292), abs=1e-8)
    assert calibration.primal_noise(0.4, 30, 6.0, 0.1) == pytest.approx(0.1)  # .1 · 30 · .4 / 12


def largest_dual_loss(settings, alpha, rows, neighbours, *, doubled=False):
    """The largest |privacy loss| found over pairs and outputs of one dual-perturbed step.

    `doubled` uses the listing's ζ = α̂ instead of α̂/2: half the noise, which must be caught.
    """
    curvature = settings.rho + 2 * settings.eta * neighbours
    zeta, phi = calibration.dual_noise(alpha, rows, settings.loss_weight, curvature)
    worst = 0.0
    for angle in (math.pi, math.pi - 1e-3, 3.1, 3.0, 2.5, 2.0, math.pi / 2, 0.1):
        pair = audit.worst_pair(rows, angle)
        turn = torch.linspace(-math.pi, math.pi, 61, dtype=torch.float64)
        reach = torch.logspace(-2, 6, 25, dtype=torch.float64)
        outputs = (reach[:, None, None] * torch.stack([turn.cos(), turn.sin()], -1)).flatten(0, 1)
        # Whatever the dual variable is, some linear term puts the noise across the difference.
        given = {"loss_weight": settings.loss_weight, "quadratic": curvature + phi}
        given["zeta"] = 2 * zeta if doubled else zeta
        for aim in (-1.0, 0.0, 1.0):
            side = torch.tensor([aim, 0.0], dtype=torch.float64) * 1e3 * settings.loss_weight / rows
            linear = side - (curvature + phi) * outputs
            losses = audit.dual_loss(pair, outputs, linear, **given)
            worst = max(worst, float(losses.abs().max()))
    return worst


@pytest.mark.parametrize("rows", [1, 3, 30])
@pytest.mark.parametrize(("rho", "eta"), [(0.05, 0.1), (0.003, 0.01)])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_no_pair_and_output_of_a_dual_step_loses_more_than_alpha(rows, rho, eta, alpha):
    run = AdmmSettings(method="dvp", iterations=1, rho=rho, eta=eta, alpha=alpha)
    assert largest_dual_loss(run, alpha, rows, 2) <= alpha


def test_the_listing_with_twice_the_rate_is_caught():
    run = AdmmSettings(method="dvp", iterations=1, rho=0.05, eta=0.1, alpha=1.0)
    assert largest_dual_loss(run, 1.0, 10, 2) > 0.85  # the search is strong enough
    assert largest_dual_loss(run, 1.0, 10, 2, doubled=True) > 1.7


@pytest.mark.parametrize("method", ["dvp", "pvp"])
def test_the_audit_of_a_whole_run_stays_below_the_composed_guarantee(method):
    run = AdmmSettings(method=method, iterations=4, rho=0.5, eta=0.1, alpha=0.5)
    composed = calibration.compose(run.alpha, run.iterations, 1e-5)
    pair, draw = audit.worst_pair(10, 3.0), torch.Generator().manual_seed(0)
    given = {"replicas": 40_000, "generator": draw}
    drawn = [audit.trajectory_losses(pair, run, 2, truth=truth, **given) for truth in (0, 1)]
    assert max(float(one.abs().max()) for one in drawn) <= composed.pure * (1 + 1e-6)
    below = audit.epsilon_below(drawn[0], drawn[1], 1e-5)
    assert 0.2 < below <= composed.epsilon
    # A privacy loss is one: E[e^-loss] = 1 under its own truth.
    assert float((-drawn[0]).exp().mean()) == pytest.approx(1, abs=0.02)
    assert float(drawn[1].exp().mean()) == pytest.approx(1, abs=0.02)


def responses_delta(alpha, count, epsilon):
    """δ(ε) of `count` randomised responses, by their binomial law."""
    keep, yes = math.exp(alpha) / (1 + math.exp(alpha)), np.arange(count + 1)
    p, q = (scipy.stats.binom.pmf(yes, count, chance) for chance in (keep, 1 - keep))
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


@pytest.mark.parametrize(("alpha", "count"), [(0.01, 100), (0.1, 40), (1.0, 10)])
def test_composition_is_that_of_randomised_responses(alpha, count):
    composed = calibration.compose(alpha, count, 1e-5)
    assert composed.pure == pytest.approx(alpha * count)
    assert composed.epsilon <= composed.pure
    assert responses_delta(alpha, count, composed.epsilon * (1 + 1e-9)) <= 1e-5 * (1 + 1e-6)
    assert responses_delta(alpha, count, composed.epsilon * (1 - 1e-3)) > 1e-5


def test_losses_whose_exponential_overflows_compose_to_no_less_than_their_sum_allows() -> None:
    """No warning, which would be an error here, and a sound bound."""
    for alpha, count in ((47.782557928714446, 15), (47.782557928714446, 30), (24.0, 30), (1e3, 2)):
        composed = calibration.compose(alpha, count, 4.3459120960706886e-11)
        assert 0 < composed.epsilon <= alpha * count * (1 + 1e-12)
        assert composed.epsilon >= alpha  # one of them alone gives away as much


def test_the_real_file(reference_data):
    x, labels = read_adult(reference_data / "data" / "adult.data.gz")
    assert x.shape == (32_561, 109)
    assert int(labels.sum()) == 7841
