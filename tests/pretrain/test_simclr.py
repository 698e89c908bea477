import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from pretrain.probe import embed_all, knn_accuracy, linear_accuracy
from pretrain.recipes import DIGITS, SMALL
from pretrain.resnet import ResNetConfig
from pretrain.simclr import (
    CHECKPOINT,
    AugmentConfig,
    SimCLRConfig,
    cosine_rate,
    pretrain,
)

CONFIG = SimCLRConfig(
    encoder=ResNetConfig((8, 16), (1, 1)),
    augment=AugmentConfig(size=8),
    epochs=3,
    batch_size=16,
    hidden=16,
    projected=8,
)


def pictures(n: int = 64, side: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=generator)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("steps", [1, 4, 11])
def test_a_resumed_run_has_the_same_weights(tmp_path: Path, steps: int) -> None:
    whole, history = pretrain(pictures(), CONFIG, seeded())
    with pytest.MonkeyPatch.context() as patch:
        from pretrain import simclr

        save = simclr._Run.save

        def save_and_die(run: simclr._Run, path: Path, images: torch.Tensor) -> None:
            save(run, path, images)
            if run.step == steps:
                raise KilledError

        patch.setattr(simclr, "CHECKPOINT_STEPS", 1)
        patch.setattr(simclr._Run, "save", save_and_die)
        with pytest.raises(KilledError):
            pretrain(pictures(), CONFIG, seeded(), directory=tmp_path)
    resumed, again = pretrain(pictures(), CONFIG, seeded(), directory=tmp_path)
    assert again == history
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    short = dataclasses.replace(CONFIG, epochs=1)
    pretrain(pictures(), short, seeded(), directory=tmp_path)
    with pytest.raises(ValueError, match="must be of the same run, got another epochs"):
        pretrain(pictures(), CONFIG, seeded(), directory=tmp_path)
    with pytest.raises(ValueError, match="another seed"):
        pretrain(pictures(), short, torch.Generator().manual_seed(6), directory=tmp_path)
    with pytest.raises(ValueError, match="another images"):
        pretrain(pictures(32), short, seeded(), directory=tmp_path)
    hotter = dataclasses.replace(short, temperature=1.0)
    with pytest.raises(ValueError, match="another temperature"):
        pretrain(pictures(), hotter, seeded(), directory=tmp_path)


def test_damaged_checkpoints_are_errors(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="must be a SimCLR checkpoint"):
        pretrain(pictures(), CONFIG, seeded(), directory=tmp_path)


def test_the_loss_falls_and_the_monitor_is_called() -> None:
    config = dataclasses.replace(CONFIG, epochs=6, learning_rate=5e-3)
    shades = torch.randint(0, 256, (64, 3, 1, 1), dtype=torch.uint8, generator=seeded())
    images = (pictures() // 8 + shades // 2).expand(-1, -1, 8, 8).contiguous()
    _, history = pretrain(images, config, seeded(), monitor=lambda e: {"dim": e.embedding_dim})
    assert [entry["epoch"] for entry in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["loss"] < history[0]["loss"]
    assert history[0]["dim"] == 16


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be finite and > 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be finite and > 0, got nan"),
        ({"warmup": 1.0}, r"warmup must be in \[0, 1\)"),
    ],
)
def test_bad_recipes(options: dict[str, float], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        SimCLRConfig(**options)  # pyright: ignore[reportArgumentType]


def test_batches_must_be_full_and_shared_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="N >= batch_size 16"):
        pretrain(pictures(8), CONFIG, seeded())
    monkeypatch.setattr("pretrain.simclr.world_size", lambda: 3)
    with pytest.raises(ValueError, match="batch_size must be divisible by 3 processes, got 16"):
        pretrain(pictures(), CONFIG, seeded())


def test_the_learning_rate_warms_up_and_ends_at_zero() -> None:
    rates = [cosine_rate(step, total=100, warmup=10) for step in range(101)]
    assert rates[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert rates[100] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def clusters(n: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    centres = 4 * torch.eye(4, 10)
    return centres[labels] + torch.randn(n, 10, generator=generator), labels.numpy()


def test_probes_find_separated_classes_and_nothing_else() -> None:
    train, y = clusters(400, 0)
    test, test_y = clusters(200, 1)
    assert knn_accuracy(train, y, test, test_y) > 0.95
    assert linear_accuracy(train, y, test, test_y) > 0.95
    shuffled = y[torch.randperm(400, generator=seeded())]
    assert linear_accuracy(train, shuffled, test, test_y) < 0.5
    assert knn_accuracy(train[:4], y[:4], test, test_y) > 0.9  # fewer than k


def test_near_neighbours_outvote_many_others() -> None:
    train = torch.tensor([[1.0, 0.01], *[[1.0, 0.5 + k / 10] for k in range(9)]])
    labels = np.array([0] + [1] * 9)
    assert knn_accuracy(train, labels, torch.tensor([[2.0, 0.0]]), labels[:1], k=3) == 1.0


def test_embedding_in_batches() -> None:
    encoder, _ = pretrain(pictures(), dataclasses.replace(CONFIG, epochs=1), seeded())
    whole = embed_all(encoder, pictures(300))
    assert whole.shape == (300, 16)
    assert torch.allclose(whole[250:], embed_all(encoder, pictures(300)[250:]), atol=1e-5)


@pytest.mark.parametrize("recipe", [SMALL, DIGITS])
def test_recipes_train(recipe: SimCLRConfig) -> None:
    short = dataclasses.replace(recipe, epochs=1, batch_size=4)
    encoder, history = pretrain(pictures(8, side=28), short, seeded())
    assert encoder.embedding_dim == recipe.encoder.widths[-1]
    assert len(history) == 1
