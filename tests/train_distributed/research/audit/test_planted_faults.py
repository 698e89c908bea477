"""Faults that a run does not show: each of these tests fails when its line is broken."""

import math

import pytest
import torch

from heads import HuberSVMHead, SoftmaxHead, fit_exact
from tests.embedding_sets import clusters
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, accounting
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.statistic import Chunk
from train_distributed.partition import split
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.research.rivals import dp_fl
from train_distributed.research.rivals.admm import calibration as admm_privacy
from train_distributed.research.rivals.admm import solver
from train_distributed.research.rivals.admm.graph import Nodes
from train_distributed.research.rivals.charter import learner
from train_distributed.research.rivals.charter.algorithm import Client, OneVsRestLogistic
from train_distributed.research.rivals.charter.plan import CharterPlan, CharterTask
from train_distributed.research.rivals.gradient_perturbation import GradientSum


def test_charter_clips_all_one_vs_rest_problems_together():
    """Four gradients of 0.9 G each are 1.8 G long together: a record moves 2G, not 3.6 G."""
    task = CharterTask(clients=1, rows=6, dimension=8, epsilon=1.0, delta=1e-5, diameter=1.0)
    bounds = {"rounds": 2, "gradient_clip": 1.0, "loss_clip": 1.0}
    plan = CharterPlan(task=task, gradient_std=0.0, loss_std=0.0, honest=None, **bounds)
    origin = torch.zeros(4, 2, dtype=torch.float64)
    sums = []
    for sign in (1, -1):
        x = torch.tensor([[sign * 7.2, 0.0]], dtype=torch.float64).expand(6, 2)  # |x|/2K = 0.9
        client = Client(x, torch.zeros(6).long(), plan, OneVsRestLogistic(4, 2), torch.Generator())
        sums.append(client._clipped_sum(origin)[0] / plan.batch)
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(2.0)


@pytest.mark.parametrize(("fraction", "honest"), [(None, 5), (0.3, 3), (1.0, 10)])
def test_charters_learner_counts_on_the_promised_honest_users(fraction, honest, monkeypatch):
    plans = []
    right = learner.run
    monkeypatch.setattr(
        learner, "run", lambda d, o, plan, **k: plans.append(plan) or right(d, o, plan, **k)
    )
    users = split(torch.arange(300) % 3, 10)
    promise = Privacy(2.0, 1e-5, honest_fraction=fraction)
    given = {"partition": users, "generator": torch.Generator().manual_seed(0), "cut_rounds": 3}
    report = learn(clusters(300, 3, 4, scale=0, noise=1), "charter-sum", promise, **given).report
    assert plans[0].honest == honest
    assert report["honest_users"] == honest


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_integers_of_all_rounds_of_gradients_meet_the_promise_together(epsilon):
    """The rounding of every round is charged: the theorem for M d K numbers at once."""
    embeddings, count = clusters(120, 3, 4, scale=0, noise=1), 9
    given = {"partition": split(torch.from_numpy(embeddings.labels), 6), "rounds": count}
    report = learn(embeddings, "gradient-perturbation", Privacy(epsilon, 1e-5), **given).report
    together = DiscreteGaussian(
        local_std=report["local_noise_std"],
        step=report["step"],
        sensitivity=math.sqrt(count) * report["sensitivity"],
        honest=report["honest_users"],
        dimension=count * 5 * 3,
    )
    assert together.epsilon(1e-5) <= epsilon


@pytest.mark.parametrize("solver_name", ["exact", "sgd"])
@pytest.mark.parametrize("kind", [SoftmaxHead, HuberSVMHead])
def test_what_a_user_submits_lies_within_the_radius(solver_name, kind):
    head = kind(num_classes=2, l2_reg=0.01, clip_norm=1.0, radius=0.05)
    method = TrainedHeads(head=head, dim=3, solver=solver_name, epochs=20, batch_size=2)
    x = torch.nn.functional.normalize(torch.ones(1, 8, 3), dim=2) * (1 - 1e-6)
    counts = torch.tensor([8])
    sent = method.submit(Chunk(torch.tensor([0]), x, torch.ones(1, 8).long(), counts))
    norms = (sent / 8).unflatten(1, (3, 2)).square().sum(head.norm_dims).sqrt()
    assert float(norms.max()) == pytest.approx(0.05, rel=1e-5)  # without one it would be 40 times
    assert float(norms.max()) <= method.weight_bound(8)


def test_rows_on_a_grid_are_never_longer_than_before():
    x = torch.nn.functional.normalize(
        torch.randn(1, 500, 7, generator=torch.Generator().manual_seed(0)), dim=2
    )
    held = Chunk(torch.tensor([0]), x, torch.zeros(1, 500).long(), torch.tensor([500]))
    for grid in (2.0**-20, 2.0**-8, 0.25):
        rounded = held.rounded(grid).x
        assert bool((rounded.abs() <= x.double().abs()).all())
        assert bool((rounded / grid == (rounded / grid).round()).all())
        assert bool((rounded.norm(dim=2) <= x.double().norm(dim=2)).all())


def test_dp_fl_trains_in_float64_and_charges_its_rounding(monkeypatch):
    """A float32 sum of 30,000 clipped gradients moves by more than 2C when one is turned round."""
    n = 30_000
    x = torch.full((n, 1), 1 / 3)
    y = torch.zeros(n, dtype=torch.int64)
    totals = []
    for last in (0, 1):
        y[-1] = last
        steps = {"learning_rate": 1.0, "gradient_clip": 0.1, "epochs": 1, "batch_size": n}
        draw = torch.Generator().manual_seed(0)
        totals.append(n * dp_fl.fit_private(x, y, 2, noise=0.0, generator=draw, **steps))
    moved = float((totals[0] - totals[1]).norm())
    assert moved <= 2 * 0.1 * dp_fl.rounding(n, 2)
    assert dp_fl.rounding(n, 2) >= 1 + n**2 * 2.0**-53
    assert moved == pytest.approx(2 * 0.1, rel=1e-4)  # Opacus clips to C / (1 + 1e-6 / norm)


def test_a_step_of_admm_that_float64_cannot_resolve_is_refused():
    """A linear term of 1e12 hides a gradient of 1e-4, far more than is charged."""
    x = torch.eye(2, dtype=torch.float64)[None]
    nodes = Nodes(x, torch.ones(1, 2, 1, dtype=torch.float64), torch.tensor([2]))
    zero = torch.zeros(1, 1, 2, dtype=torch.float64)
    quadratic = torch.full((1, 1, 1), 1.0, dtype=torch.float64)

    def solve(size: float) -> torch.Tensor:
        linear = torch.full((1, 1, 2), size, dtype=torch.float64)
        return solver.solve_step(
            nodes, loss_weight=1.0, quadratic=quadratic, linear=linear, start=zero, tolerance=1e-9
        )

    assert bool(solve(100.0).isfinite().all())
    with pytest.raises(ArithmeticError, match="rounding of a step must be at most"):
        solve(1e12)
    assert admm_privacy.charged(1.0, 1e-9) >= 1 + 1e-9 + admm_privacy.ROUNDING
    with pytest.raises(ValueError, match=r"loss_weight / .* must be below 1e.08"):
        solver.solve_step(
            nodes, loss_weight=1e12, quadratic=quadratic, linear=zero, start=zero, tolerance=1e-9
        )


def test_the_cast_to_float32_and_the_tolerance_are_charged():
    """2L/Λ, 2 n τ/Λ with τ = 10⁻³ L/n, and 2⁻²³ n (L + τ)/Λ for the cast of both neighbours."""
    head = SoftmaxHead(num_classes=3, l2_reg=0.5, clip_norm=1.0)
    reach = head.lipschitz / head.l2_reg
    for n in (1, 50, 10**6):
        stated = TrainedHeads(head=head, dim=4).record_sensitivity(torch.tensor([1, n]))
        assert stated >= reach * (2 + 2e-3 + 2.0**-23 * (n + 1e-3))
        assert stated <= reach * (2 + 2e-3 + 2.0**-23 * (n + 1) + n**2 * 2.0**-49)


def test_padding_takes_no_part_in_a_sum_of_gradients():
    head = SoftmaxHead(num_classes=2, l2_reg=0.1, clip_norm=1.0)
    step = GradientSum(head, torch.zeros(3, 2, dtype=torch.float64), 1)
    x = torch.full((1, 4, 3), 0.5, dtype=torch.float64)
    y = torch.zeros(1, 4, dtype=torch.int64)
    padded = step.submit(Chunk(torch.tensor([0]), x, y, torch.tensor([2])))
    alone = step.submit(Chunk(torch.tensor([0]), x[:, :2], y[:, :2], torch.tensor([2])))
    assert torch.equal(padded, alone)


def test_coarse_discrete_noise_pays_for_zeta_in_epsilon_and_in_delta():
    """Noise of one step: ζ is 10⁻³, so that e^ζ shows."""
    coarse = DiscreteGaussian(
        local_std=1.0, step=1.0, sensitivity=1.0, honest=20, dimension=1, rounded_users=0
    )
    zeta = math.exp(coarse.log_zeta)
    assert 1e-5 < zeta < 1e-1
    continuous = accounting.delta(1 - 2 * zeta, coarse.noise_multiplier)
    assert coarse.delta(1.0) == pytest.approx(math.exp(zeta) * continuous, rel=1e-9)
    spent = accounting.epsilon(math.exp(-zeta) * 1e-5, coarse.noise_multiplier)
    assert coarse.epsilon(1e-5) == pytest.approx(spent + 2 * zeta, rel=1e-9)
    many = {"honest": 100_000, "dimension": 1, "rounded_users": 0}
    local = accounting.noise_multiplier(1.0, 1e-5) / math.sqrt(100_000)
    planned = DiscreteGaussian.for_promise(1.0, 1e-5, sensitivity=1.0, step=local / 1.1, **many)
    assert 1e-6 < math.exp(planned.log_zeta) < 1e-4  # more would hide in its own slack
    assert planned.epsilon(1e-5) <= 1.0


@pytest.mark.parametrize(("n", "dim"), [(6, 20), (40, 3)])
def test_a_user_that_is_solved_is_left_alone_in_later_rounds(n, dim):
    """At 1e-9 float32 takes a user of long rows two rounds, one of short rows a single one."""
    draw = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(2, n, dim, generator=draw), dim=2) * 0.999
    x[1] = 1e-3
    y = torch.randint(3, (2, n), generator=draw)
    for l2_reg in (1e-2, 1e-4):
        head = SoftmaxHead(num_classes=3, l2_reg=l2_reg, clip_norm=1.0)
        together = fit_exact(head, x, y, tolerance=1e-9).weights[1]
        assert torch.equal(together, fit_exact(head, x[1:], y[1:], tolerance=1e-9).weights[0])
