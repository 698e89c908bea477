"""Words of caution: where they come, and where they do not."""

import numpy as np
import pytest
import torch

from train_distributed.one_shot.metrics import ClassifierMetrics, few_classes, shifted

TEN = np.full(10, 100.0)


@pytest.mark.parametrize(
    ("labels", "predicted", "warned"),
    [
        (TEN, [500, 500, 0, 0, 0, 0, 0, 0, 0, 0], "hold 10 classes and are taken for 2"),
        (TEN, [200, 200, 200, 200, 190, 10, 0, 0, 0, 0], "hold 10 classes and are taken for 5"),
        (TEN, [200, 200, 200, 150, 100, 150, 0, 0, 0, 0], ""),  # six of ten
        (TEN, TEN[::-1], ""),
        ([960, 10, 10, 10, 10], [1000, 0, 0, 0, 0], ""),  # so are the labels
        ([0, 0], [0, 0], ""),
        (TEN, [400, 0, 0, 0, 0, 0, 0, 0, 0, 0], ""),  # noise hides the other columns
    ],
)
def test_few_classes(labels, predicted, warned: str) -> None:
    (found,) = few_classes(np.array(labels, float), np.array(predicted, float)) or [""]
    assert warned in found
    assert bool(warned) == bool(found)


def test_a_shift_of_classes_is_said_beyond_chance_and_noise() -> None:
    names, learned = ("ill", "well"), {"ill": 0.74, "well": 0.26}
    (words,) = shifted(learned, np.array([500.0, 500.0]), names)
    assert "74.0 % of 'ill', of these rows they are 50.0 %" in words
    assert "--prior equal" in words
    assert shifted(learned, np.array([700.0, 300.0]), names) == []
    assert shifted(learned, np.array([5.0, 5.0]), names) == []  # ten rows show nothing
    assert shifted(learned, np.array([500.0, 500.0]), names, noise_std=100.0) == []
    assert shifted(None, np.array([500.0, 500.0]), names) == []
    assert shifted({"a": 1.0}, np.array([500.0, 500.0]), names) == []


def test_metrics_warn_of_two_classes_out_of_ten_and_of_a_shift() -> None:
    labels = np.repeat(np.arange(10), 30)
    scores = torch.nn.functional.one_hot(torch.from_numpy(labels % 2), 10).double()
    learned = {str(k): 0.55 if k == 0 else 0.05 for k in range(10)}
    evaluation = ClassifierMetrics(tuple(map(str, range(10))), len(labels), learned=learned)
    evaluation.add(scores, labels)
    few, shift = evaluation.report()["warnings"]
    assert few == "few classes: 95 % of the rows hold 10 classes and are taken for 2"
    assert shift.startswith("the classes are shifted: the model goes by 55.0 % of '0'")
