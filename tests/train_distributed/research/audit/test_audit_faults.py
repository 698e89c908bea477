"""The audit finds every planted fault, and the same configuration without it passes."""

import itertools
import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from embed import PublicTransform
from heads import HuberSVMHead, SoftmaxHead, fit_exact, project_ball
from heads.sgd import Schedule
from train_distributed import Privacy
from train_distributed.one_shot import summation
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.statistic import Chunk
from train_distributed.one_shot.user_clip import UserClip
from train_distributed.partition import Partition
from train_distributed.privacy import mechanism, promise
from train_distributed.privacy.guarantee import Submission
from train_distributed.privacy.mechanism import FloatGaussian
from train_distributed.released.evaluation import Evaluation
from train_distributed.research.audit import Target, WorstCase, attack
from train_distributed.research.audit.target import TWO
from train_distributed.research.audit.worst_case import AnswersCase

PROMISE = Privacy(8.0, 1e-6)
RIGHT = 60  # trials without the fault, which no number of them may call broken


class Fault(NamedTuple):
    plant: Callable[[pytest.MonkeyPatch], None]
    target: Target  # few honest users, a last batch of one record, models on the ball
    trials: int  # until what is proven lies five standard deviations beyond the promise


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    right, discrete = mechanism.gaussian, mechanism.add_noise
    patch.setattr(mechanism, "gaussian", lambda size, std, g: right(size, std / 2, g))
    patch.setattr(mechanism, "add_noise", lambda words, std, draw: discrete(words, std / 2, draw))


def no_honest_server(patch: pytest.MonkeyPatch) -> None:
    """The noise of both servers is known: that of the honest one was left out."""
    patch.setattr(WorstCase, "known_noise", property(lambda self: range(2)))


def no_clip(patch: pytest.MonkeyPatch) -> None:
    def only_constant(x, clip_norm, constant=1.0, *, dtype=None):
        return functional.pad(x.to(dtype), (1, 0), value=constant)

    patch.setattr("embed.transform.add_constant_and_clip", only_constant)


def no_clip_about_the_centre(patch: pytest.MonkeyPatch) -> None:
    """Rows of the second sum are as long as the first one's centre leaves them."""

    def only_mapped(self: PublicTransform, rows: Tensor) -> Tensor:
        if self.directions is None or self.centre is None:
            return rows
        features = (rows[:, 1:].double() @ self.directions - self.centre) / self.length
        return torch.cat([rows[:, :1], features.to(rows.dtype)], 1)

    patch.setattr(PublicTransform, "map_rows", only_mapped)


def short_batch_over_its_own_size(patch: pytest.MonkeyPatch) -> None:
    right = Schedule._rates

    def rates(self, epoch, batch, batches):
        shrink, rate = right(self, epoch, batch, batches)
        own = min(self.batch_size, self.n - batch * self.batch_size)
        return shrink, rate * (self.batch_size / own)

    patch.setattr(Schedule, "_rates", rates)
    patch.setattr(Partition, "shuffled", lambda rows, generator: rows)  # an order that may be drawn


def projection_after_the_noise(patch: pytest.MonkeyPatch) -> None:
    """Every user projects its noised model to the radius, as the published code does."""
    dim, classes = 2, 2  # of PROJECTED

    def summed(self: FloatGaussian, submissions: Tensor) -> Tensor:
        noised = submissions + self.local_std * torch.randn(
            submissions.shape, generator=self.generator, dtype=torch.float64
        )
        models = noised.unflatten(1, (dim, classes)) / PROJECTED.federation.rows
        projected = project_ball(models, PROJECTED.options["radius"], (-2,))
        return (projected * PROJECTED.federation.rows).flatten(1).sum(0)

    patch.setattr(FloatGaussian, "summed", summed)
    patch.setattr(FloatGaussian, "noised", lambda self, total, shares=1: total)


def same_seed_twice(patch: pytest.MonkeyPatch) -> None:
    """Noise of the second release from the seed of the first."""
    releases, first = itertools.count(), secrets.randbits(40)

    def again() -> torch.Generator:
        return torch.Generator().manual_seed(first + next(releases) // 2)

    patch.setattr(mechanism, "system_generator", again)


def one_composition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrainedHeads, "compositions", property(lambda self: 1))


def share_of_the_survivors(patch: pytest.MonkeyPatch) -> None:
    def honest(users: int, share: float, least: int | None = None) -> int:
        return math.floor(share * (least or users))

    patch.setattr(promise, "honest_users", honest)


def matrix_charged_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Evaluation, "record_sensitivity", lambda self, sizes: math.sqrt(2))


def rounds_counted_as_one(patch: pytest.MonkeyPatch) -> None:
    right = summation._stages

    def as_one(method: Method | Submission) -> list[tuple[Submission, float, int]]:
        return [(of, times * share, times) for of, share, times in right(method)]

    patch.setattr(summation, "_stages", as_one)


def no_users_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UserClip, "clipped_", lambda self, submitted, counts, grid=None: submitted)


def half_of_a_users_clip(patch: pytest.MonkeyPatch) -> None:
    """As if a user that turns round moved a sum by C_u."""
    right = UserClip.user_sensitivity
    patch.setattr(UserClip, "user_sensitivity", lambda self, sizes: right(self, sizes) / 2)


def case(users: int = 1, rows: int = 2, classes: int = 2, **more) -> WorstCase:
    return WorstCase(users, rows, 1, classes, more.pop("promise", PROMISE), **more)


def target(
    where: WorstCase, method: str = "discriminant", noise: Any = "float", **options
) -> Target:
    return Target(method, where, noise, options)


PROJECTED = target(
    case(40, promise=replace(PROMISE, honest_fraction=1.0)),
    "svm",
    **{"l2_reg": 20.0, "radius": 0.04, "prior": "private"},
)
SUMS, ROUNDS = target(case()), target(case(), rounds=16)
SERVERS = target(case(6, 1, promise=replace(PROMISE, noise_by="servers")), noise="discrete")
ANSWERS = Target("evaluation", AnswersCase(1, 2, 1, 2, PROMISE), "float")
SHORT = target(case(rows=9), "svm", solver="sgd", epochs=1, batch_size=8, l2_reg=20.0)
BY_USER = WorstCase(1, 3, 2, 2, replace(PROMISE, unit="user"))
CLIPPED = target(BY_USER, user_clip=1.0)
CLIPPED_MODELS = target(BY_USER, "svm", l2_reg=20.0, user_clip=0.03)
TEN = target(case(classes=10), "svm", l2_reg=20.0)
TWO_MODELS = target(case(users=2), "svm", "discrete", l2_reg=20.0)
FAULTS = {
    "no clip": Fault(no_clip, SUMS, 150),
    "no users' clip": Fault(no_users_clip, CLIPPED, 150),
    "no clip about the centre": Fault(no_clip_about_the_centre, target(case(rows=20), **TWO), 300),
    "half the noise": Fault(half_the_noise, SUMS, 500),  # found in one release, too
    "half the noise in an evaluation": Fault(half_the_noise, ANSWERS, 500),
    "the honest server's noise left out": Fault(no_honest_server, SERVERS, 250),
    "seed reused": Fault(same_seed_twice, replace(SUMS, releases=2), 210),
    "short batch over its own size": Fault(short_batch_over_its_own_size, SHORT, 150),
    "one composition for ten classes": Fault(one_composition, TEN, 150),
    "an evaluation charged for its matrix alone": Fault(matrix_charged_alone, ANSWERS, 600),
    "half of the users' clip": Fault(half_of_a_users_clip, CLIPPED, 500),
    "noise for t times the survivors": Fault(
        share_of_the_survivors, target(case(users=20, rows=1, min_survivors=11)), 400
    ),
    "no users' clip, discrete": Fault(no_users_clip, replace(CLIPPED, noise="discrete"), 150),
    "no users' clip, trained": Fault(no_users_clip, CLIPPED_MODELS, 150),
    "projection after the noise": Fault(projection_after_the_noise, PROJECTED, 600),
    "half the noise, trained, discrete": Fault(half_the_noise, TWO_MODELS, 500),
    "rounds counted as one": Fault(rounds_counted_as_one, ROUNDS, 250),
}
FAULTS |= {
    f"{name}, discrete": FAULTS[name]._replace(
        target=replace(FAULTS[name].target, noise="discrete")
    )
    for name in (
        *("half the noise", "half the noise in an evaluation", "short batch over its own size"),
        *("rounds counted as one", "one composition for ten classes"),
        "noise for t times the survivors",
    )
}
QUICK = ("no clip", "no users' clip")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in FAULTS]
)
def test_every_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    right = attack(fault.target, trials=min(fault.trials, RIGHT))
    assert not right.broken
    fault.plant(monkeypatch)
    wrong = attack(fault.target, trials=fault.trials)
    print(
        f"{name}: promised {wrong.claim.epsilon:.2f}, {right.epsilon:.2f} without it, "
        f"{wrong.epsilon:.2f} with it"
    )
    assert wrong.claim.epsilon == pytest.approx(right.claim.epsilon)
    assert wrong.broken


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


def test_the_cast_to_float32_and_the_tolerance_are_charged():
    """2L/Λ, 2 n τ/Λ with τ = 10⁻³ L/n, and 2⁻²³ n (L + τ)/Λ for the cast of both neighbours."""
    head = SoftmaxHead(num_classes=3, l2_reg=0.5, clip_norm=1.0)
    reach = head.lipschitz / head.l2_reg
    for n in (1, 50, 10**6):
        stated = TrainedHeads(head=head, dim=4).record_sensitivity(torch.tensor([1, n]))
        assert stated >= reach * (2 + 2e-3 + 2.0**-23 * (n + 1e-3))
        assert stated <= reach * (2 + 2e-3 + 2.0**-23 * (n + 1) + n**2 * 2.0**-49)


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
