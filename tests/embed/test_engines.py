"""Which engine is taken: with one that only pretends, and what it makes of a batch; its cache."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from embed import engines
from embed.engines import Engine, choose, from_cache, networks

CPU = torch.device("cpu")
Change = Callable[[np.ndarray, str], np.ndarray]  # embeddings and precision to others


class Mean(nn.Module):
    """(n, 3, h, w) to (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)) * self.weight


def same(rows: np.ndarray, compute: str) -> np.ndarray:
    return rows


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """OpenVINO computes what `Mean` does, and then changes it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(encoder: Mean, shape: tuple[int, ...], directory: Path) -> None:
        np.save(directory / "weight.npy", encoder.weight.detach().numpy())

    def set_up(
        change: Change, *computes: str, native: torch.dtype = torch.float32, there: bool = True
    ) -> None:
        def load(directory: Path, compute: str, threads: int) -> engines.Forward:
            weight = np.load(directory / "weight.npy")
            return lambda pixels: torch.from_numpy(
                change(pixels.numpy().mean((2, 3)) * weight, compute)
            )

        monkeypatch.setattr(engines, "choose_dtype", lambda device: native)
        monkeypatch.setattr(engines, "version", lambda name: "1.0")
        monkeypatch.setattr(engines, "find_spec", lambda name: name if there else None)
        monkeypatch.setattr(engines, "write_openvino", write)
        monkeypatch.setattr(engines, "load_openvino", load)
        precisions = dict.fromkeys(computes or ("float32",), "")
        monkeypatch.setattr(engines, "OPENVINO", precisions)

    return set_up


def chosen(rows: int = 5_000, pixels: torch.Tensor | None = None, **asked: str) -> Engine:
    if pixels is None:
        pixels = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    return choose(Mean().eval(), CPU, lambda: pixels, rows=rows, batch_size=4, **asked)  # pyright: ignore[reportArgumentType]


def test_the_faster_that_agrees_is_taken_and_named(
    pretend: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(same)
    assert chosen().name == "openvino"
    assert capsys.readouterr().err == "engine: openvino 1.0, float32\n"


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
    pretend: Callable[..., None], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pretend(WRONG[name])
    assert chosen().name == "torch"
    assert "; not openvino: cosines with torch in float32" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"engine openvino must run this encoder, got: cosines"):
        chosen(engine="openvino")


def test_what_differs_less_than_the_bounds_agrees(pretend: Callable[..., None]) -> None:
    pretend(lambda rows, _: rows * np.float32(1.009) + np.array([0.001, 0, 0], np.float32))
    assert chosen().name == "openvino"


def test_blank_embeddings_agree_with_blank_ones(pretend: Callable[..., None]) -> None:
    pretend(same)
    pixels = torch.rand(4, 3, 2, 2)
    pixels[2] = 0
    assert chosen(pixels=pixels).name == "openvino"


def test_a_precision_that_does_not_agree_is_not_taken(
    pretend: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def rough(rows: np.ndarray, compute: str) -> np.ndarray:
        tried.append(compute)
        return WRONG["turned"](rows, compute) if compute == "bfloat16" else rows

    both = ("float32", "bfloat16")
    pretend(rough, *both, native=torch.bfloat16)
    found = chosen()
    assert (found.name, found.compute) == ("torch", "bfloat16")
    assert "; not openvino in bfloat16: cosines" in capsys.readouterr().err
    found = chosen(engine="openvino")
    assert (found.name, found.compute) == ("openvino", "float32")
    assert tried == ["bfloat16", "bfloat16", *["float32"] * 2]  # at two places of a batch too
    assert chosen(compute="bfloat16").name == "openvino"  # whoever asks for it may have it rougher
    pretend(WRONG["one row off"], *both, native=torch.bfloat16)
    with pytest.raises(ValueError, match="engine openvino must run this encoder"):
        chosen(compute="bfloat16", engine="openvino")


def test_an_engine_without_a_precision_is_passed_over(pretend: Callable[..., None]) -> None:
    pretend(same, native=torch.bfloat16)
    assert (chosen().name, chosen().compute) == ("torch", "bfloat16")
    found = chosen(engine="openvino")
    assert (found.name, found.compute) == ("openvino", "float32")
    with pytest.raises(ValueError, match="openvino must compute in float32, got bfloat16"):
        chosen(engine="openvino", compute="bfloat16")


def test_one_that_is_not_installed(
    pretend: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(same, there=False)
    assert chosen().name == "torch"
    assert "; not openvino: engine openvino must have openvino" in capsys.readouterr().err
    with pytest.raises(ValueError, match="installed: pip install openvino"):
        chosen(engine="openvino")


def test_few_images_and_gpus_are_left_to_torch(pretend: Callable[..., None]) -> None:
    pretend(same, "float32", "bfloat16", native=torch.bfloat16)
    few = chosen(rows=999)
    assert (few.name, few.compute) == ("torch", "float32")
    assert chosen(rows=999, engine="openvino").name == "openvino"
    meta = torch.device("meta")
    with pytest.raises(ValueError, match="engine must be torch on meta, got openvino"):
        choose(Mean(), meta, torch.empty, rows=5_000, batch_size=4, engine="openvino")


def test_torch_compiles_for_many_images_on_a_gpu() -> None:
    assert engines.compiles(torch.device("cuda"), 100_000)
    assert not engines.compiles(torch.device("cuda"), 99_999)
    assert not engines.compiles(CPU, 10**9)


def test_it_gets_as_many_threads_as_torch(
    pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    pretend(same)
    load = engines.load_openvino

    def watched(directory: Path, compute: str, threads: int) -> engines.Forward:
        given.append(threads)
        return load(directory, compute, threads)

    monkeypatch.setattr(engines, "load_openvino", watched)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert chosen().name == "openvino"
    assert given == [3]


def test_a_smaller_batch_is_filled_up(pretend: Callable[..., None]) -> None:
    shapes = []

    def watched(rows: np.ndarray, compute: str) -> np.ndarray:
        shapes.append(rows.shape)
        return rows

    pretend(watched)
    found = chosen().forward
    pixels = torch.rand(3, 3, 2, 2)
    assert torch.allclose(found(pixels), Mean()(pixels))
    assert set(shapes) == {(4, 3)}


@pytest.fixture(autouse=True)
def in_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Network:
    """Counts how often it is written."""

    def __init__(self, content: bytes = b"weights") -> None:
        self.content, self.written = content, 0

    def write(self, directory: Path) -> None:
        self.written += 1
        assert not list(directory.iterdir())
        (directory / "a").write_bytes(self.content)
        (directory / "b").write_bytes(b"graph")

    def load(self, directory: Path) -> bytes:
        return (directory / "a").read_bytes() + (directory / "b").read_bytes()

    def get(self, **made_of: object) -> bytes:
        return from_cache(made_of, self.write, self.load)


def entry() -> Path:
    (found,) = networks().iterdir()
    return found


def test_a_network_is_made_once_for_all_that_it_is_made_of() -> None:
    network = Network()
    assert network.get(x=1) == network.get(x=1) == b"weightsgraph"
    assert network.written == 1
    network.get(x=2)
    assert network.written == 2


@pytest.mark.parametrize("name", ["a", "b", engines.DIGESTS])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove", "add"])
def test_a_damaged_network_is_made_again(name: str, damage: str) -> None:
    network = Network()
    network.get()
    path = entry() / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    elif damage == "add":
        (entry() / "c").write_bytes(b"")
    else:
        path.write_bytes({"flip": content, "cut": content[:-1], "empty": b""}[damage])
    assert network.get() == b"weightsgraph"
    assert network.written == 2
    assert network.get() == b"weightsgraph"
    assert network.written == 2


def test_one_that_cannot_be_loaded_is_made_again_but_not_kept() -> None:
    Network(b"old").get()

    def load(directory: Path) -> None:
        raise RuntimeError("unreadable")

    network = Network(b"new")
    with pytest.raises(RuntimeError, match="unreadable"):
        from_cache({}, network.write, load)
    assert network.written == 1
    assert network.get() == b"oldgraph"
    assert entry()


def test_a_failure_leaves_nothing() -> None:
    def write(directory: Path) -> None:
        (directory / "a").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_cache({}, write, Network().load)
    assert not list(networks().iterdir())


def test_without_a_place_for_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    network = Network()
    assert network.get() == network.get() == b"weightsgraph"
    assert network.written == 2


def test_a_network_that_cannot_be_kept_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert Network().get() == b"weightsgraph"
    assert not list(networks().iterdir())


def test_what_was_not_used_for_longest_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Network(), Network()
    first.get(x=1)
    second.get(x=2)
    for age, path in enumerate(sorted(networks().iterdir(), key=lambda p: p.stat().st_mtime)):
        os.utime(path, (age, age))  # long ago, in that order
    first.get(x=1)
    taken = sum(file.stat().st_size for path in networks().iterdir() for file in path.iterdir())
    monkeypatch.setattr(engines, "LIMIT", taken)
    Network().get(x=3)
    assert first.get(x=1) == b"weightsgraph"
    assert first.written == 1
    second.get(x=2)
    assert second.written == 2
