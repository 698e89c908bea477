"""The sensitivity theorem, tried adversarially: float64, every record index, worst-case pairs."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heads import (
    Head,
    HuberSVMHead,
    LogisticHead,
    SoftmaxHead,
    default_tolerance,
    fit_exact,
    fit_sgd,
    project_ball,
)
from heads.sgd import Method

ROUNDING = 1 + 1e-9
SIZES = range(1, 26)
BATCHES = (1, 2, 3, 7, 20, 25)
SETTINGS = [(l2_reg, 1.0) for l2_reg in (1e-3, 0.01, 1.0, 30.0, 1e3)]  # (Λ, c)
SETTINGS += [(1e-3, 34.854), (10.0, 34.854)]
DIM = 4
HEADS = {
    "svm": partial(HuberSVMHead, num_classes=2),
    "svm-sharp": partial(HuberSVMHead, num_classes=2, relaxation=0.01),
    "svm-soft": partial(HuberSVMHead, num_classes=3, relaxation=2.0),
    "logistic": partial(LogisticHead, num_classes=3),
    "softmax-2": partial(SoftmaxHead, num_classes=2),
    "softmax-3": partial(SoftmaxHead, num_classes=3),
    "softmax-5": partial(SoftmaxHead, num_classes=5),
}
NAMES = [*list(HEADS)[:-1], pytest.param("softmax-5", marks=pytest.mark.slow)]  # half of the time
REACHED = {  # somewhere by the search; otherwise it is too weak to mean anything
    "svm": 0.99,
    "svm-sharp": 0.99,
    "svm-soft": 0.74,  # at w = 0 the slope is (1 + h)/(2h), not 1
    "logistic": 0.49,
    **{f"softmax-{k}": 0.98 * math.sqrt((1 - 1 / k) / 2) for k in (2, 3, 5)},
}
EXACT = [name for name in HEADS if name != "svm-sharp"]  # a condition number of 10⁸ takes minutes
FAMILIES = ["svm", "logistic", "softmax-3"]

Train = Callable[[Head, Tensor, Tensor], Tensor]
Pairs = tuple[Tensor, Tensor]  # rows (2, pairs, n, d) that differ in one record, and labels


def direction(degrees: float) -> Tensor:
    """Unit row in the plane of the first two coordinates."""
    row = torch.zeros(DIM, dtype=torch.float64)
    row[0], row[1] = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return row


def scenarios(n: int) -> list[tuple[Tensor, int, Tensor, int, Tensor, Tensor]]:
    """(x, y, x', y', other rows, other labels) for rows of unit length."""
    generator = torch.Generator().manual_seed(n)
    drawn = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    random = functional.normalize(drawn, dim=-1)
    random_labels = torch.randint(2, (n,), generator=generator)
    zeros, ones = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.int64)
    nothing, along = torch.zeros_like(random), direction(0).expand(n, DIM)
    balanced = torch.arange(n) % 2  # holds the model where the loss is curved most
    cases = [
        (direction(0), 0, direction(180), 0, nothing, zeros),  # antipodal, alone
        (direction(0), 0, direction(0), 1, nothing, zeros),  # label flip
        (direction(0), 0, direction(180), 1, along, zeros),  # both
        (direction(0), 0, direction(90), 0, nothing, zeros),  # orthogonal
        (direction(0), 0, direction(180), 0, along, zeros),  # antipodal, one of them fits
        (direction(0), 0, direction(180), 0, random, random_labels),
        (direction(0), 0, direction(0), 1, random, random_labels),
        (direction(0), 0, direction(90), 1, along, ones),
        (direction(90), 0, direction(270), 0, along, ones),  # where the others say nothing
        (direction(0), 0, direction(180), 0, along, balanced),
    ]
    for half in (60, 75, 85):  # both rows misclassified by what the others teach
        cases.append((direction(half), 0, direction(-half), 0, along, ones))
    return cases


@cache
def neighbours(n: int, clip_norm: float) -> Pairs:
    """Every scenario at every record index."""
    x, y = [], []
    for row, label, new_row, new_label, others, labels in scenarios(n):
        for index in range(n):
            rows, named = others.repeat(2, 1, 1), labels.repeat(2, 1)
            rows[0, index], rows[1, index] = row, new_row
            named[0, index], named[1, index] = label, new_label
            x.append(rows)
            y.append(named)
    # clip_norm·(1 − 2⁻⁴⁰): no row is refused for its last bit
    return torch.stack(x, 1) * (clip_norm * (1 - 2**-40)), torch.stack(y, 1)


def movement(head: Head, weights: Tensor) -> Tensor:
    """(pairs,) largest movement of one composition; weights (2, pairs, d, K)."""
    moved = (weights[0] - weights[1]).square().sum(head.norm_dims, keepdim=True)
    return moved.sqrt().flatten(1).amax(1)


def ratio(head: Head, pairs: Pairs, train: Train) -> float:
    """Largest movement over all pairs, relative to the stated sensitivity."""
    x, y = pairs
    weights = train(head, x.flatten(0, 1), y.flatten(0, 1))
    moved = movement(head, weights.unflatten(0, x.shape[:2]))
    return moved.max().item() / head.sensitivity(x.shape[2])


def schedules(name: str) -> Iterator[tuple[int, Head, int, int, Method]]:
    """Size, head, batch size, epochs and method: each value meets each other one's values."""
    heads = list[Head]()
    for l2_reg, clip_norm in SETTINGS:
        free = HEADS[name](l2_reg=l2_reg, clip_norm=clip_norm)
        reach = free.lipschitz / l2_reg  # no iterate gets further
        heads += [free, HEADS[name](l2_reg=l2_reg, clip_norm=clip_norm, radius=0.1 * reach)]
    for turn, (head, batch_size) in enumerate(itertools.product(heads, BATCHES)):
        epochs = (1, 2, 3, 10)[(turn + turn // len(BATCHES)) % 4]
        yield 1 + turn * 7 % 25, head, batch_size, epochs, "gram"
        yield 25 - turn % 2, head, batch_size, epochs, "primal"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_sgd_never_exceeds_and_attains(name: str, every: int) -> None:
    found = []
    for n, head, batch_size, epochs, method in itertools.islice(schedules(name), 0, None, every):
        train = partial(fit_sgd, epochs=epochs, batch_size=batch_size, method=method)
        found.append(ratio(head, neighbours(n, head.clip_norm), train))
    assert max(found) <= ROUNDING
    assert max(found) >= REACHED[name]


@pytest.mark.parametrize("name", HEADS)
def test_every_size_with_a_batch_that_does_not_divide_it(name: str) -> None:
    for n in SIZES:
        for l2_reg in (1e-3, 1.0, 1e3):
            head = HEADS[name](l2_reg=l2_reg, clip_norm=1.0)
            train = partial(fit_sgd, epochs=3, batch_size=n // 2 + 1)
            assert ratio(head, neighbours(n, 1.0), train) <= ROUNDING


@pytest.mark.parametrize("name", EXACT)
def test_exact_never_exceeds_and_attains(name: str) -> None:
    """The bound is the solution's own, 2τ/Λ included; the minimiser alone obeys 2L/(Λn)."""
    found = []
    for l2_reg, clip_norm in SETTINGS:
        head = HEADS[name](l2_reg=l2_reg, clip_norm=clip_norm)
        for n in SIZES if (l2_reg, clip_norm) == (1.0, 1.0) else (11,):
            x, y = neighbours(n, clip_norm)
            solution = fit_exact(head, x.flatten(0, 1), y.flatten(0, 1))
            stated = 2 * head.lipschitz / (l2_reg * n)
            slack = 2 * default_tolerance(head, n) / l2_reg
            assert solution.sensitivity(n) == pytest.approx(stated + slack, rel=1e-12)
            moved = movement(head, solution.weights.unflatten(0, x.shape[:2])).max().item()
            assert moved <= solution.sensitivity(n)
            found.append(moved / stated)
    assert max(found) >= REACHED[name]


@pytest.mark.parametrize("name", ["svm", "logistic"])
def test_one_vs_rest_moves_every_class_at_once(name: str) -> None:
    """x' = −x moves all K columns together: √K times one composition, and no more."""
    x, y = neighbours(6, 1.0)
    for classes in (2, 3, 10):
        head = HEADS[name].func(num_classes=classes, l2_reg=1e3, clip_norm=1.0)
        weights = fit_sgd(head, x.flatten(0, 1), y.flatten(0, 1), epochs=4, batch_size=3)
        weights = weights.unflatten(0, x.shape[:2])
        jointly = torch.linalg.matrix_norm(weights[0] - weights[1]).max().item()
        assert head.compositions == classes
        assert jointly == pytest.approx(math.sqrt(classes) * movement(head, weights).max().item())
        assert jointly <= math.sqrt(classes) * head.sensitivity(6) * ROUNDING
        assert jointly >= 0.99 * REACHED[name] * math.sqrt(classes) * head.sensitivity(6)


def plain_sgd(
    head: Head,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    own_size: bool = False,
    stop_early: bool = False,
    first: int = 1,
    curvature: float = 1.0,
) -> Tensor:
    """Algorithm 1/2 with a switch for every known mistake, which the same search must catch."""
    n = x.shape[1]
    nominal = min(batch_size, n)
    starts = list(range(0, n, nominal))
    visits = starts * (epochs - 1) + (starts[:1] if stop_early else starts)
    beta = head.l2_reg + curvature * head.curvature
    weights = x.new_zeros(x.shape[0], DIM, head.num_classes)
    for m, start in enumerate(visits, first):
        rows, labels = x[:, start : start + nominal], y[:, start : start + nominal]
        size = rows.shape[1] if own_size else nominal
        rate = min(1 / beta, 1 / (head.l2_reg * m) if m else math.inf)
        data = rows.mT @ head.residual(rows @ weights, head.targets(labels, x.dtype)) / size
        weights = weights - rate * (head.l2_reg * weights + data)
        if head.radius is not None:
            weights = project_ball(weights, head.radius, head.norm_dims)
    return weights


def search(name: str, **switches) -> float:
    """The search of `test_sgd_never_exceeds_and_attains`, on the plain reference."""
    found = []
    for n, head, batch_size, epochs, _ in schedules(name):
        if head.clip_norm == 1.0 and head.radius is None:
            train = partial(plain_sgd, epochs=epochs, batch_size=batch_size, **switches)
            found.append(ratio(head, neighbours(n, 1.0), train))
    return max(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_itself_obeys(name: str) -> None:
    assert search(name) <= ROUNDING


MISTAKES = {
    "short batch over its own size": {"own_size": True},
    "stop in mid-epoch": {"stop_early": True},
    "m from 0": {"first": 0},
    "a tenth of the curvature": {"curvature": 0.1},
    "no curvature": {"curvature": 0.0},
}
CAUGHT = {  # heads whose own worst case is near enough to 1, or curved where the search looks
    "m from 0": ["svm"],
    "a tenth of the curvature": ["svm-soft", "logistic"],
}
TRIED = [(m, name) for m in MISTAKES for name in CAUGHT.get(m, FAMILIES)]


@pytest.mark.parametrize(("mistake", "name"), TRIED)
def test_wrong_variants_are_caught(mistake: str, name: str) -> None:
    assert search(name, **MISTAKES[mistake]) > 1.05
