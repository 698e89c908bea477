"""The embedded default: what it keeps apart, and what it prints."""

import numpy as np
import pytest
import torch

from pretrain import probe, simclr
from train_distributed.commands import rehearsing
from train_distributed.research.experiments.figures import summarise
from train_distributed.simulation import digits as digit_sets
from train_distributed.simulation.plan import Result


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, np.ndarray]:
    return digit_sets.load_digits()


def test_public_labels_are_withheld_and_no_digit_is_on_both_sides(digits):
    images, labels = digits
    assert images.shape == (5000, 1, 28, 28)
    assert images.dtype == torch.uint8
    public, private = digit_sets.split_digits(digit_sets.pixels(images), labels)
    assert not public.labels.any()
    assert (private.labels == labels[digit_sets.PUBLIC :]).all()
    assert np.bincount(private.split).tolist() == [digit_sets.PRIVATE, digit_sets.TEST_ROWS]
    held = {row.tobytes() for row in np.asarray(private.embeddings)}
    assert not held & {row.tobytes() for row in np.asarray(public.embeddings)}


def test_the_encoder_sees_public_digits_alone(monkeypatch, digits):
    images, _ = digits
    seen = []

    def record(given, config, generator):
        seen.append(given)
        return torch.nn.Flatten(), []

    monkeypatch.setattr(simclr, "pretrain", record)
    monkeypatch.setattr(probe, "embed_all", lambda encoder, given: encoder(given).float())
    embeddings = rehearsing.simclr_embeddings(images)
    assert len(embeddings) == len(images)
    assert len(seen) == 1
    assert torch.equal(seen[0][:, :1], images[: digit_sets.PUBLIC])


def test_the_best_method_of_a_cell_is_the_one_with_the_best_mean():
    def cells(label: str, values: list[float]) -> list[Result]:
        return [
            Result(label, label, "iid", 1.0, seed, value, {}, "pixels")
            for seed, value in enumerate(values)
        ]

    rows = [*cells("a", [0.9, 0.1]), *cells("b", [0.6, 0.6])]
    found = summarise(rows, by=("scheme", "epsilon"))
    assert found["iid", 1.0].mean == pytest.approx(0.6)


def test_bad_settings_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(digit_sets, "load_digits", lambda: pytest.fail("worked before it checked"))
    with pytest.raises(ValueError, match=r"epsilon must be .* got -1"):
        rehearsing.Demo(epsilons=(-1.0,), out=tmp_path / "new").run()
    with pytest.raises(FileExistsError):
        rehearsing.Demo(out=tmp_path).run()
    assert not list(tmp_path.iterdir())
