"""The majority baseline of a private evaluation, from the noised sum alone, and its warnings."""

import numpy as np
import pytest
import torch

from train_distributed.released import FINEST_GRID
from train_distributed.released.evaluation import Evaluation
from train_distributed.released.evaluation_estimates import Estimates, estimate

NAMES = tuple("abcde")
LABELS = np.repeat(np.arange(5), [520, 480, 400, 300, 300])


def estimated(predicted: np.ndarray, labels: np.ndarray, noise: float, seed: int) -> Estimates:
    method = Evaluation(num_classes=5)
    shares = torch.nn.functional.one_hot(torch.from_numpy(predicted), 5).double()
    users = torch.zeros(len(labels), dtype=torch.int64)
    sent = method.submit(users, torch.from_numpy(labels), [shares], 1, FINEST_GRID)[0]
    draws = torch.Generator().manual_seed(seed)
    total = sent + noise * torch.randn(sent.shape, generator=draws, dtype=torch.float64)
    return estimate(
        method,
        total,
        torch.tensor([len(labels)]),
        noise,
        confidence=0.9,
        sampling="rows",
        grid=FINEST_GRID,
    )


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


def test_a_good_model_is_warned_of_nothing_but_a_shift() -> None:
    found = estimated(LABELS, LABELS, 5.0, 0)
    assert found.as_dict(NAMES)["warnings"] == []
    learned = dict(zip(NAMES, (0.8, 0.05, 0.05, 0.05, 0.05), strict=True))
    (words,) = found.as_dict(NAMES, learned)["warnings"]
    assert words.startswith("the classes are shifted: the model goes by 80.0 % of 'a'")


def test_in_much_noise_no_class_is_said_to_be_missing() -> None:
    for seed in range(20):
        warned = estimated(LABELS, LABELS, 150.0, seed).as_dict(NAMES)["warnings"]
        assert not any(words.startswith("few classes") for words in warned)
