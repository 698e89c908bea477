"""Intervals cover what they are of, for any noise; the largest share of a class is among them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from train_distributed.released import FINEST_GRID
from train_distributed.released.evaluation import Evaluation
from train_distributed.released.evaluation_estimates import (
    ClassRecalls,
    Estimates,
    Interval,
    absolute_sum,
    estimate,
    proportion,
)

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
def test_balanced_accuracy_and_recalls_are_covered(
    sizes: list[int], recalls: list[float], noise: float
) -> None:
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


def test_a_model_that_always_says_the_same_is_warned_of() -> None:
    report = estimated(np.zeros_like(LABELS), LABELS, 5.0, 0).as_dict(NAMES)
    above, few = report["warnings"]
    assert "of always answering with the most frequent class" in above
    assert few == "few classes: 95 % of the rows hold 5 classes and are taken for 1"
    assert (report["majority_class"], report["accuracy"]["high"] > 0.25) == ("a", True)


def test_a_good_model_is_warned_of_nothing_but_a_shift_whatever_the_noise() -> None:
    found = estimated(LABELS, LABELS, 5.0, 0)
    assert found.as_dict(NAMES)["warnings"] == []
    learned = dict(zip(NAMES, (0.8, 0.05, 0.05, 0.05, 0.05), strict=True))
    (words,) = found.as_dict(NAMES, learned)["warnings"]
    assert words.startswith("the classes are shifted: the model goes by 80.0 % of 'a'")
    for seed in range(20):
        warned = estimated(LABELS, LABELS, 150.0, seed).as_dict(NAMES)["warnings"]
        assert not any(words.startswith("few classes") for words in warned)
