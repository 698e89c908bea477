"""What users send of a model's answers, and how far one record moves it."""

import itertools
import math

import numpy as np
import pytest
import torch

from train_distributed.released import COARSEST_GRID, FINEST_GRID, MOST_BINS
from train_distributed.released.evaluation import Evaluation

NO_SIZES = torch.ones(1)


def answers(confidences: list[float], predicted: list[int], classes: int) -> torch.Tensor:
    """(n, K) probabilities with these largest ones; the others share the rest."""
    rows = torch.tensor(confidences, dtype=torch.float64)[:, None]
    found = ((1 - rows) / (classes - 1)).repeat(1, classes)
    found[torch.arange(len(rows)), torch.tensor(predicted)] = rows[:, 0]
    return found


def submit(
    method: Evaluation, labels: list[int], probabilities: torch.Tensor, grid: float = FINEST_GRID
) -> torch.Tensor:
    users = torch.zeros(len(labels), dtype=torch.int64)
    return method.submit(users, torch.tensor(labels), [probabilities], 1, grid)[0]


def test_counts_are_those_of_a_plain_loop() -> None:
    draw = np.random.default_rng(0)
    probabilities = torch.from_numpy(draw.dirichlet([0.5] * 3, 400))
    labels, owner = draw.integers(0, 3, 400), draw.integers(0, 5, 400)
    method = Evaluation(num_classes=3, bins=10)
    rows = (torch.from_numpy(owner), torch.from_numpy(labels), [probabilities])
    sent = method.submit(*rows, 5, FINEST_GRID)
    matrix, by_class, by_bin, rest = method.parts(sent.sum(0))
    wanted, hits, confidence = np.zeros((3, 3)), np.zeros((10, 2)), np.zeros(10)
    for row, label in zip(probabilities.numpy(), labels, strict=True):
        guess = int(row.argmax())
        wanted[label, guess] += 1
        place = min(9, int(row.max() * 10))
        hits[place, int(guess == label)] += 1
        confidence[place] += row.max()
    assert np.array_equal(matrix, wanted)
    assert by_class[:, 1].tolist() == wanted.diagonal().tolist()
    assert by_class.sum(1).tolist() == wanted.sum(1).tolist()
    assert np.array_equal(by_bin, hits[3:])  # the largest of three is no less than a third
    assert not hits[:3].any()
    sums = method.middles(FINEST_GRID) * by_bin.sum(1) + rest
    np.testing.assert_allclose(sums, confidence[3:], atol=400 * FINEST_GRID)
    for user in range(5):
        own = submit(method, labels[owner == user].tolist(), probabilities[owner == user])
        assert torch.equal(own, sent[user])


@pytest.mark.parametrize("grid", [FINEST_GRID, COARSEST_GRID])
@pytest.mark.parametrize(("classes", "bins"), [(2, 10), (3, 7), (5, 50), (2, 1), (10, 4), (3, 0)])
def test_no_replaced_record_moves_the_sum_further(classes: int, bins: int, grid: float) -> None:
    """All pairs of records at, and just beside, every edge of a bin."""
    method = Evaluation(num_classes=classes, bins=bins)
    edges = {k / max(bins, 1) + side for k in range(bins + 1) for side in (-grid, 0.0, grid)}
    confidences = sorted(c for c in edges | {1 / classes, 1.0} if 1 / classes <= c <= 1)
    records = list(itertools.product(confidences, (0, 1)))  # of class 0 or 1, answered with 0
    sent = [submit(method, [label], answers([c], [0], classes), grid) for c, label in records]
    sent = torch.stack(sent)
    furthest = torch.cdist(sent, sent).max().item()
    assert furthest <= method.record_sensitivity(NO_SIZES) * (1 + 1e-12)
    if bins > classes:
        assert furthest >= method.record_sensitivity(NO_SIZES) - 3 * grid * method.weight
    alone = sent.norm(dim=1).max().item()
    assert alone <= method.zero_out_sensitivity(NO_SIZES)
    assert alone >= method.zero_out_sensitivity(NO_SIZES) - 1e-2 * method.weight


@pytest.mark.parametrize(("classes", "bins"), [(2, 10), (3, 4), (3, 0)])
def test_no_record_moves_two_predictions_further(classes: int, bins: int) -> None:
    """All pairs of records whose predictions agree or differ; a bound for one would be too low."""
    method, grid = Evaluation(num_classes=classes, bins=bins, predictions=2), FINEST_GRID
    alone = Evaluation(num_classes=classes, bins=bins)
    edges = [k / max(bins, 1) + side for k in range(bins + 1) for side in (0.0, grid)]
    confidences = sorted(c for c in {*edges[-4:], 1.0} if 1 / classes <= c <= 1)
    predictions = list(itertools.product(confidences, range(2)))
    users, sent = torch.zeros(1, dtype=torch.int64), []
    for (c, first), (d, second), label in itertools.product(predictions, predictions, range(2)):
        both = [answers([c], [first], classes), answers([d], [second], classes)]
        sent.append(method.submit(users, torch.tensor([label]), both, 1, grid)[0])
        pieces = [
            each.submit(users, torch.tensor([label]), [one], 1, grid)[0]
            for (each, _), one in zip(method.apart(sent[-1]), both, strict=True)
        ]
        assert torch.equal(torch.cat(pieces), sent[-1])
    moved = torch.cdist(torch.stack(sent), torch.stack(sent)).max().item()
    stated = method.record_sensitivity(NO_SIZES)
    assert stated == pytest.approx(math.sqrt(2) * alone.record_sensitivity(NO_SIZES), rel=1e-12)
    assert stated - 5 * grid * method.weight <= moved <= stated * (1 + 1e-12)
    longest = max(each.norm().item() for each in sent)
    removed = method.zero_out_sensitivity(NO_SIZES)
    assert removed == pytest.approx(math.sqrt(2) * alone.zero_out_sensitivity(NO_SIZES), rel=1e-12)
    assert removed - 2e-2 * method.weight <= longest <= removed
    assert moved > 1.4 * alone.record_sensitivity(NO_SIZES)
    assert len(sent[0]) == method.dimension == len(method.grid_powers) == 2 * alone.dimension


def test_users_move_it_by_all_their_rows() -> None:
    method = Evaluation(num_classes=2, bins=10)
    first = submit(method, [0] * 7, answers([1.0] * 7, [0] * 7, 2))
    second = submit(method, [1] * 7, answers([0.9 + 4e-6] * 7, [0] * 7, 2))
    moved = (first - second).norm().item()
    seven = torch.tensor([7])
    bound = method.user_sensitivity(seven).item()
    assert bound * 0.9999 <= moved <= bound
    assert method.user_zero_out(seven).item() == 7 * method.zero_out_sensitivity(NO_SIZES)


def test_every_part_moves_by_the_square_root_of_two() -> None:
    method = Evaluation(num_classes=4, bins=10)
    records = ((1.0, 0), (0.5, 1))
    sent = [submit(method, [label], answers([c], [0], 4)) for c, label in records]
    parts = zip(*(method.parts(each) for each in sent), strict=True)
    matrix, by_class, by_bin, rest = [float((a - b).norm()) for a, b in parts]
    assert matrix == by_class == by_bin == pytest.approx(math.sqrt(2))
    assert rest <= 1 / 10
    assert Evaluation(num_classes=4, bins=0).record_sensitivity(NO_SIZES) == 2


@pytest.mark.parametrize("grid", [2.0**-20, 2.0**-13, 2.0**-8])
def test_entries_are_whole_steps(grid: float) -> None:
    draw = np.random.default_rng(1)
    probabilities = torch.from_numpy(draw.dirichlet([0.4] * 6, 300))
    for bins in (0, 1, 3, 10, 50):
        method = Evaluation(num_classes=6, bins=bins)
        sent = submit(method, draw.integers(0, 6, 300).tolist(), probabilities, grid)
        assert len(sent) == method.dimension == len(method.grid_powers)
        assert torch.equal(sent / grid, (sent / grid).round())
        assert sent.abs().max() <= method.entry_bound(300)


def test_any_model_can_be_asked() -> None:
    """One that overflows, or is less sure than any model can be, is counted all the same."""
    method = Evaluation(num_classes=3, bins=10)
    odd = torch.tensor([[math.nan] * 3, [0.2, 0.2, 0.2], [1.5, 0.0, 0.0]], dtype=torch.float64)
    for row in odd:
        sent = submit(method, [2], row[None])
        assert sent.isfinite().all()
        assert sent.norm() <= method.zero_out_sensitivity(NO_SIZES) + 1e-9
        assert method.parts(sent)[0].sum() == method.parts(sent)[2].sum() == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_classes": 1}, "num_classes must be >= 2, got 1"),
        ({"num_classes": 2, "predictions": 0}, "predictions must be >= 1, got 0"),
        ({"num_classes": 2, "bins": -1}, "bins must be in .0, 50., got -1"),
        ({"num_classes": 2, "bins": MOST_BINS + 1}, "bins must be in .0, 50., got 51"),
    ],
)
def test_bad_settings(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Evaluation(**settings).validate()
