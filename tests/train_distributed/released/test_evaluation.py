"""What users send of a model's answers, how far one record moves it, and intervals that cover."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from train_distributed.released import COARSEST_GRID, FINEST_GRID, MOST_BINS
from train_distributed.released.evaluation import Evaluation
from train_distributed.released.evaluation_estimates import (
    ClassRecalls,
    Estimates,
    Interval,
    absolute_sum,
    estimate,
    proportion,
)

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
    if bins > classes or not bins:
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
    method, seven = Evaluation(num_classes=2, bins=10), torch.tensor([7])
    first = submit(method, [0] * 7, answers([1.0] * 7, [0] * 7, 2))
    second = submit(method, [1] * 7, answers([0.9 + 4e-6] * 7, [0] * 7, 2))
    bound = method.user_sensitivity(seven).item()
    assert bound * 0.9999 <= (first - second).norm().item() <= bound
    assert method.user_zero_out(seven).item() == 7 * method.zero_out_sensitivity(NO_SIZES)


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
    for wrong in ({"num_classes": 1}, {"predictions": 0}, {"bins": -1}, {"bins": MOST_BINS + 1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be .*got"):
            Evaluation(**{"num_classes": 2} | wrong).validate()


CONFIDENCE, LEAST = 0.95, 0.93  # stated; found, of 250 draws and more, by correct code
NAMES = tuple("abcde")
LABELS = np.repeat(np.arange(5), [520, 480, 400, 300, 300])


@pytest.mark.parametrize(("hits", "rows"), [(0, 9), (3, 9), (9, 9), (70, 300), (1, 1)])
def test_without_noise_it_is_the_interval_of_clopper_and_pearson(hits: int, rows: int) -> None:
    found = proportion(hits, rows, 0.0, confidence=0.9)
    exact = binomtest(hits, rows).proportion_ci(0.9, "exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-8)
    assert found.estimate == hits / rows


@pytest.mark.parametrize(
    ("draws", "rows", "share", "noise"),
    [
        (250, 10_000, 0.55, 150.0),
        (300, 100, 0.9, 1.0),
        (300, 100, 0.99, 0.01),
        (300, 12, 0.5, 0.3),
        (300, 10, 1.0, 2.0),
    ],
)
def test_a_noisy_share_is_covered(draws: int, rows: int, share: float, noise: float) -> None:
    draw = np.random.default_rng(0)
    counts = draw.binomial(rows, share, draws) + noise * draw.standard_normal(draws)
    found = [proportion(c, rows, noise, confidence=CONFIDENCE) for c in counts]
    assert np.mean([each.low <= share <= each.high for each in found]) >= LEAST
    drowned = all(each.high - each.low > 0.9 for each in found)
    assert not drowned


def test_noise_and_clusters_widen_an_interval() -> None:
    """Where nothing is answered right little is random but the noise: 1.96 σ and a little more."""
    found = proportion(0.0, 10_000, 50.0, confidence=CONFIDENCE)
    assert found.low == 0
    assert 1.9 * 50 < 10_000 * found.high < 2.4 * 50
    wide = proportion(5000, 10_000, 0.0, confidence=CONFIDENCE, design_effect=25.0)
    alone = proportion(5000, 10_000, 0.0, confidence=CONFIDENCE)
    assert (wide.high - wide.low) / (alone.high - alone.low) == pytest.approx(5, rel=0.05)


def drawn(
    sizes: Sequence[int], recalls: Sequence[float], noise: float, count: int, seed: int = 0
) -> list[ClassRecalls]:
    """Rows of random classes, right or wrong by the recalls, counted with noise."""
    draw, classes, rows = np.random.default_rng(seed), len(sizes), sum(sizes)
    a, b = noise**2 / 2, noise**2 * (classes - 1) / classes
    found = []
    for _ in range(count):
        own = draw.multinomial(rows, np.array(sizes) / rows)
        hits = draw.binomial(own, recalls)
        seen = hits + a**0.5 * draw.standard_normal(classes)
        missed = own - hits + b**0.5 * draw.standard_normal(classes)
        found.append(ClassRecalls.of(seen, missed, (a, b), confidence=CONFIDENCE))
    return found


@pytest.mark.parametrize(
    ("sizes", "recalls", "noise"),
    [
        ([1000] * 10, np.linspace(0.3, 0.9, 10), 108.0),  # noise decides
        ([1000] * 10, [0.98] * 10, 108.0),  # a ratio's bias would leave it out
        ([500] * 10, [0.9] * 10, 108.0),  # half of the classes drown
        ([20] * 10, [0.9] * 10, 0.3),  # few rows decide
        ([5] * 10, [0.9] * 10, 0.01),
        ([2, 2, 2, 500, 500], [0.5, 0.9, 1.0, 0.9, 0.4], 0.5),
        ([30, 900], [0.1, 0.99], 5.0),
        ([50] * 60, [0.95] * 60, 1.0),
    ],
)
def test_balanced_accuracy_and_recalls_are_covered(sizes, recalls, noise: float) -> None:
    truth, found = float(np.mean(recalls)), drawn(sizes, recalls, noise, 500)
    means = [shares.mean() for shares in found]
    assert np.mean([each.low <= truth <= each.high for each in means]) >= LEAST
    hits = [
        [e.low <= r <= e.high for e, r in zip(s.intervals(), recalls, strict=True)] for s in found
    ]
    assert np.mean(hits, axis=0).min() >= LEAST - 0.01


def test_intervals_are_no_wider_than_needed() -> None:
    found = drawn([1000] * 10, [0.5] * 10, 10.0, 100)
    widths = [shares.mean().high - shares.mean().low for shares in found]
    single = [each.high - each.low for shares in found for each in shares.intervals()]
    sampling, noise = 0.25 / 1000, (0.25 * 50 + 0.25 * 90) / 1000**2
    ideal = 2 * 1.96 * (sampling + noise) ** 0.5
    assert np.mean(single) == pytest.approx(ideal, rel=0.05)
    assert np.mean(widths) == pytest.approx(ideal / 10**0.5, rel=0.05)


def test_of_drowned_classes_nothing_is_said() -> None:
    shares = ClassRecalls.of([30.0, 5.0], [10.0, -4.0], (9.0, 9.0), confidence=CONFIDENCE)
    known, drowned = shares.intervals()
    assert known.estimate is not None
    assert drowned == Interval(0.0, 1.0, None)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got \[0.6, 0.5\]"):
        Interval(0.6, 0.5, None)
    mean = shares.mean()
    assert mean.estimate is None
    assert (mean.low, mean.high) == pytest.approx((known.low / 2, (known.high + 1) / 2), abs=0.02)


@pytest.mark.parametrize("noise", [2.0, 80.0])
@pytest.mark.parametrize("truth", [[0.0] * 8, [300.0] + [0.0] * 7, [200.0, -150.0] * 4])
def test_sums_of_absolute_values_are_covered(truth: list[float], noise: float) -> None:
    draw = np.random.default_rng(0)
    stds = np.full(8, noise)
    share = float(np.abs(truth).sum()) / 10_000
    found = [
        absolute_sum(truth + stds * draw.standard_normal(8), stds, 10_000, confidence=CONFIDENCE)
        for _ in range(50)
    ]
    assert np.mean([each.low <= share <= each.high for each in found]) >= LEAST


def estimated(predicted: np.ndarray, labels: np.ndarray, noise: float, seed: int) -> Estimates:
    method = Evaluation(num_classes=5)
    shares = torch.nn.functional.one_hot(torch.from_numpy(predicted), 5).double()
    users = torch.zeros(len(labels), dtype=torch.int64)
    sent = method.submit(users, torch.from_numpy(labels), [shares], 1, FINEST_GRID)[0]
    draws = torch.Generator().manual_seed(seed)
    total = sent + noise * torch.randn(sent.shape, generator=draws, dtype=torch.float64)
    given = {"confidence": 0.9, "sampling": "rows", "grid": FINEST_GRID}
    return estimate(method, total, torch.tensor([len(labels)]), noise, **given)


@pytest.mark.parametrize("noise", [0.0, 20.0, 80.0])
def test_the_largest_share_is_covered_whichever_class_looks_largest(noise: float) -> None:
    draw, covered, winners = np.random.default_rng(0), 0, set()
    for seed in range(100):
        labels = draw.choice(LABELS, len(LABELS))
        found = estimated(labels, labels, noise, seed)
        covered += found.majority.low <= 0.26 <= found.majority.high
        winners.add(found.majority_class)
    assert covered >= 85  # of 90 expected at least
    assert len(winners) > 1 or not noise


def test_a_model_is_warned_of_what_its_answers_show_whatever_the_noise() -> None:
    report = estimated(np.zeros_like(LABELS), LABELS, 5.0, 0).as_dict(NAMES)
    above, few = report["warnings"]
    assert "of always answering with the most frequent class" in above
    assert few == "few classes: 95 % of the rows hold 5 classes and are taken for 1"
    assert (report["majority_class"], report["accuracy"]["high"] > 0.25) == ("a", True)
    good = estimated(LABELS, LABELS, 5.0, 0)
    assert good.as_dict(NAMES)["warnings"] == []
    learned = dict(zip(NAMES, (0.8, 0.05, 0.05, 0.05, 0.05), strict=True))
    (words,) = good.as_dict(NAMES, learned)["warnings"]
    assert words.startswith("the classes are shifted: the model goes by 80.0 % of 'a'")
    for seed in range(20):
        warned = estimated(LABELS, LABELS, 150.0, seed).as_dict(NAMES)["warnings"]
        assert not any(words.startswith("few classes") for words in warned)
