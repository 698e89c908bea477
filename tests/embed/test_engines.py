"""Which engine is taken, with one that only pretends, and its cache; then the engine itself."""

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, engines
from embed.encoding import Encoding
from embed.engines import Engine, choose, from_cache, networks
from pretrain import build_encoder
from pretrain.datasets import ImageSet
from pretrain.encoder import origin
from pretrain.encoders.base import within
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from tests.embed import conftest
from tests.embed.conftest import Mean

CPU = torch.device("cpu")
Change = Callable[[np.ndarray, str], np.ndarray]  # embeddings and precision to others


@pytest.fixture(autouse=True)
def in_a_cache_of_its_own(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """OpenVINO computes what `Mean` does, and then changes it; gives the threads it is given."""
    given: list[int] = []

    def write(encoder: Mean, shape: tuple[int, ...], directory: Path) -> None:
        np.save(directory / "weight.npy", encoder.weight.detach().numpy())

    def set_up(
        change: Change, *computes: str, native: torch.dtype = torch.float32, there: bool = True
    ) -> list[int]:
        def load(directory: Path, compute: str, threads: int) -> engines.Forward:
            given.append(threads)
            weight = np.load(directory / "weight.npy")
            return lambda pixels: torch.from_numpy(
                change(pixels.numpy().mean((2, 3)) * weight, compute)
            )

        monkeypatch.setattr(engines, "choose_dtype", lambda device: native)
        monkeypatch.setattr(engines, "version", lambda name: "1.0")
        monkeypatch.setattr(engines, "find_spec", lambda name: name if there else None)
        monkeypatch.setattr(engines, "write_openvino", write)
        monkeypatch.setattr(engines, "load_openvino", load)
        monkeypatch.setattr(engines, "OPENVINO", dict.fromkeys(computes or ("float32",), ""))
        return given

    return set_up


def chosen(rows: int = 5_000, pixels: torch.Tensor | None = None, **asked: str) -> Engine:
    if pixels is None:
        pixels = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    return choose(Mean().eval(), CPU, lambda: pixels, rows=rows, batch_size=4, **asked)  # pyright: ignore[reportArgumentType]


def same(rows: np.ndarray, compute: str) -> np.ndarray:
    return rows


def test_the_faster_that_agrees_is_taken_and_named(pretend, capsys, monkeypatch) -> None:
    """It gets as many threads as torch, and batches that are filled up."""
    shapes, pixels = [], torch.rand(3, 3, 2, 2)

    def nearly(rows: np.ndarray, compute: str) -> np.ndarray:
        shapes.append(rows.shape)
        return rows * np.float32(1.009) + np.array([0.001, 0, 0], np.float32)  # within bounds

    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    given, found = pretend(nearly), chosen()
    assert (found.name, given) == ("openvino", [3])
    assert capsys.readouterr().err == "engine: openvino 1.0, float32\n"
    made = found.forward(pixels)
    assert set(shapes) == {(4, 3)}
    assert np.allclose(made, nearly(Mean()(pixels).detach().numpy(), ""))
    pretend(same)
    pixels = torch.rand(4, 3, 2, 2)
    pixels[2] = 0  # blank embeddings agree with blank ones
    assert chosen(pixels=pixels).name == "openvino"


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
def test_one_that_does_not_agree_is_not_taken(pretend, capsys, name) -> None:
    pretend(WRONG[name])
    assert chosen().name == "torch"
    assert "; not openvino: cosines with torch in float32" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"engine openvino must run this encoder, got: cosines"):
        chosen(engine="openvino")


def test_a_precision_that_does_not_agree_is_not_taken(pretend, capsys) -> None:
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


def test_what_openvino_cannot_do_is_left_to_torch(pretend, capsys) -> None:
    """And refused where it is asked for: a precision, a device, a package that is not there."""
    pretend(same, native=torch.bfloat16)
    assert (chosen().name, chosen().compute) == ("torch", "bfloat16")
    found = chosen(engine="openvino")
    assert (found.name, found.compute) == ("openvino", "float32")
    with pytest.raises(ValueError, match="openvino must compute in float32, got bfloat16"):
        chosen(engine="openvino", compute="bfloat16")
    meta = torch.device("meta")
    with pytest.raises(ValueError, match="engine must be torch on meta, got openvino"):
        choose(Mean(), meta, torch.empty, rows=5_000, batch_size=4, engine="openvino")
    with pytest.raises(ValueError, match=r"auto, openvino, torch \(remove what gone began\)"):
        chosen(engine="gone")
    pretend(same, there=False)
    assert chosen().name == "torch"
    assert "; not openvino: engine openvino must have openvino" in capsys.readouterr().err
    with pytest.raises(ValueError, match="installed: pip install openvino"):
        chosen(engine="openvino")


def test_numbers_of_images_from_which_an_engine_pays(pretend) -> None:
    pretend(same, "float32", "bfloat16", native=torch.bfloat16)
    few = chosen(rows=999)
    assert (few.name, few.compute) == ("torch", "float32")
    assert chosen(rows=999, engine="openvino").name == "openvino"
    cuda = torch.device("cuda")
    cases = ((cuda, 10**5), (cuda, 10**5 - 1), (CPU, 10**9))
    assert [engines.compiles(*case) for case in cases] == [True, False, False]


def test_a_cached_network_of_other_weights_is_converted_anew(pretend) -> None:
    """What an encoder computes may change where its weights do not, as in another version."""
    pretend(same)
    pixels = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    for factor in (1, -3):
        encoder = Mean().requires_grad_(False)
        encoder.weight.mul_(factor)
        options: dict[str, Any] = {"rows": 5_000, "batch_size": 4, "digest": "the same for all"}
        found = choose(encoder, CPU, lambda: pixels, engine="openvino", **options)
        assert torch.allclose(found.forward(pixels), encoder(pixels))
        assert len(list(networks().iterdir())) == 1


class Network:
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


@pytest.mark.parametrize("name", ["a", "b", engines.DIGESTS])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove", "add"])
def test_a_damaged_network_is_made_again(name: str, damage: str) -> None:
    network = Network()
    network.get()
    (entry,) = networks().iterdir()
    content = bytearray((entry / name).read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        (entry / name).unlink()
    elif damage == "add":
        (entry / "c").write_bytes(b"")
    else:
        (entry / name).write_bytes({"flip": content, "cut": content[:-1], "empty": b""}[damage])
    for _ in range(2):
        assert network.get() == b"weightsgraph"
        assert network.written == 2


def test_what_is_half_written_or_cannot_be_loaded_is_not_kept() -> None:
    def interrupted(directory: Path) -> None:
        (directory / "a").write_bytes(b"half")
        raise KeyboardInterrupt

    def load(directory: Path) -> None:
        raise RuntimeError("unreadable")

    with pytest.raises(KeyboardInterrupt):
        from_cache({}, interrupted, Network().load)
    assert not list(networks().iterdir())
    Network(b"old").get()
    network = Network(b"new")
    with pytest.raises(RuntimeError, match="unreadable"):
        from_cache({}, network.write, load)
    assert network.written == 1
    assert network.get() == b"oldgraph"
    assert len(list(networks().iterdir())) == 1


@pytest.mark.parametrize("fault", ["no place", "full"])
def test_a_network_that_cannot_be_kept_is_used_all_the_same(tmp_path, monkeypatch, fault) -> None:
    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    if fault == "full":
        monkeypatch.setattr(os, "fsync", full)
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    network = Network()
    assert network.get() == network.get() == b"weightsgraph"
    assert network.written == 2
    assert fault != "full" or not list(networks().iterdir())


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
    first.get(x=1)
    second.get(x=2)
    assert (first.written, second.written) == (1, 2)


@pytest.fixture
def engine() -> str:
    if why := engines.refusal("float32"):
        pytest.skip(why)
    return "openvino"


def embed(images: ImageSet, name: str, out: Path, **options: Any) -> EmbeddingSet:
    own = Path(within(name)).exists() or within(name) == "simclr-small"
    weights = None if own else "random"
    defaults: dict[str, Any] = {"batch_size": 7, "shard_rows": 20, "compute": "float32"}
    encoder = build_encoder(name, weights=weights, image_size=32 if weights else None)
    made = {"encoder_name": name, "weights": origin(name, weights)}
    size = {"preprocess": Preprocess(image_size=32)}
    return conftest.embed(images, encoder, out, **made, **size, **defaults | options)


def assert_agree(found: EmbeddingSet, expected: EmbeddingSet) -> None:
    x, y = (np.asarray(rows.embeddings, np.float64) for rows in (found, expected))
    lengths = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    assert ((x * y).sum(1) / (lengths[0] * lengths[1])).min() >= 1 - 1e-9
    assert np.abs(lengths[0] / lengths[1] - 1).max() < 1e-5


def test_embeddings_are_those_of_torch(tmp_path, archive, checkpoint, engine) -> None:
    images, name = open_npz(archive), str(checkpoint)
    found = embed(images, name, tmp_path / engine, engine=engine)
    expected = embed(images, name, tmp_path / "torch", engine="torch")
    assert_agree(found, expected)
    assert (found.meta["engine"], expected.meta["engine"]) == (engine, "torch")
    assert engine in found.meta["versions"]
    assert Encoding.of(found.meta) == Encoding.of(expected.meta)  # they may meet
    half = embed(images, name, tmp_path / "half", engine=engine, dtype="float16")
    assert np.array_equal(half.embeddings, np.asarray(found.embeddings).astype(np.float16))


NAMES = [
    *("simclr-small", "timm:tf_efficientnet_lite0", "timm:resnet18", "resnet50-v1"),
    *("timm:vit_tiny_patch16_224", "simclrv2:r50_1x_sk1"),
    *("mirrored:simclr-small", "mirrored:timm:tf_efficientnet_lite0"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_encoder_is_converted(tmp_path, archive, engine, name) -> None:
    images = open_npz(archive).take(slice(0, 10))
    found = embed(images, name, tmp_path / engine, engine=engine)
    assert_agree(found, embed(images, name, tmp_path / "torch", engine="torch"))


def test_what_was_begun_goes_on_with_its_engine(tmp_path, archive, checkpoint, engine, monkeypatch):
    images, name = open_npz(archive), str(checkpoint)
    whole = embed(images, name, tmp_path / "whole", engine=engine)
    out = tmp_path / "out"
    assert embed(images, name, out, engine=engine, shard="0/2") is None
    with pytest.raises(ValueError, match=r"same extraction .* got another engine"):
        embed(images, name, out, engine="torch")
    with monkeypatch.context() as without:
        without.setattr(engines, "find_spec", lambda package: None)
        with pytest.raises(ValueError, match=f"engine {engine} must have {engine}.* installed"):
            embed(images, name, out)
    found = embed(images, name, out)  # auto: would be torch, for so few images
    assert found.meta == whole.meta
    assert embed(images, name, out).meta == whole.meta  # finished: nothing to do
    assert np.array_equal(found.embeddings, whole.embeddings)
    with pytest.raises(FileExistsError, match="must not exist"):
        embed(images, name, out, engine="torch")
    assert embed(images, name, out, overwrite=True).meta["engine"] == engine


class Deciding(torch.nn.Module):
    """Looks at values before it knows what to compute."""

    embedding_dim = 3

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = images.mean((2, 3))
        return means if means.sum() > 1 else -means


def test_an_encoder_that_does_not_convert(tmp_path, archive, engine, monkeypatch, capsys) -> None:
    run = partial(conftest.embed, open_npz(archive), Deciding(), batch_size=7, compute="float32")
    with pytest.raises(ValueError, match=f"engine {engine} must run this encoder, got: ") as told:
        run(out=tmp_path / "out", engine=engine)
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == [archive]
    monkeypatch.setattr(engines, "FEW", 0)
    assert run(out=tmp_path / "out").meta["engine"] == "torch"
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"engine: torch {version('torch')}, float32; not {engine}: ")
