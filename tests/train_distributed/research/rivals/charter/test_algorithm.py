"""Charter: what clients send, what it costs, and that it minimises."""

import math

import pytest
import torch

from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.research.rivals.charter import encoding
from train_distributed.research.rivals.charter.algorithm import (
    Client,
    Distance,
    OneVsRestLogistic,
    run,
)
from train_distributed.research.rivals.charter.encoding import Quantised, Summed
from train_distributed.research.rivals.charter.plan import CharterPlan, CharterTask, make_plan


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def task(**changes):
    defaults = {"clients": 4, "rows": 600, "dimension": 3}
    defaults |= {"epsilon": 1.0, "delta": 1e-5, "diameter": 2.0}
    return CharterTask(**(defaults | changes))


def plan_of(rounds=20, *, stds=(0.05, 0.01), honest=None, **changes):
    return CharterPlan(
        task=task(**changes),
        rounds=rounds,
        gradient_clip=1.0,
        loss_clip=2.0,
        gradient_std=stds[0],
        loss_std=stds[1],
        honest=honest,
    )


def points_around(mean, clients, rows, seed=0):
    """Rows at distance 0.3 of a mean, and labels that nobody uses."""
    draw = generator(seed)
    data = []
    for _ in range(clients):
        z = torch.randn(rows, len(mean), generator=draw, dtype=torch.float64)
        data.append((mean + 0.3 * z / z.norm(dim=1, keepdim=True), torch.zeros(rows).long()))
    return data


OBJECTIVES = [OneVsRestLogistic(2, 4), OneVsRestLogistic(3, 4), Distance(4)]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_gradients_are_those_of_the_losses(objective):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(7, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(2 if objective == OBJECTIVES[0] else 3, (7,), generator=draw)
    shape = objective.problems, objective.dimension
    points = torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True)
    found = objective.gradients(points.detach(), x, y)
    assert found.shape == (7, *shape)
    for row in range(7):
        loss = objective.losses(points, x[row : row + 1], y[row : row + 1])[0]
        (expected,) = torch.autograd.grad(loss, points)
        assert torch.allclose(found[row], expected)
        assert loss >= 0


@pytest.mark.parametrize("bits", [1, 3, 8, 17])
def test_quantiser_is_unbiased_within_a_step_and_packs_exactly(bits):
    quantiser = Quantised(2.0, bits)
    values = torch.linspace(-2, 2, 41, dtype=torch.float64)
    repeated = values.repeat(1000)
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
    assert min(plan.fresh) >= 1
    assert max(plan.fresh) <= plan.batch
    assert sum(plan.fresh) <= plan.learning_rows
    if plan.batch > 1:
        expected = plan.learning_rows * (1 - (1 - plan.batch / plan.learning_rows) ** rounds)
        assert abs(sum(plan.fresh) - expected) <= 1
    client = Client(
        torch.arange(rows, dtype=torch.float64)[:, None],
        torch.zeros(rows).long(),
        plan,
        Distance(1),
        generator(),
    )
    used = torch.cat([*client._batches])
    assert len(used.unique()) == len(used) == sum(plan.fresh)
    assert used.max() < plan.learning_rows


def test_a_round_sends_the_clipped_mean_with_the_stated_noise():
    plan = plan_of(20, stds=(0.4, 0.1), clients=1, dimension=2)
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64).expand(600, 2)  # gradients at 0: -(3, 4)
    objective, origin = Distance(2), torch.zeros(1, 2, dtype=torch.float64)
    sent = []
    for seed in range(200):
        client = Client(x, torch.zeros(600).long(), plan, objective, generator(seed))
        message = client.gradient(origin)
        sent.append(plan.gradient_encoding.mean([message], 2))
    drawn = torch.stack(sent)
    assert torch.allclose(drawn.mean(0), torch.tensor([-0.6, -0.8]).double(), atol=0.1)
    assert drawn.std() == pytest.approx(0.4, rel=0.15)


@pytest.mark.parametrize("summed", [False, True])
def test_replacing_a_record_moves_one_message_by_at_most_the_sensitivity(summed):
    plan = plan_of(20, stds=(0.0, 0.0), clients=1, dimension=3, epsilon=math.inf, honest=1)
    objective = Distance(3)
    x = torch.randn(600, 3, generator=generator(), dtype=torch.float64)
    replaced = int(torch.cat([*Client(x, x[:, 0], plan, objective, generator(1))._batches])[7])
    neighbour = x.clone()
    neighbour[replaced] = -50 * x[replaced]
    origin = torch.zeros(1, 3, dtype=torch.float64)
    messages = []
    for rows in (x, neighbour):
        client = Client(rows, x[:, 0], plan, objective, generator(1))
        rounds = []
        for _ in range(plan.rounds):
            if summed:
                rounds.append(plan.gradient_encoding.mean([client.gradient(origin)], 3))
            else:
                rounds.append(client._clipped_sum(origin)[0] / plan.batch)
        messages.append(torch.stack(rounds))
    moved = (messages[0] - messages[1]).norm(dim=1)
    assert (moved > 0).sum() == 1
    largest = 2 * plan.gradient_clip / plan.batch
    assert moved.max() == pytest.approx(largest, rel=1e-6)  # antipodal gradients attain it


def test_replacing_a_record_moves_the_verified_losses_by_at_most_the_sensitivity():
    plan = plan_of(5, stds=(0.0, 0.0), clients=1, epsilon=math.inf)
    x = torch.zeros(600, 3, dtype=torch.float64)
    neighbour = x.clone()
    neighbour[-1] = 1e6
    iterates = torch.zeros(5, 1, 3, dtype=torch.float64)
    losses = [
        Client(rows, x[:, 0], plan, Distance(3), None)._mean_losses(iterates)
        for rows in (x, neighbour)
    ]
    moved = (losses[0] - losses[1]).norm()
    assert moved == pytest.approx(math.sqrt(5) * plan.loss_clip / plan.verification_rows)


@pytest.mark.parametrize("summed", [False, True])
def test_without_noise_it_finds_the_mean(summed):
    mean = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    plan = make_plan(
        task(rows=3000, epsilon=math.inf),
        rounds=40,
        gradient_clip=4.0,
        loss_clip=4.0,
        secure_sum=summed,
    )
    data = points_around(mean, 4, 3000)
    points, _ = run(data, Distance(3), plan, half_width=1.0, generator=generator())
    assert (points[0] - mean).norm() < 0.08  # it starts at a distance of .37


def test_a_release_draws_from_the_system(monkeypatch):
    mean, drawn = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64), []
    right = encoding.discrete_gaussian
    monkeypatch.setattr(encoding, "discrete_gaussian", lambda *of: drawn.append(of) or right(*of))
    plan = plan_of(4, honest=2)
    run(points_around(mean, 4, 600), Distance(3), plan, half_width=1.0)
    assert len(drawn) == 4 * (4 + 1)  # clients x (cuts and verification)


def test_secure_sum_has_the_noise_of_the_honest_and_the_exact_total():
    encoder = Summed(std=0.5, moved=0.1, count=1000, bound=1.0, parties=6, honest=4)
    values = torch.rand(6, 1000, generator=generator(), dtype=torch.float64) * 2 - 1
    draw = generator(1)
    total = 6 * encoder.mean([encoder.encode(one, draw) for one in values], 1000)
    noise = total - values.sum(0)
    assert noise.std() == pytest.approx(encoder.local_std * math.sqrt(6), rel=0.1)
    assert encoder.local_std * math.sqrt(4) >= 0.5 * (1 + math.sqrt(1000) * encoder.step / 0.1)
    quiet = Summed(std=0.0, moved=0.1, count=1000, bound=1.0, parties=6, honest=4)
    exact = 6 * quiet.mean([quiet.encode(one, None) for one in values], 1000)
    assert torch.allclose(exact, values.sum(0), rtol=0, atol=6 * quiet.step)


@pytest.mark.parametrize(("std", "count", "honest"), [(0.5, 1000, 4), (1e-3, 1, 1), (7.0, 30, 999)])
def test_shares_are_the_noise_that_the_theorem_of_integer_sums_asks_for(std, count, honest):
    encoder = Summed(std=std, moved=0.1, count=count, bound=1.0, parties=1000, honest=honest)
    proven = DiscreteGaussian(
        local_std=encoder.local_std,
        step=encoder.step,
        sensitivity=0.1,
        honest=honest,
        dimension=count,
    )
    assert std / 0.1 == pytest.approx(proven.noise_multiplier, rel=1e-12)
    assert proven.noise_multiplier >= std / 0.1 * (1 - 1e-15)
    assert proven.log10_zeta < -100


ZEROS, LABELS = torch.zeros(600, 3).double(), torch.zeros(600)


def planned(epsilon=1.0, rounds=9, **options):
    clips = {"gradient_clip": 1.0, "loss_clip": 1.0}
    return make_plan(task(epsilon=epsilon), rounds=rounds, **clips, **options)


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
