"""What users send of a model's answers, how far one record moves it, and intervals that cover."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from embed import EmbeddingSet
from embed.hold_out import with_held_out
from train_distributed import Privacy, Release
from train_distributed.one_shot.release import measure
from train_distributed.one_shot.request import FaultInjection
from train_distributed.partition import split
from train_distributed.privacy import mechanism
from train_distributed.released import COARSEST_GRID, FINEST_GRID, MOST_BINS
from train_distributed.released import evaluation_estimates as estimates
from train_distributed.released.evaluate import evaluate, summed
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
NAMES, LABELS = tuple("abcde"), np.repeat(np.arange(5), [520, 480, 400, 300, 300])


@pytest.mark.parametrize(("hits", "rows"), [(0, 9), (3, 9), (9, 9), (70, 300), (1, 1)])
def test_without_noise_it_is_the_interval_of_clopper_and_pearson(hits: int, rows: int) -> None:
    found = estimates.proportion(hits, rows, 0.0, confidence=0.9)
    exact = binomtest(hits, rows).proportion_ci(0.9, "exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-8)
    assert found.estimate == hits / rows


@pytest.mark.parametrize(
    ("rows", "share", "noise"),
    [(10_000, 0.55, 150.0), (100, 0.9, 1.0), (100, 0.99, 0.01), (12, 0.5, 0.3), (10, 1.0, 2.0)],
)
def test_a_noisy_share_is_covered(rows: int, share: float, noise: float) -> None:
    draw = np.random.default_rng(0)
    counts = draw.binomial(rows, share, 300) + noise * draw.standard_normal(300)
    found = [estimates.proportion(c, rows, noise, confidence=CONFIDENCE) for c in counts]
    assert np.mean([each.low <= share <= each.high for each in found]) >= LEAST
    drowned = all(each.high - each.low > 0.9 for each in found)
    assert not drowned


def test_noise_and_clusters_widen_an_interval() -> None:
    """Where nothing is answered right little is random but the noise: 1.96 σ and a little more."""
    found = estimates.proportion(0.0, 10_000, 50.0, confidence=CONFIDENCE)
    assert found.low == 0
    assert 1.9 * 50 < 10_000 * found.high < 2.4 * 50
    wide = estimates.proportion(5000, 10_000, 0.0, confidence=CONFIDENCE, design_effect=25.0)
    alone = estimates.proportion(5000, 10_000, 0.0, confidence=CONFIDENCE)
    assert (wide.high - wide.low) / (alone.high - alone.low) == pytest.approx(5, rel=0.05)


def drawn(
    sizes: Sequence[int], recalls: Sequence[float], noise: float, count: int, seed: int = 0
) -> list[estimates.ClassRecalls]:
    """Rows of random classes, right or wrong by the recalls, counted with noise."""
    draw, classes, rows = np.random.default_rng(seed), len(sizes), sum(sizes)
    a, b = noise**2 / 2, noise**2 * (classes - 1) / classes
    found = []
    for _ in range(count):
        own = draw.multinomial(rows, np.array(sizes) / rows)
        hits = draw.binomial(own, recalls)
        seen = hits + a**0.5 * draw.standard_normal(classes)
        missed = own - hits + b**0.5 * draw.standard_normal(classes)
        found.append(estimates.ClassRecalls.of(seen, missed, (a, b), confidence=CONFIDENCE))
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
    shares = estimates.ClassRecalls.of([30.0, 5.0], [10.0, -4.0], (9.0, 9.0), confidence=CONFIDENCE)
    known, drowned = shares.intervals()
    assert known.estimate is not None
    assert drowned == estimates.Interval(0.0, 1.0, None)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got \[0.6, 0.5\]"):
        estimates.Interval(0.6, 0.5, None)
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
        estimates.absolute_sum(
            truth + stds * draw.standard_normal(8), stds, 10_000, confidence=CONFIDENCE
        )
        for _ in range(50)
    ]
    assert np.mean([each.low <= share <= each.high for each in found]) >= LEAST


def estimated(
    predicted: np.ndarray, labels: np.ndarray, noise: float, seed: int
) -> estimates.Estimates:
    method = Evaluation(num_classes=5)
    shares = torch.nn.functional.one_hot(torch.from_numpy(predicted), 5).double()
    users = torch.zeros(len(labels), dtype=torch.int64)
    sent = method.submit(users, torch.from_numpy(labels), [shares], 1, FINEST_GRID)[0]
    draws = torch.Generator().manual_seed(seed)
    total = sent + noise * torch.randn(sent.shape, generator=draws, dtype=torch.float64)
    given = {"confidence": 0.9, "sampling": "rows", "grid": FINEST_GRID}
    return estimates.estimate(method, total, torch.tensor([len(labels)]), noise, **given)


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


NONE, SOME = Privacy(math.inf, 1e-5), Privacy(1.0, 1e-5)


@pytest.fixture
def rows(released: Release) -> EmbeddingSet:
    """400 rows of 20 users, a quarter of every user's held out."""
    draw = np.random.default_rng(3)
    x = draw.standard_normal((400, 6)).astype(np.float32) + 5
    labels = released.predict(x).numpy()
    labels[::4] = draw.integers(0, 3, 100)
    users = np.arange(400) % 20
    meta = {"class_names": list(released.class_names)}
    return with_held_out(EmbeddingSet(embeddings=x, labels=labels, users=users, meta=meta), 0.25)


def test_without_noise_it_counts(released: Release, rows: EmbeddingSet) -> None:
    found = evaluate(released, rows, NONE)
    wanted = torch.tensor(measure(released, rows, 2)["confusion"])
    counted = found.estimates
    assert torch.equal(counted.confusion, wanted.double())
    assert counted.accuracy.estimate == pytest.approx(float(wanted.trace() / wanted.sum()))
    recalls = (wanted.diagonal() / wanted.sum(1)).tolist()
    assert [each.estimate for each in counted.recalls] == pytest.approx(recalls)
    assert counted.balanced_accuracy.estimate == pytest.approx(np.mean(recalls))
    assert found.report["rows"] == 100
    assert not found.report["suitable_for_release"]
    json.dumps(found.report, allow_nan=False)


def test_one_sum_evaluates_two_priors(released: Release, rows: EmbeddingSet) -> None:
    """At one ε both have √2 times the noise; without noise each is what it is by itself."""
    shares = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    movable = replace(released, prior="equal", class_shares=shares)
    found = evaluate(movable, rows, NONE, prior="both").report
    assert list(found["by_prior"]) == ["equal", "private"]
    for prior in ("equal", "private"):
        alone = evaluate(movable, rows, NONE, prior=prior).report
        assert (alone["prior"], "by_prior" in alone) == (prior, False)
        counted = measure(movable.with_prior(prior), rows, 2)["confusion"]
        assert alone["confusion"] == found["by_prior"][prior]["confusion"] == counted
        own = evaluate(movable.with_prior(prior), rows, NONE, prior="both").report
        assert (own["prior"], own["confusion"]) == (prior, counted)
    assert found["by_prior"]["private"]["confusion"] != found["confusion"]
    shared, single = (summed(movable, rows, SOME, prior=prior) for prior in ("both", "private"))
    assert shared.noise_std == pytest.approx(2**0.5 * single.noise_std, rel=1e-3)
    assert shared.report["sensitivity"] == pytest.approx(2**0.5 * single.report["sensitivity"])
    assert shared.report["epsilon"] == single.report["epsilon"]
    report = evaluate(movable, rows, SOME, prior="both").report
    for share in report["by_prior"].values():
        assert 0 <= share["balanced_accuracy"]["low"] <= share["balanced_accuracy"]["high"] <= 1
    json.dumps(report, allow_nan=False)


def test_of_a_private_one_the_report_says_what_holds(released: Release, rows) -> None:
    report = evaluate(released, rows, SOME).report
    assert report["suitable_for_release"]
    assert (report["noise"], report["users"], report["rows"]) == ("discrete", 20, 100)
    assert "do not add up" in report["with_the_training"]
    for name in ("accuracy", "balanced_accuracy", "expected_calibration_error"):
        assert 0 <= report[name]["low"] <= report[name]["high"] <= 1
    drowned = [share for share in report["recall"].values() if share.get("too_few_rows")]
    assert drowned  # a third of 100 rows in noise of this size
    assert all(share["estimate"] is None for share in drowned)


def test_the_noise_in_the_sum_is_what_is_stated(released: Release, rows: EmbeddingSet) -> None:
    bare = summed(released, rows, NONE).opened
    found = [summed(released, rows, SOME, noise="float") for _ in range(60)]
    assert all(each.noise_std == found[0].noise_std for each in found)
    noise = torch.stack([each.opened - bare for each in found]) / found[0].noise_std
    assert noise.std().item() == pytest.approx(1, rel=0.06)
    of = found[0].report  # 10 of 20 users are honest, and all 20 add theirs
    stated = of["noise_multiplier"] * of["sensitivity"] * 2**0.5
    assert found[0].noise_std == pytest.approx(stated, rel=1e-6)
    exact = summed(released, rows, SOME)
    assert exact.noise_std == pytest.approx(found[0].noise_std, rel=1e-3)
    assert exact.noise_std >= found[0].noise_std


def test_nothing_is_drawn_before_it_is_counted(released: Release, rows, monkeypatch) -> None:
    def stop(noise: Any) -> None:
        assert noise["noise"] == "discrete"
        assert noise["sigma"] / noise["sensitivity"] == pytest.approx(3.7306, rel=1e-3)
        raise ValueError("the limit is reached")

    monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ValueError, match="the limit is reached"):
        evaluate(released, rows, SOME, reserve=stop)


def test_rows_that_were_trained_on(released: Release, rows: EmbeddingSet) -> None:
    x = np.array(rows.embeddings)
    train, held = np.flatnonzero(rows.split == 0), np.flatnonzero(rows.split == 2)
    x[held[:3]] = x[train[:3]].astype(np.float16)  # stored in another precision
    x[train[:3]] = x[held[:3]]
    drawn = replace(rows, embeddings=x)
    found = evaluate(released, drawn, SOME)  # of one draw: equal rows are two records
    assert "do not add up" in found.report["with_the_training"]
    meta = {name: value for name, value in rows.meta.items() if name != "held_out"}
    shared = replace(drawn, meta=meta)
    with pytest.raises(ValueError, match=r"must not be training rows, got row \d+ and 2 more"):
        evaluate(released, shared, SOME)
    alone = rows.subset(rows.split == 2)
    words = "do not add up, if the model learned from training rows of these sets alone"
    assert words in evaluate(released, alone, SOME).report["with_the_training"]
    other = replace(alone, split=np.zeros(len(alone), np.uint8))
    with pytest.raises(ValueError, match=r"must not be training rows, got row 0 and 99 more"):
        evaluate(released, alone, SOME, training=[other])


def test_nobody_counts_the_training_rows_that_are_let_in(released: Release, rows) -> None:
    """The number would be exact, and no ε covers it: nothing but the sum may depend on it."""
    x = np.array(rows.embeddings)
    x[np.flatnonzero(rows.split == 0)[:3]] = x[np.flatnonzero(rows.split == 2)[:3]]
    reports = [
        evaluate(released, replace(rows, embeddings=each, meta={}), SOME, overlap="add").report
        for each in (rows.embeddings, x)
    ]
    assert reports[0]["with_the_training"].endswith("the promises add up")
    of_sum = reports[0].keys() - summed(released, rows, SOME).report.keys()
    first, second = ({k: v for k, v in each.items() if k not in of_sum} for each in reports)
    assert first == second


def test_a_draw_by_a_seed_is_for_simulations(released: Release, rows: EmbeddingSet) -> None:
    seeded = replace(rows, meta=rows.meta | {"held_out": {"seed": 0}})
    with pytest.raises(ValueError, match="rows must be held out by the operating system's draw"):
        evaluate(released, seeded, SOME)
    report = evaluate(released, seeded, SOME, noise="float").report
    assert "a seed says which rows are held out" in report["unsuitable_because"]


def test_for_users_and_groups_promises_add_up(released: Release, rows: EmbeddingSet) -> None:
    single = summed(released, rows, SOME, noise="float")
    by_user, by_pair = Privacy(1.0, 1e-5, unit="user"), Privacy(1.0, 1e-5, None, group_size=2)
    for privacy, times in ((by_user, 5), (by_pair, 2)):
        found = summed(released, rows, privacy, noise="float")
        assert "promises add up" in found.report["with_the_training"]
        assert found.noise_std == pytest.approx(times * single.noise_std)


def test_users_that_drop_out(released: Release, rows: EmbeddingSet) -> None:
    given: Any = {"partition": split(torch.zeros(100, dtype=torch.int64), 10), "bins": 0}
    given |= {"faults": FaultInjection(dropped=[9]), "min_survivors": 9}
    found = summed(released, rows, SOME, **given)
    assert (found.report["survivors"], found.report["rows"]) == (9, 90)
    assert found.sizes.tolist() == [10] * 9
    assert not found.report["suitable_for_release"]


def test_clusters_widen_intervals(released: Release, rows: EmbeddingSet) -> None:
    found = (evaluate(released, rows, NONE, sampling=by) for by in ("rows", "users"))
    alone, whole = (each.estimates.accuracy for each in found)
    assert whole.high - whole.low > 1.8 * (alone.high - alone.low)  # sqrt(5 rows of every user)


def test_rows_that_no_evaluation_looks_at(released: Release, rows: EmbeddingSet) -> None:
    x, held = np.array(rows.embeddings), np.flatnonzero(rows.split == 2)
    x[held[5], 2] = np.nan
    labels = np.array(rows.labels)
    labels[held[4]] = 7
    assert released.encoding is not None
    of_another = released.encoding.to_json() | {"encoder_hash": "1" * 64}
    turned = {"class_names": ["dog", "cat", "owl"]}
    changes: dict[str, dict[str, Any]] = {
        "got none; `embed hold-out --share 0.2`": {"split": np.zeros(400, np.uint8)},
        "must have the model's 6 columns, got 5": {"embeddings": x[:, :5].copy()},
        f"must be finite, got nan in row {held[5]}": {"embeddings": x},
        r"must lie in \[0, 3\), got 7 and 1 outside": {"labels": labels, "meta": {}},
        r"must be \('cat', .* as the model's, got \('dog', 'cat'": {"meta": turned},
        r"as the model's, got \('dog'": {"meta": turned | {"classes": "inferred"}},
        "must have labels": {"labels": np.full(400, -1), "meta": {}},
        "model and embeddings must be embedded by one encoder": {"meta": of_another},
    }
    for words, change in changes.items():
        with pytest.raises(ValueError, match=words):
            evaluate(released, replace(rows, **change), SOME)


def test_settings_of_an_evaluation_that_are_refused(released: Release, rows) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"noise": "none"}, "noise must be one of discrete, float, got 'none'"),
        ({"generator": torch.Generator()}, "generator must be None for noise 'discrete'"),
        ({"confidence": 0.9999}, "confidence must be in .0.5, 0.999., got 0.9999"),
        ({"sampling": "all"}, "sampling must be one of rows, users, got 'all'"),
        ({"overlap": "yes"}, "overlap must be one of refuse, add, got 'yes'"),
        ({"bins": 51}, "bins must be in .0, 50., got 51"),
        ({"min_survivors": 21}, r"min_survivors must be in \[1, 20\]"),
        ({"partition": split(torch.zeros(99).long(), 9)}, "must cover the 100"),
        *(({"prior": prior}, "carries the prior of its") for prior in ("both", (0.2, 0.3, 0.5))),
    ]
    for settings, words in refused:
        with pytest.raises(ValueError, match=words):
            evaluate(released, rows, SOME, **settings)
