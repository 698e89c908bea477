"""Which engine is taken: with engines that only pretend, and what they make of a batch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from embed.engines import choice
from embed.engines.choice import Engine, choose
from embed.engines.compiled import COMPILERS, Compiler

CPU = torch.device("cpu")
Change = Callable[[np.ndarray, str], np.ndarray]  # embeddings and precision to others


class Mean(nn.Module):
    """(n, 3, h, w) to (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)) * self.weight


def pretend(change: Change, *computes: str, package: str = "numpy") -> Compiler:
    """An engine that computes what `Mean` does, and then changes it."""

    def load(directory: Path, compute: str, threads: int) -> Callable[[np.ndarray], np.ndarray]:
        weight = np.load(directory / "weight.npy")
        return lambda pixels: change(pixels.mean((2, 3)) * weight, compute)

    return Compiler(
        packages=(package,),
        install="pretence",
        write=lambda program, directory: np.save(
            directory / "weight.npy", next(iter(program.state_dict.values())).detach().numpy()
        ),
        load=load,
        computes=computes or ("float32",),
    )


def same(rows: np.ndarray, compute: str) -> np.ndarray:
    return rows


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Sets the engines there are, on a machine with or without bfloat16."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def there_are(native: torch.dtype = torch.float32, **found: Compiler) -> None:
        monkeypatch.setattr(choice, "choose_dtype", lambda device: native)
        monkeypatch.setattr(choice, "ENGINES", (*found, "torch"))
        monkeypatch.setattr(choice, "version", lambda name: "1.0")
        for name in tuple(COMPILERS):
            monkeypatch.delitem(COMPILERS, name)
        for name, compiler in found.items():
            monkeypatch.setitem(COMPILERS, name, compiler)

    return there_are


def chosen(rows: int = 5_000, pixels: torch.Tensor | None = None, **asked: str) -> Engine:
    if pixels is None:
        pixels = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    return choose(Mean().eval(), CPU, lambda: pixels, rows=rows, batch_size=4, **asked)  # pyright: ignore[reportArgumentType]


def test_the_first_that_agrees_is_taken_and_named(
    engines: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    engines(one=pretend(same), two=pretend(same))
    assert chosen().name == "one"
    assert capsys.readouterr().err == "engine: one 1.0, float32\n"


WRONG: dict[str, Change] = {
    "turned": lambda rows, _: rows + np.array([0.02, 0, 0], np.float32),
    "longer": lambda rows, _: rows * np.float32(1.02),
    "one row off": lambda rows, _: np.concatenate([rows[:-1], -rows[-1:]]),
    "nothing": lambda rows, _: rows * 0,
    "no number": lambda rows, _: np.where(
        np.arange(len(rows))[:, None] == 1, np.float32("nan"), rows
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_that_does_not_agree_is_not_taken(
    engines: Callable[..., None], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change = WRONG[name]
    engines(one=pretend(change), two=pretend(same))
    assert chosen().name == "two"
    assert "; not one: cosines with torch in float32" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"engine one must run this encoder, got: cosines"):
        chosen(engine="one")
    engines(one=pretend(change))
    assert chosen().name == "torch"


def test_what_differs_less_than_the_bounds_agrees(engines: Callable[..., None]) -> None:
    engines(
        one=pretend(lambda rows, _: rows * np.float32(1.009) + np.array([0.001, 0, 0], np.float32))
    )
    assert chosen().name == "one"


def test_blank_embeddings_agree_with_blank_ones(engines: Callable[..., None]) -> None:
    engines(one=pretend(same))
    pixels = torch.rand(4, 3, 2, 2)
    pixels[2] = 0
    assert chosen(pixels=pixels).name == "one"


def test_a_precision_that_does_not_agree_is_not_taken(
    engines: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def rough(rows: np.ndarray, compute: str) -> np.ndarray:
        tried.append(compute)
        return WRONG["turned"](rows, compute) if compute == "bfloat16" else rows

    both = ("float32", "bfloat16")
    engines(torch.bfloat16, one=pretend(rough, *both))
    found = chosen()
    assert (found.name, found.compute) == ("torch", "bfloat16")
    assert "; not one in bfloat16: cosines" in capsys.readouterr().err
    found = chosen(engine="one")
    assert (found.name, found.compute) == ("one", "float32")
    assert tried == ["bfloat16", "bfloat16", *["float32"] * 3]  # at two places of a batch too
    assert chosen(compute="bfloat16").name == "one"  # whoever asks for it may have it rougher
    engines(torch.bfloat16, one=pretend(WRONG["one row off"], *both))
    with pytest.raises(ValueError, match="engine one must run this encoder"):
        chosen(compute="bfloat16", engine="one")


def test_an_engine_without_a_precision_is_passed_over(engines: Callable[..., None]) -> None:
    engines(torch.bfloat16, one=pretend(same))
    assert (chosen().name, chosen().compute) == ("torch", "bfloat16")
    assert (chosen(engine="one").name, chosen(engine="one").compute) == ("one", "float32")
    with pytest.raises(ValueError, match="one must compute in float32, got bfloat16"):
        chosen(engine="one", compute="bfloat16")


def test_one_that_is_not_installed(
    engines: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    engines(one=pretend(same, package="no-such-package"), two=pretend(same))
    assert chosen().name == "two"
    assert "; not one: engine one must have no-such-package" in capsys.readouterr().err
    with pytest.raises(ValueError, match="installed: pip install pretence"):
        chosen(engine="one")


def test_few_images_and_gpus_are_left_to_torch(engines: Callable[..., None]) -> None:
    engines(torch.bfloat16, one=pretend(same, "float32", "bfloat16"))
    few = chosen(rows=999)
    assert (few.name, few.compute) == ("torch", "float32")
    assert chosen(rows=999, engine="one").name == "one"
    with pytest.raises(ValueError, match="engine must be torch on meta, got one"):
        choose(Mean(), torch.device("meta"), torch.empty, rows=5_000, batch_size=4, engine="one")
    with pytest.raises(ValueError, match=r"engine must be torch with torch\.compile, got one"):
        choose(Mean(), CPU, torch.empty, rows=5_000, batch_size=4, engine="one", compiled=True)


def test_it_gets_as_many_threads_as_torch(
    engines: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    compiler = pretend(same)

    def load(directory: Path, compute: str, threads: int) -> Callable[[np.ndarray], np.ndarray]:
        given.append(threads)
        return compiler.load(directory, compute, threads)

    engines(one=replace(compiler, load=load))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert chosen().name == "one"
    assert given == [3]


def test_a_smaller_batch_is_filled_up(engines: Callable[..., None]) -> None:
    shapes = []

    def watched(rows: np.ndarray, compute: str) -> np.ndarray:
        shapes.append(rows.shape)
        return rows

    engines(one=pretend(watched))
    forward = chosen().forward
    pixels = torch.rand(3, 3, 2, 2)
    assert torch.allclose(forward(pixels), Mean()(pixels))
    assert set(shapes) == {(4, 3)}
