"""One picture decides nothing about the rows of others: engine, precision, place and company."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embed import EmbeddingSet, engines
from embed.clip import ROWS, in_blocks
from embed.engines import choose, refusal, trial_pictures
from pretrain import build_encoder
from pretrain.datasets import ImageSet
from pretrain.preprocess import Preprocess
from tests.embed.conftest import embed

CPU = torch.device("cpu")


class Dazzled(nn.Module):
    """Turns bright pictures round in bfloat16, as no engine should and some may."""

    embedding_dim = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))

    def forward(self, images: Tensor) -> Tensor:
        rows = images.mean((2, 3)) * self.weight
        bright = images.mean((1, 2, 3)) > 0.9
        turned = bright & torch.is_autocast_enabled("cpu")
        return torch.where(turned[:, None], -rows, rows)


def a_set(pixels: np.ndarray) -> ImageSet:
    return ImageSet(
        name="set",
        labels=np.zeros(len(pixels), np.int64),
        split=np.zeros(len(pixels), np.uint8),
        class_names=("a", "b"),
        read=lambda rows: pixels[rows],
    )


def test_no_private_picture_chooses_the_precision(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "choose_dtype", lambda device: torch.bfloat16)
    monkeypatch.setattr(engines, "FEW", 0)
    pixels = np.random.default_rng(0).integers(0, 200, (40, 8, 8, 3), np.uint8)
    neighbour = pixels.copy()
    neighbour[0] = 255
    first, second = (
        embed(a_set(each), Dazzled(), tmp_path / name, engine="torch", batch_size=4)
        for name, each in (("first", pixels), ("second", neighbour))
    )
    assert first.meta["compute"] == second.meta["compute"] == "bfloat16"
    assert np.array_equal(first.embeddings[1:], second.embeddings[1:])


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "by place": lambda x: x.mean((2, 3)) + torch.eye(len(x))[:, -1:] * 2**-20,  # the last one
    "by company": lambda x: x.mean((2, 3)) * (1 + x.mean() * 2**-10),
    "by number": lambda x: x.mean((2, 3)) + len(x) * 2.0**-20,
}


@pytest.mark.parametrize("name", ["by place", "by company"])
def test_an_engine_that_mixes_pictures_takes_them_one_by_one(monkeypatch, capsys, name) -> None:
    monkeypatch.setattr(engines, "fast_forward", lambda *_, **__: MIXING[name])
    pixels = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    found = choose(nn.Identity(), CPU, lambda: pixels, rows=8, batch_size=8)
    assert "must not depend on a picture's place in its batch" in capsys.readouterr().err
    order = torch.randperm(8)
    assert torch.equal(found.forward(pixels)[order], found.forward(pixels[order]))
    assert torch.equal(found.forward(pixels)[2:3], found.forward(pixels[2:3]))


def test_a_row_does_not_show_how_many_others_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "fast_forward", lambda *_, **__: MIXING["by number"])
    pixels = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    forward = choose(nn.Identity(), CPU, lambda: pixels, rows=20, batch_size=8).forward
    for count in range(1, 8):
        assert torch.equal(forward(pixels[:count]), forward(pixels)[:count])


def test_generated_pictures_are_the_same_for_everybody_and_differ() -> None:
    pictures = trial_pictures(8, 24, 32)
    assert (pictures.shape, pictures.dtype) == ((8, 3, 24, 32), torch.uint8)
    assert torch.equal(pictures, trial_pictures(8, 24, 32))
    assert len(pictures.flatten(1).unique(dim=0)) == 8
    assert pictures.float().std((1, 2, 3)).min() > 40


def rows_at_any_place(forward: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """The same for pictures that are moved or fewer."""
    rows, batch = forward(pixels), len(pixels)
    for shift in (1, 2, 7, batch // 2):
        assert torch.equal(forward(pixels.roll(shift, 0)).roll(-shift, 0), rows)
    for count in (1, 2, 5, batch - 1):
        assert torch.equal(forward(pixels[:count]), rows[:count])
    return rows


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize("batch", [32, 7])
def test_rows_of_a_real_encoder_stay_the_same_bits_wherever_they_are(engine, batch) -> None:
    """Moved by one, shuffled, among others, and in a batch that is not full."""
    if engine == "openvino" and (why := refusal("float32")):
        pytest.skip(why)
    encoder = build_encoder("simclr-small").eval()
    given = [
        Preprocess()(trial_pictures(batch, 32, 32)),
        torch.rand(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
    ]
    forward = choose(
        encoder, CPU, lambda: given[0], rows=5_000, batch_size=batch, engine=engine
    ).forward
    rows = rows_at_any_place(forward, given[1])
    half = torch.cat([given[0][: batch // 2], given[1][batch // 2 :]])
    assert torch.equal(forward(half)[batch // 2 :], rows[batch // 2 :])


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 2500])
def test_a_product_always_has_as_many_rows(rows: int) -> None:
    """Whatever this machine's kernels do: some sum alike for any number of rows."""
    x, seen = torch.randn(rows, 3), list[int]()

    def compute(block: torch.Tensor, start: int) -> torch.Tensor:
        seen.append(len(block))
        return 2 * block

    assert torch.equal(in_blocks(x, compute, torch.empty(rows, 3)), 2 * x)
    assert seen == [ROWS] * -(-rows // ROWS)


def test_an_embedding_set_of_other_rows_before_it_ends_in_the_same_rows(tmp_path: Path) -> None:
    """As where a picture gets another class, and all after it move up."""
    pixels = np.random.default_rng(0).integers(0, 256, (33, 32, 32, 3), np.uint8)
    made: list[EmbeddingSet] = []
    for name, each in (("first", pixels), ("second", np.roll(pixels, 1, 0))):
        found = embed(a_set(each), build_encoder("simclr-small"), tmp_path / name, shard_rows=20)
        made.append(found)
    assert np.array_equal(np.roll(made[0].embeddings, 1, 0), made[1].embeddings)


@pytest.mark.gpu
@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["simclr-small", "timm:resnet50", "timm:vit_tiny_patch16_224"])
def test_rows_of_a_gpu_stay_the_same_bits_wherever_they_are(name: str, compute: str) -> None:
    """By the engine that is chosen there, be it picture by picture."""
    device, batch = torch.device("cuda"), 64
    encoder = build_encoder(name, weights="random" if name.startswith("timm") else None).eval()
    trial = encoder.preprocess(trial_pictures(batch, 32, 32).to(device))
    found = choose(encoder, device, lambda: trial, rows=5_000, batch_size=batch, compute=compute)
    pixels = torch.rand(trial.shape, generator=torch.Generator().manual_seed(0)).to(device)
    rows_at_any_place(found.forward, pixels)
