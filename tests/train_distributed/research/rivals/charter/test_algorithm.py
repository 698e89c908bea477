"""Charter: its cuts, what clients send, what a record moves at any scale, and its noise."""

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch

from tests.embedding_sets import clusters
from tests.train_distributed.research.learning import Distance, learn
from train_distributed import accounting
from train_distributed.partition import split
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.charter import (
    amplification,
    encoding,
    learner,
    renyi,
    vaidya,
)
from train_distributed.research.rivals.charter import plan as planning
from train_distributed.research.rivals.charter.algorithm import Client, run
from train_distributed.research.rivals.charter.algorithm import OneVsRestLogistic as Logistic
from train_distributed.research.rivals.charter.encoding import Quantised, Summed
from train_distributed.research.rivals.charter.plan import CharterPlan, CharterTask, make_plan


def logistic_problem(dimension, seed):
    """A regularised logistic loss, its gradient and SciPy's least value."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(200, dimension)) / np.sqrt(dimension)
    y = np.sign(x @ draw.normal(size=dimension) + 0.3 * draw.normal(size=200))

    def value(w):
        return np.logaddexp(0, -y * (x @ w)).mean() + 0.005 * w @ w

    def gradient(w):
        return -(y / (1 + np.exp(y * (x @ w)))) @ x / len(y) + 0.01 * w

    options = {"ftol": 1e-17, "gtol": 1e-12, "maxiter": 10_000}
    found = scipy.optimize.minimize(
        value, np.zeros(dimension), jac=gradient, method="L-BFGS-B", options=options
    )
    return value, gradient, found.fun


LARGE = pytest.param(50, 19, marks=pytest.mark.slow)


@pytest.mark.parametrize(("dimension", "seed"), [(2, 0), (4, 2), (8, 6), (11, 9), LARGE])
def test_reaches_scipys_optimum(dimension, seed):
    value, gradient, lowest = logistic_problem(dimension, seed)
    planes = vaidya.cutting_planes(dimension, 20.0)
    x, found = next(planes), np.inf
    for _ in range(20 * dimension + 40):
        assert np.abs(x).max() < 20
        found = min(found, value(x))
        if found <= lowest + 1e-6:
            break
        x = planes.send(gradient(x))
    assert found <= lowest + 1e-6


def test_a_zero_gradient_ends_the_search():
    planes = vaidya.cutting_planes(3, 2.0)
    next(planes)
    with pytest.raises(StopIteration):
        planes.send(np.zeros(3))


def test_a_point_outside_has_no_barrier():
    body = vaidya._Polyhedron(np.random.default_rng(0).normal(size=(12, 4)), -np.ones(12))
    assert vaidya._barrier(body, np.full(4, 1e3)) is None


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def task(**changes):
    given: dict[str, Any] = {"clients": 4, "rows": 600, "dimension": 3}
    given |= {"epsilon": 1.0, "delta": 1e-5, "diameter": 2.0} | changes
    return CharterTask(**given)


def plan_of(rounds=20, *, stds=(0.05, 0.01), honest=None, **changes):
    noise = {"gradient_std": stds[0], "loss_std": stds[1], "honest": honest}
    clips = {"gradient_clip": 1.0, "loss_clip": 2.0}
    return CharterPlan(task=task(**changes), rounds=rounds, **clips, **noise)


def client_of(x, plan, objective, seed=0):
    return Client(x, torch.zeros(len(x)).long(), plan, objective, generator(seed))


MEAN = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)


def points_around(mean, rows):
    """Rows of four clients at distance 0.3 of a mean, and labels that nobody uses."""
    z = torch.randn(4, rows, len(mean), generator=generator(), dtype=torch.float64)
    return [(x, torch.zeros(rows).long()) for x in mean + 0.3 * z / z.norm(dim=2, keepdim=True)]


OBJECTIVES = [Logistic(2, 4), Logistic(3, 4), Distance(4)]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_gradients_are_those_of_the_losses(objective):
    draw = generator(3)
    x = torch.randn(7, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(2 if objective == OBJECTIVES[0] else 3, (7,), generator=draw)
    shape = objective.problems, objective.dimension
    points = torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
    found = objective.gradients(points.detach(), x, y)
    assert found.shape == (7, *shape)
    for own, loss in zip(found, objective.losses(points, x, y), strict=True):
        (expected,) = torch.autograd.grad(loss, points, retain_graph=True)
        assert torch.allclose(own, expected)
        assert loss >= 0


@pytest.mark.parametrize("bits", [1, 3, 8, 17])
def test_quantiser_is_unbiased_within_a_step_and_packs_exactly(bits):
    quantiser = Quantised(2.0, bits)
    repeated = torch.linspace(-2, 2, 41, dtype=torch.float64).repeat(1000)
    message = quantiser.encode(repeated, generator())
    assert len(message) == math.ceil(len(repeated) * bits / 8)
    decoded = quantiser.decode(message, len(repeated))
    assert (decoded - repeated).abs().max() <= quantiser.step * (1 + 1e-9)
    error = (decoded - repeated).view(1000, 41).mean(0).abs().max()
    assert error < 5 * quantiser.step / 2 / math.sqrt(1000)


@pytest.mark.parametrize(("rows", "rounds"), [(600, 20), (601, 20), (650, 200), (60, 20), (50, 16)])
def test_schedule_uses_every_row_at_most_once_and_follows_its_expectation(rows, rounds):
    plan = plan_of(rounds, rows=rows)
    assert plan.batch == rows // (3 * rounds)
    assert plan.learning_rows + plan.verification_rows == rows
    assert plan.verification_rows >= rows / 3
    assert len(plan.fresh) == rounds
    assert 1 <= min(plan.fresh) <= max(plan.fresh) <= plan.batch
    assert sum(plan.fresh) <= plan.learning_rows
    if plan.batch > 1:
        expected = plan.learning_rows * (1 - (1 - plan.batch / plan.learning_rows) ** rounds)
        assert abs(sum(plan.fresh) - expected) <= 1
    client = client_of(torch.arange(rows, dtype=torch.float64)[:, None], plan, Distance(1))
    used = torch.cat([*client._batches])
    assert len(used.unique()) == len(used) == sum(plan.fresh)
    assert used.max() < plan.learning_rows


def test_a_round_sends_the_clipped_mean_with_the_stated_noise():
    plan = plan_of(20, stds=(0.4, 0.1), clients=1, dimension=2)
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64).expand(600, 2)  # gradients at 0: -(3, 4)
    objective, origin = Distance(2), torch.zeros(1, 2, dtype=torch.float64)
    sent = [client_of(x, plan, objective, seed).gradient(origin) for seed in range(200)]
    drawn = torch.stack([plan.gradient_encoding.mean([message], 2) for message in sent])
    assert torch.allclose(drawn.mean(0), torch.tensor([-0.6, -0.8]).double(), atol=0.1)
    assert drawn.std() == pytest.approx(0.4, rel=0.15)


def test_replacing_a_record_moves_the_verified_losses_by_at_most_the_sensitivity():
    plan = plan_of(5, stds=(0.0, 0.0), clients=1, epsilon=math.inf)
    x = torch.zeros(600, 3, dtype=torch.float64)
    neighbour = x.clone()
    neighbour[-1] = 1e6
    iterates = torch.zeros(5, 1, 3, dtype=torch.float64)
    losses = [client_of(rows, plan, Distance(3))._mean_losses(iterates) for rows in (x, neighbour)]
    moved = (losses[0] - losses[1]).norm()
    assert moved == pytest.approx(math.sqrt(5) * plan.loss_clip / plan.verification_rows)


def test_all_one_vs_rest_problems_are_clipped_together():
    """Four gradients of 0.9 G each are 1.8 G long together: a record moves 2G, not 3.6 G."""
    plan = plan_of(2, stds=(0.0, 0.0), clients=1, rows=6, dimension=8)
    x = torch.tensor([[7.2, 0.0]], dtype=torch.float64).expand(6, 2)  # |x|/2K = 0.9
    clients = [client_of(rows, plan, Logistic(4, 2)) for rows in (x, -x)]
    sums = [each._clipped_sum(torch.zeros(4, 2).double())[0] / plan.batch for each in clients]
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(2.0)


@pytest.mark.parametrize(("fraction", "honest"), [(None, 5), (0.3, 3), (1.0, 10)])
def test_the_learner_counts_on_the_promised_honest_users(fraction, honest, monkeypatch):
    plans, right = [], learner.run
    monkeypatch.setattr(
        learner, "run", lambda d, o, plan, **k: plans.append(plan) or right(d, o, plan, **k)
    )
    users, promise = split(torch.arange(300) % 3, 10), Privacy(2.0, 1e-5, honest_fraction=fraction)
    given = {"partition": users, "generator": generator(), "cut_rounds": 3}
    report = learn(clusters(300, 3, 4, scale=0, noise=1), "charter-sum", promise, **given).report
    assert plans[0].honest == report["honest_users"] == honest


@pytest.mark.parametrize("summed", [False, True])
def test_without_noise_it_finds_the_mean(summed):
    clips: dict[str, Any] = {"gradient_clip": 4.0, "loss_clip": 4.0}
    plan = make_plan(task(rows=3000, epsilon=math.inf), rounds=40, secure_sum=summed, **clips)
    data = points_around(MEAN, 3000)
    points, report = run(data, Distance(3), plan, half_width=1.0, generator=generator())
    assert (points[0] - MEAN).norm() < 0.08  # it starts at a distance of .37
    bits = (64, 64) if summed else (plan.gradient_bits, plan.loss_bits)
    assert report["payload_bits_per_user"] == 40 * (3 * bits[0] + bits[1])


def test_a_release_draws_from_the_system(monkeypatch):
    drawn, right = [], encoding.discrete_gaussian
    monkeypatch.setattr(encoding, "discrete_gaussian", lambda *of: drawn.append(of) or right(*of))
    run(points_around(MEAN, 600), Distance(3), plan_of(4, honest=2), half_width=1.0)
    assert len(drawn) == 4 * (4 + 1)  # clients x (cuts and verification)


def test_secure_sum_has_the_noise_of_the_honest_and_the_exact_total():
    encoder = Summed(std=0.5, moved=0.1, count=1000, bound=1.0, parties=6, honest=4)
    values = torch.rand(6, 1000, generator=generator(), dtype=torch.float64) * 2 - 1
    draw = generator(1)
    total = 6 * encoder.mean([encoder.encode(one, draw) for one in values], 1000)
    noise = total - values.sum(0)
    assert noise.std() == pytest.approx(encoder.local_std * math.sqrt(6), rel=0.1)
    own: dict[str, Any] = {"local_std": encoder.local_std, "step": encoder.step}
    proven = DiscreteGaussian(**own, sensitivity=0.1, honest=4, dimension=1000)
    assert proven.noise_multiplier == pytest.approx(0.5 / 0.1, rel=1e-12)  # by its theorem
    assert proven.noise_multiplier >= 0.5 / 0.1 * (1 - 1e-15)
    assert proven.log10_zeta < -100
    quiet = Summed(std=0.0, moved=0.1, count=1000, bound=1.0, parties=6, honest=4)
    exact = 6 * quiet.mean([quiet.encode(one, None) for one in values], 1000)
    assert torch.allclose(exact, values.sum(0), rtol=0, atol=6 * quiet.step)


ZEROS, LABELS = torch.zeros(600, 3).double(), torch.zeros(600)


def planned(epsilon=1.0, rounds=9, **options):
    given: dict[str, Any] = {"gradient_clip": 1.0, "loss_clip": 1.0} | options
    return make_plan(task(epsilon=epsilon), rounds=rounds, **given)


def run_on(data, dimension):
    return run(data, Distance(dimension), plan_of(), half_width=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: planned(rounds=990), "rounds must be <= rows/3 = 200, .* take 2970 rows"),
        (lambda: planned(rounds=0), "rounds must be >= 1"),
        (lambda: planned(constants="loose"), "constants must be one of tight, paper"),
        (lambda: planned(0.6, constants="paper"), r"epsilon must be < 1.5/sqrt\(rounds\) = 0.5"),
        (lambda: planned(secure_sum=True, honest_fraction=0.0), "honest_fraction must be in"),
        (lambda: task(epsilon=0.0), "epsilon must be in"),
        (lambda: task(delta=1.0), r"delta must be in \(0, 1\)"),
        (lambda: task(clients=0), "clients must be >= 1"),
        (lambda: Quantised(0.0, 3), "limit must be finite and > 0"),
        (lambda: Quantised(1.0, 0), r"bits must be in \[1, 32\]"),
        (lambda: Quantised(1.0, 3).decode(b"", 2), "message must be 1 bytes"),
        (lambda: run_on([], 3), "clients must be 4"),
        (lambda: run_on([(torch.zeros(5, 3), torch.zeros(5))] * 4, 3), "rows must be 600"),
        (lambda: run_on([(ZEROS, LABELS)] * 4, 2), "dimension must be 3"),
        (lambda: run_on([(ZEROS / 0, LABELS)] * 4, 3), "rows must be in"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def setting(case):
    """A plan, its objective, one client's rows and a neighbour's."""
    rounds, classes, features = case.whole(1, 5), case.whole(2, 4), case.whole(1, 6)
    rows = case.draw.choice((3 * rounds, 3 * rounds + 1, 60))
    objective = case.draw.choice((Logistic(classes, features), Distance(features)))
    bound = case.scale()
    x = case.rows(rows, features, bound)
    y = torch.randint(classes, (rows,), generator=case.generator())
    of = task(
        clients=2,
        rows=rows,
        dimension=objective.problems * objective.dimension,
        epsilon=case.draw.choice((1e-12, 1e-3, 1.0, 30.0, 1e6, 1e12)),  # few: noise is cached
        delta=case.draw.choice((1e-12, 1e-5, 0.9)),
        diameter=case.scale(),
    )
    plan = make_plan(
        of,
        rounds=rounds,
        gradient_clip=case.draw.choice((bound * case.scale(-3, 1), case.scale(-200, 200))),
        loss_clip=case.scale(),
        secure_sum=case.draw.random() < 0.5,
        bits=case.draw.choice((1, 16, 32)),
    )
    return objective, plan, (x, y), case.neighbour(x, y, classes, bound)


def answers(case, objective, plan, pair, seed):
    """(2, K, ...) a client's clipped means at random points, and its mean losses, per neighbour."""
    shape = (plan.rounds, objective.problems, objective.dimension)
    points = case.scale() * torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    found = []
    for x, y in pair:
        client = Client(x, y, plan, objective, generator(seed))
        sums = [client._clipped_sum(at)[0] / plan.batch for at in points]
        found.append((torch.stack(sums), client._mean_losses(points)))
    return found


def distance(a, b):
    """‖a − b‖ without the rounding of the difference."""
    return float(np.linalg.norm(a.numpy().astype(np.longdouble) - b.numpy()))


def check(case):
    objective, plan, *pair = setting(case)
    seed = case.draw.getrandbits(30)
    (gradients, losses), (others, other_losses) = answers(case, objective, plan, pair, seed)
    largest = 2 * plan.gradient_clip / plan.batch
    stretched = largest * planning.rounding(plan.batch, plan.task.dimension)
    moved = [distance(a, b) for a, b in zip(gradients, others, strict=True)]
    assert sum(one > 0 for one in moved) <= 1  # a record is used at most once
    assert max(moved) <= stretched
    charged = math.sqrt(plan.rounds) * plan.loss_clip / plan.verification_rows
    assert distance(losses, other_losses) <= charged * planning.rounding(plan.verification_rows, 1)
    if plan.honest is not None:
        encoder = plan.gradient_encoding
        assert isinstance(encoder, Summed)
        assert encoder.moved == largest
        words = [encoder.fixed_point.encode(both[0].numpy()) for both in (gradients, others)]
        integers = float(np.linalg.norm((words[0] - words[1]).view(np.int64).astype(float)))
        assert integers * encoder.step <= stretched + encoder.step * math.sqrt(encoder.count)
        assert encoder.local_std * math.sqrt(plan.honest) >= plan.gradient_std
    half_width = case.scale(-14, 14)
    points, _ = run(pair, objective, plan, half_width=half_width, generator=case.generator())
    assert bool(torch.isfinite(points).all())
    assert float(points.abs().max()) <= half_width


@pytest.mark.parametrize("count", [12, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_record_moves_a_message_by_more_than_is_charged(count, held):
    held("charter", count, check)


def test_many_rows_and_numbers_are_charged_for_their_rounding():
    """Float64 sums of n clipped gradients are exact to n 2^-53 of n G on either neighbour."""
    for rows, numbers in ((10, 5), (10**5, 1), (10, 10**8)):
        charged = planning.rounding(rows, numbers) - 1
        assert charged >= (rows**2 + numbers) * 2.0**-53
        assert charged < 1e-5


@pytest.mark.parametrize("value", [1e-170, 1e170, 0.0, math.nan])
def test_lengths_that_have_no_square_are_refused(value):
    """A gradient of 1e-165 has a computed norm of 0: it would pass any smaller clip."""
    with pytest.raises(ValueError, match=r"gradient_clip must be in \[1e-100, 1e\+100\]"):
        planned(gradient_clip=value)
    with pytest.raises(ValueError, match="half_width must be in"):
        run([(ZEROS, LABELS.long())] * 4, Distance(3), plan_of(), half_width=value)


def large_plan(epsilon, rounds, **options):
    large = task(clients=10, rows=3000, dimension=30, diameter=1.0, epsilon=epsilon)
    return make_plan(large, rounds=rounds, gradient_clip=1.0, loss_clip=1.0, **options)


def test_the_paper_constants():
    # √(1080 · 100) ln(2.5e5) / 300 and √(40 · 100) ln(2.5e7) / 300
    paper = large_plan(0.1, 100, constants="paper")
    assert paper.gradient_std == pytest.approx(13.6155, abs=1e-4)
    assert paper.loss_std == pytest.approx(3.5912, abs=1e-4)


def test_tight_noise_meets_its_epsilon():
    tight = large_plan(0.25, 30)
    multiplier = tight.gradient_std / (2 / tight.batch)
    assert amplification.composed_epsilon(multiplier, 1e-5, tight.rates) <= 0.25
    assert amplification.composed_epsilon(0.98 * multiplier, 1e-5, tight.rates) > 0.25
    moved = 1 / tight.verification_rows
    assert accounting.epsilon(1e-5, tight.loss_std / moved, 30) <= 0.25 * (1 + 1e-12)


def test_no_amplification_where_a_record_used_once_is_cheaper():
    rates = (0.5, 1.0)  # half the rows in the first round, the others in the second
    found = amplification.sampled_noise_multiplier(1.0, 1e-5, rates)
    assert found == accounting.noise_multiplier(1.0, 1e-5)


def exact_log_moment(power, s):
    """ln T_j of an even j: the two ends of the proof, summed with 400 digits."""
    with mpmath.workdps(400):
        s = mpmath.mpf(s)
        ways = [mpmath.binomial(power, i) * (-1) ** i for i in range(power + 1)]
        line = [n * mpmath.exp(s / 2 * i * (i - 1)) for i, n in enumerate(ways)]
        triangle = [
            n * mpmath.exp(s / 2 * (power**2 - power - i * (power - i))) for i, n in enumerate(ways)
        ]
        return float(mpmath.log(max(mpmath.fsum(line), mpmath.fsum(triangle))))


@pytest.mark.parametrize("multiplier", [0.4, 1.0, 3.0, 40.0])
def test_even_moments_are_the_exact_sums_and_never_below(multiplier):
    largest = renyi.largest_order(multiplier, 200)
    found = renyi.log_moments(multiplier, largest)
    for power in {2, 4, 6, 12, 40, largest // 2 * 2}:
        excess = found[power] - exact_log_moment(power, multiplier**-2)
        assert 0 <= excess <= 2e-9


def mixture_divergence(order, thetas, shifts, sigma):
    """∫ P^α P'^(1-α) of the two mixtures in the plane, and the other way round, the larger."""
    step = sigma / 8
    axis = np.arange(-12 * sigma, 12 * sigma, step)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)

    def log_ratio(shift):
        return (2 * x @ shift - shift @ shift) / (2 * sigma**2)

    base = -(x**2).sum(-1) / (2 * sigma**2) - math.log(2 * math.pi * sigma**2)
    with np.errstate(divide="ignore"):
        p, q = (
            np.logaddexp(np.log(1 - theta), np.log(theta) + log_ratio(shift))
            for theta, shift in zip(thetas, shifts, strict=True)
        )
    integrals = [np.exp(order * a + (1 - order) * b + base).sum() for a, b in ((p, q), (q, p))]
    return max(float(integral) for integral in integrals) * step**2


@pytest.mark.parametrize("order", [2, 3, 6])
@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_no_posterior_and_no_shift_diverges_more_than_the_bound(order, rate):
    sigma = 1.2
    table = renyi.log_moments(sigma, 6)
    bound = math.exp(renyi.log_divergence(order, rate, table))
    turned = [(math.cos(angle), math.sin(angle)) for angle in (math.pi / 3, math.pi / 6, 0.0)]
    pairs = [np.array([(1.0, 0.0), one]) for one in turned] + [np.array([(0.5, 0), (-0.5, 0)])]
    rates = itertools.product((0.0, rate / 2, rate), repeat=2)
    tried = itertools.product(rates, pairs)
    worst = max(mixture_divergence(order, thetas, pair, sigma) for thetas, pair in tried)
    assert worst <= bound
    assert math.log(worst) > 0.3 * math.log(bound)  # the search comes near


def test_orders_stop_where_the_rule_is_not_exact():
    assert renyi.largest_order(1.0, 1024) == 202
    assert renyi.largest_order(40.0, 1024) == 1024
    assert renyi.largest_order(0.01, 1024) < 5


def test_rates_beyond_one_are_named():
    with pytest.raises(ValueError, match=r"largest_rate must be in \(0, 1\)"):
        amplification.composed_epsilon(1.0, 1e-5, (0.5, 1.0))
