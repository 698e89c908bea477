"""The methods that we compare with: one report, each one's own theorem, at any scale."""

import json
import math
from functools import partial
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from embed import EmbeddingSet, PublicTransform
from heads import HuberSVMHead, LogisticHead, SoftmaxHead, fit_exact
from tests.embedding_sets import clusters
from tests.train_distributed.research.learning import learn, plain_opacus
from train_distributed import Privacy, accounting
from train_distributed.one_shot.registry import NOT_PRIVATE, RIVALS
from train_distributed.one_shot.statistic import Chunk
from train_distributed.partition import split
from train_distributed.privacy.guarantee import ROUND_UP
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.research.rivals import averages, central, dp_fl
from train_distributed.research.rivals.averages import AveragedMinimisers, DualSVM
from train_distributed.research.rivals.gradient_perturbation import GradientSum

CLASSES, DIM, ROWS = 3, 6, 240
FLOAT_ONLY = ("dp-fl", "amp")
IN_ONE_PROCESS = ("centralised-softmax", "centralised-svm", *FLOAT_ONLY)
EPSILON = {"dp-fl": 4.0}  # a large one takes the account long
OPTIONS: dict[str, dict[str, Any]] = {"dp-fl": {"epochs": 5, "batch_size": 60}}


@pytest.fixture(scope="module")
def rows() -> EmbeddingSet:
    return clusters(ROWS + 60, CLASSES, DIM, test=60)


@pytest.fixture(scope="module")
def arguments(rows) -> dict:
    public = rows.embeddings[::2] + np.float32(0.01)
    draw = torch.Generator().manual_seed(1)
    return {
        "transform": PublicTransform.fit(public),
        "partition": split(torch.from_numpy(rows.labels[:ROWS]), 6, generator=draw),
    }


@pytest.mark.parametrize("method", [*RIVALS, *NOT_PRIVATE])
def test_every_baseline_learns_and_reports(method: str, rows, arguments):
    promise = Privacy(math.inf if method in NOT_PRIVATE else EPSILON.get(method, 100.0), 1e-5)
    released = learn(rows, method, promise, noise="float", **arguments, **OPTIONS.get(method, {}))
    report = json.loads(json.dumps(dict(released.report), allow_nan=False))
    assert report["test_accuracy"] > 0.9
    assert report["private"] is (method not in NOT_PRIVATE)
    assert "replace one record" in report["neighbouring"]
    assert report["suitable_for_release"] is False
    assert report["simulation_only"]["seconds"] > 0
    assert report["rounds"] >= 1
    assert report["bytes_per_user"] > 0
    assert report["method"] == method
    assert released.weights.shape == (DIM + 1, CLASSES)


@pytest.mark.parametrize(
    "method", ["output-perturbation", "gradient-perturbation", "dp-svm-smo", "centralised-svm"]
)
def test_sums_of_rows_mapped_once_are_released_with_discrete_noise(method, rows, arguments):
    released = learn(rows, method, Privacy(100.0, 1e-5), components=3, **arguments)
    assert released.weights.shape == (4, CLASSES)
    assert released.report["noise"] == "discrete"
    assert released.report["test_accuracy"] > 0.9
    if method == "dp-svm-smo":
        assert any("converged" in why for why in released.report["unsuitable_because"])
        assert released.report["simulation_only"]["users_not_converged"] == 0


FLOAT, ONE = {"noise": "float"}, Privacy(1.0, 1e-5)
BY_SERVERS = Privacy(1.0, 1e-5, noise_by="servers")
RED, NO_CLIP = FLOAT | {"colour": "red"}, FLOAT | {"gradient_clip": 0}


@pytest.mark.parametrize(
    ("methods", "promise", "given", "says"),
    [
        (FLOAT_ONLY, ONE, {}, "noise must be 'float' for"),
        (NOT_PRIVATE, ONE, {}, "epsilon must be inf for 'non-private"),
        (IN_ONE_PROCESS, BY_SERVERS, FLOAT, "noise_by must be 'users' for method '"),
        (["amp"], Privacy(1e14, 1e-5), FLOAT, "eps_frac must leave less than 1 of epsilon"),
        (["amp"], ONE, RED, r"options must fit method 'amp', got \['colour'\]"),
        (["forest"], ONE, {}, "method must be one of"),
        (["dp-fl"], ONE, NO_CLIP, "gradient_clip must be finite and > 0, got 0"),
        (["gradient-perturbation"], ONE, {"rounds": 0}, "rounds must be >= 1, got 0"),
    ],
)
def test_what_a_baseline_cannot_promise_is_refused(methods, promise, given, says, rows, arguments):
    for method in methods:
        with pytest.raises(ValueError, match=says):
            learn(rows, method, promise, **arguments, **given)


def test_dp_fl_accounts_for_the_rate_that_opacus_uses(rows, arguments):
    """240 rows in batches of 50 are 5 batches: rate 1/5, not 50/240."""
    given = arguments | FLOAT | {"epochs": 4, "batch_size": 50}
    report = learn(rows, "dp-fl", Privacy(2.0, 1e-5), **given).report
    assert report["sampling_rate"] == 1 / 5
    assert report["rounds"] == 4 * 5
    accountant = PLDAccountant()
    gaussian = dp_accounting.GaussianDpEvent(report["noise_multiplier"])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(1 / 5, gaussian), 20)
    assert report["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    assert 0.98 * 2 < report["epsilon"] <= 2


@pytest.mark.parametrize(("rate", "steps", "noise"), [(0.2, 20, 2.0), (0.02, 99, 1.5), (1, 9, 6)])
def test_twice_the_clip_covers_replacement(rate: float, steps: int, noise: float):
    """dp-accounting's own replace-one account, at noise 2C z, never asks for more."""
    replaced = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(2 * noise)
    replaced.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps)
    assert replaced.get_epsilon(1e-5) <= dp_fl.account(1e-5, noise, rate, steps) * (1 + 1e-4)


def test_dp_fl_noise_is_twice_the_clip_and_grows_with_users(rows, arguments, monkeypatch):
    given, right = [], dp_fl.fit_private
    monkeypatch.setattr(dp_fl, "noise_multiplier", lambda *promise: 3.0)
    monkeypatch.setattr(
        dp_fl, "fit_private", lambda *a, **k: given.append(k["noise"]) or right(*a, **k)
    )
    for partition in (arguments["partition"], split(torch.from_numpy(rows.labels[:ROWS]), 1)):
        once = arguments | FLOAT | {"partition": partition, "epochs": 2, "batch_size": 60}
        learn(rows, "dp-fl", Privacy(2.0, 1e-5), **once)
    assert given == pytest.approx([2 * 3 * math.sqrt(6), 2 * 3])


def test_dp_fl_trains_in_float64_and_charges_its_rounding():
    """A float32 sum of 30,000 clipped gradients moves by more than 2C when one is turned round."""
    n, totals = 30_000, []
    x, y = torch.full((n, 1), 1 / 3), torch.zeros(n, dtype=torch.int64)
    steps = {"learning_rate": 1.0, "gradient_clip": 0.1, "epochs": 1, "batch_size": n, "noise": 0.0}
    for last in (0, 1):
        y[-1] = last
        draw = torch.Generator().manual_seed(0)
        totals.append(n * dp_fl.fit_private(x, y, 2, generator=draw, **steps))
    moved = float((totals[0] - totals[1]).norm())
    assert moved <= 2 * 0.1 * dp_fl.rounding(n, 2)
    assert dp_fl.rounding(n, 2) >= 1 + n**2 * 2.0**-53
    assert moved == pytest.approx(2 * 0.1, rel=1e-4)  # Opacus clips to C / (1 + 1e-6 / norm)


@pytest.mark.filterwarnings("ignore")  # Opacus says that its noise is not cryptographic
def test_dp_fl_is_plain_opacus(rows, arguments):
    """The loop that its documentation shows, with the same generator: the same weights."""
    pytest.importorskip("opacus")
    x = arguments["transform"](rows.embeddings[:ROWS])
    y, draw = torch.from_numpy(rows.labels[:ROWS]), torch.Generator()
    same = {"noise": 3.0, "learning_rate": 0.5, "gradient_clip": 0.1, "epochs": 3, "batch_size": 50}
    ours = dp_fl.fit_private(x, y, CLASSES, generator=draw.manual_seed(7), **same)
    plain = plain_opacus(x.double(), y, CLASSES, generator=draw.manual_seed(7), **same)
    assert torch.equal(ours, plain)


def test_dp_fl_says_what_is_missing(rows, arguments, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opacus", None)
    with pytest.raises(ValueError, match=r"pip install 'blind-averaging\[baselines\]'"):
        learn(rows, "dp-fl", ONE, **arguments, **FLOAT)


def worst(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two users' rows (2, n, d) of norm 1 and labels, alike but for the last record's label."""
    x, y = torch.zeros(2, rows, 3, dtype=torch.float64), torch.zeros(2, rows, dtype=torch.int64)
    x[:, -1, 0] = y[1, -1] = 1
    return x, y


SOFTMAX = SoftmaxHead(num_classes=2, l2_reg=0.1, clip_norm=1.0)


def chunk_of(x: torch.Tensor, y: torch.Tensor) -> Chunk:
    """All rows of one user."""
    return Chunk(torch.tensor([0]), x[None], y[None], torch.tensor([len(x)]))


@pytest.mark.parametrize("n", [1, 3, 8])
def test_output_perturbation_keeps_to_chaudhuris_bound(n: int):
    head = HuberSVMHead(num_classes=2, l2_reg=50.0, clip_norm=1.0)
    method = AveragedMinimisers(head=head, dim=3, users=5)
    x, y = worst(n)
    first, second = (method.submit(chunk_of(*each)) for each in zip(x, y, strict=True))
    moved = float((first - second).unflatten(1, (3, 2)).norm(dim=1).max())
    stated = method.record_sensitivity(torch.tensor([n + 4, n]))
    assert 0.99 * stated < moved <= stated
    assert stated == pytest.approx(2 / (50 * n * 5), rel=2e-3)


def test_a_round_of_gradients_moves_by_less_than_2l():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        weights = 5 * torch.randn(3, 2, generator=generator, dtype=torch.float64)
        step = GradientSum(SOFTMAX, weights, 7)
        x, y = worst(4)
        x[1, -1] = -x[1, -1]
        first, second = (step.submit(chunk_of(*each)) for each in zip(x, y, strict=True))
        assert float((first - second).norm()) <= step.record_sensitivity(torch.tensor([4]))
        assert step.compositions == 7


def test_padding_takes_no_part_in_a_sum_of_gradients():
    step = GradientSum(SOFTMAX, torch.zeros(3, 2, dtype=torch.float64), 1)
    x, y = torch.full((4, 3), 0.5, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    padded = Chunk(torch.tensor([0]), x[None], y[None], torch.tensor([2]))
    assert torch.equal(step.submit(padded), step.submit(chunk_of(x[:2], y[:2])))


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_integers_of_all_rounds_of_gradients_meet_the_promise_together(
    epsilon, rows, arguments
):
    """The rounding of every round is charged: the theorem for M d K numbers at once."""
    promise = Privacy(epsilon, 1e-5)
    released = learn(rows, "gradient-perturbation", promise, **arguments, rounds=9)
    report = released.report
    together = DiscreteGaussian(
        local_std=report["local_noise_std"],
        step=report["step"],
        sensitivity=math.sqrt(9) * report["sensitivity"],
        honest=report["honest_users"],
        dimension=9 * released.weights.numel(),
    )
    assert together.epsilon(1e-5) <= epsilon


@pytest.mark.parametrize("noise", ["float", "discrete"])
def test_noise_of_all_rounds_is_what_the_promise_needs(noise: str, rows, arguments):
    """Runs differ in round 1 by noise alone: its spread against the exact curve for M rounds."""
    users, rounds = 6, 5
    given = arguments | {"noise": noise, "rounds": rounds}
    found = [learn(rows, "gradient-perturbation", ONE, **given) for _ in range(8)]
    assert all(each.report["compositions"] == rounds for each in found)
    firsts = [each.opened[: (DIM + 1) * CLASSES] for each in found if each.opened is not None]
    spread = torch.stack(firsts).var(0).mean().sqrt()
    multiplier = accounting.noise_multiplier(1.0, 1e-5, rounds)
    needed = multiplier * 2 * math.sqrt(2) * math.sqrt(1.25) * math.sqrt(users / 3)
    assert float(spread) == pytest.approx(needed, rel=4 / math.sqrt(2 * 7 * 21))


def test_liblinear_agrees_with_the_certified_solver():
    """Also for users that hold one class only, where it needs a zero row to start at all."""
    generator = torch.Generator().manual_seed(3)
    x = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator).double(), dim=1)
    sharp = HuberSVMHead(num_classes=3, l2_reg=0.3, clip_norm=1.0, relaxation=1e-4)
    for labels in (torch.arange(30) % 3, torch.full((30,), 2)):
        dual, converged = averages.fit_dual(x.numpy(), labels.numpy(), 3, 0.3)
        exact = fit_exact(sharp, x, labels).weights
        assert converged
        assert float((torch.from_numpy(dual) - exact).norm()) < 0.02


def test_a_sum_of_many_gradients_is_charged_for_its_rounding():
    """Float64 sums of n gradients are exact to n 2^-53 of n L on either neighbour."""
    step = GradientSum(SOFTMAX, torch.zeros(3, 2, dtype=torch.float64), 1)
    for n in (10, 50_000):
        charged = step.record_sensitivity(torch.tensor([1, n])) / (2 * SOFTMAX.lipschitz) - 1
        assert charged >= n**2 * 2.0**-53
        assert charged < 1e-5


def test_machines_compose_to_the_promise_with_the_published_noise_of_each():
    each, share = central.per_machine(1.0, 1e-5, 10)
    assert 0.1 <= each < 1
    assert share == 1e-5 / 20
    assert central.per_machine(1.0, 1e-5, 1)[0] == pytest.approx(1.0, rel=2e-2)
    budget = central.Budget(0.5, 1e-6, 0.001, 0.99)
    assert budget.regulariser == pytest.approx(2 * 5 / (0.999 * 0.5 * 0.01))
    tail = 1 + math.sqrt(2 * math.log(1 / (0.999 * 1e-6)))
    assert budget.linear_std(100) == pytest.approx(2 / 100 * tail / (0.999 * 0.5 * 0.99))
    assert budget.output_std(100, 1e-4) > 2 * 100 * 1e-4 / budget.regulariser


@pytest.mark.parametrize("epsilon", [0.5, 5.0, 12.0, 60.0])
def test_linear_noise_keeps_its_share_of_a_large_epsilon(epsilon: float):
    """(2 u·b + |u|²)/(2σ²), |u| = 2L/n, u·b at its δ₁ quantile; published σ₁ fails at large ε."""
    budget = central.Budget(epsilon, 1e-6, 0.001, 0.99)
    share, n = 0.999 * epsilon * 0.99, 100
    std, moved = budget.linear_std(n), 2 / n
    quantile = std * math.sqrt(2 * math.log(1 / (0.999 * 1e-6)))
    assert (2 * moved * quantile + moved**2) / (2 * std**2) <= share * (1 + 1e-12)


def pair(case, bound, classes, types=(torch.float32, torch.float64)):
    """Two chunks of one user that differ in a record."""
    n, dim, dtype = case.whole(1, 12), case.whole(1, 6), case.draw.choice(types)
    x, y = case.rows(n, dim, bound), torch.randint(classes, (n,), generator=case.generator())
    both = ((x, y), case.neighbour(x, y, classes, bound))
    return [chunk_of(stored(a, bound, dtype), b) for a, b in both]


def stored(x, bound, dtype):
    """Rows of a type, those shorter by an ulp that it made longer than the bound."""
    x = x.to(dtype)
    over = torch.linalg.vector_norm(x.double(), dim=1, keepdim=True) > bound
    return torch.where(over, x * (1 - 2 * torch.finfo(dtype).eps), x)


def check_trained(case):
    """Λ/c² is the problem's own scale; the solver's effort grows with its root."""
    averaged = partial(AveragedMinimisers, users=case.whole(1, 50))
    trained = [(averaged, LogisticHead, -3), (DualSVM, HuberSVMHead, -2)]
    made, head, least = case.draw.choice(trained)
    bound = case.scale(-6, 6)
    head = head(num_classes=2, l2_reg=bound**2 * case.scale(least, 6), clip_norm=bound)
    chunks = pair(case, bound, 2)
    method = made(head=head, dim=chunks[0].x.shape[2])
    first, second = (method.submit(chunk)[0].numpy().astype(np.longdouble) for chunk in chunks)
    assert np.isfinite(first).all()
    distance = float(np.linalg.norm((first - second).reshape(-1, 2), axis=0).max())
    if not getattr(method, "unfinished", 0):  # liblinear itself says that nothing is promised
        assert distance <= method.record_sensitivity(chunks[0].counts) * ROUND_UP


def check_perturbed_minimum(case):
    """A pair with one linear term: within 2L/nΛ, and what both solutions are off by."""
    budget = central.Budget(case.scale(), case.scale(-12, -0.01), 0.001, 0.99)
    chunks = pair(case, 1.0, 2, types=(torch.float64,))
    n, dim = chunks[0].x.shape[1:]
    head = HuberSVMHead(num_classes=2, l2_reg=budget.regulariser / n, clip_norm=1.0)
    linear = budget.linear_std(n) * torch.randn(dim, generator=case.generator()).double()
    small = central.tolerance(n)
    found = [
        central.minimise(head, one.x[0], one.y[0].double() * 2 - 1, linear, small) for one in chunks
    ]
    distance = np.linalg.norm(found[0].numpy().astype(np.longdouble) - found[1].numpy())
    assert float(distance) <= (2 / n + 2 * small) / head.l2_reg * (1 + 1e-12)
    assert steepness(head, chunks[0], linear, found[0]) <= small
    assert 0 < budget.output_std(n, small) < math.inf


def steepness(head, chunk, linear, weights):
    """‖∇‖ of a perturbed machine in extended precision."""
    x, w = (value.numpy().astype(np.longdouble) for value in (chunk.x[0], weights))
    signed = x * (chunk.y[0].numpy()[:, None] * 2 - 1)
    pull = np.clip((1 + head.relaxation - signed @ w) / (2 * head.relaxation), 0, 1)
    gradient = -signed.T @ pull / len(x) + head.l2_reg * w + linear.numpy()
    return float(np.linalg.norm(gradient))


CHECKS = {
    "trained": (check_trained, 60, 4000),
    "perturbed minimum": (check_perturbed_minimum, 40, 3000),
}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHECKS)
def test_no_record_moves_a_baseline_by_more_than_is_charged(name, many, held):
    check, *counts = CHECKS[name]
    held(name, counts[many], check)
