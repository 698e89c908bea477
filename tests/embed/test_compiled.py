"""The engine itself, on small encoders: the same embeddings as torch's, and the same files."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, engines
from embed.encoding import Encoding
from embed.engines import networks
from embed.extract import extract
from embed.options import ExtractOptions
from pretrain import build_encoder
from pretrain.datasets import ImageSet
from pretrain.encoder import origin, save_encoder
from pretrain.encoders.base import within
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from pretrain.resnet import ResNetConfig, SmallResNet
from tests.embed import conftest


@pytest.fixture
def engine() -> str:
    if why := engines.refusal("float32"):
        pytest.skip(why)
    return "openvino"


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def in_a_cache_of_its_own(module_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(module_cache))


def embed(images: ImageSet, name: str, out: Path, **options: Any) -> EmbeddingSet:
    own = Path(within(name)).exists() or within(name) == "simclr-small"
    weights = None if own else "random"
    defaults: dict[str, Any] = {"batch_size": 7, "shard_rows": 20, "compute": "float32"}
    encoder = build_encoder(name, weights=weights, image_size=32 if weights else None)
    made = {"encoder_name": name, "weights": origin(name, weights)}
    size = {"preprocess": Preprocess(image_size=32)}
    done = conftest.embed(images, encoder, out, **made, **size, **defaults | options)
    assert done is not None
    return done


def assert_agree(found: EmbeddingSet, expected: EmbeddingSet) -> None:
    x, y = (np.asarray(rows.embeddings, np.float64) for rows in (found, expected))
    lengths = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    assert ((x * y).sum(1) / (lengths[0] * lengths[1])).min() >= 1 - 1e-9
    assert np.abs(lengths[0] / lengths[1] - 1).max() < 1e-5


def test_embeddings_are_those_of_torch(
    tmp_path: Path, archive: Path, checkpoint: Path, engine: str
) -> None:
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
def test_every_kind_of_encoder_is_converted(
    tmp_path: Path, archive: Path, engine: str, name: str
) -> None:
    images = open_npz(archive).take(slice(0, 10))
    found = embed(images, name, tmp_path / engine, engine=engine)
    assert_agree(found, embed(images, name, tmp_path / "torch", engine="torch"))


def test_what_was_begun_goes_on_with_its_engine(
    tmp_path: Path, archive: Path, checkpoint: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, name = open_npz(archive), str(checkpoint)
    whole = embed(images, name, tmp_path / "whole", engine=engine)
    out = tmp_path / "out"
    with pytest.raises(AssertionError):
        embed(images, name, out, engine=engine, shard="0/2")
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


def test_what_a_former_engine_made_is_not_gone_on_with(
    tmp_path: Path, archive: Path, checkpoint: Path, engine: str
) -> None:
    images, name = open_npz(archive), str(checkpoint)
    embed(images, name, tmp_path / "whole", engine=engine)
    with pytest.raises(AssertionError):
        embed(images, name, tmp_path / "begun", engine=engine, shard="0/2")
    for place in ("whole", "begun.partial"):
        meta = tmp_path / place / "meta.json"
        described = json.loads(meta.read_text())
        gone = {"engine": "gone", "versions": described["versions"] | {"gone": "1.0"}}
        meta.write_text(json.dumps(described | gone))
    with pytest.raises(FileExistsError, match="must not exist"):
        embed(images, name, tmp_path / "whole")
    with pytest.raises(ValueError, match=r"auto, openvino, torch \(remove what gone began\)"):
        embed(images, name, tmp_path / "begun")


def test_a_cached_network_of_other_weights_is_converted_anew(
    tmp_path: Path, archive: Path, checkpoint: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an encoder computes may change where its weights do not, as in another version."""
    images = open_npz(archive)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("embed.extract.encoder_hash", lambda encoder: "the same for all")
    embed(images, str(checkpoint), tmp_path / "one", engine=engine)
    (entry,) = networks().iterdir()
    before = entry.stat().st_ino
    other = str(tmp_path / "other.safetensors")
    network = SmallResNet(ResNetConfig((4, 6), (1, 1)), torch.Generator().manual_seed(1))
    save_encoder(network, Path(other))
    found = embed(images, other, tmp_path / "two", engine=engine)
    assert_agree(found, embed(images, other, tmp_path / "torch", engine="torch"))
    (entry,) = networks().iterdir()
    assert entry.stat().st_ino != before


class Deciding(torch.nn.Module):
    """Looks at values before it knows what to compute."""

    embedding_dim = 3

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = images.mean((2, 3))
        return means if means.sum() > 1 else -means


def test_an_encoder_that_does_not_convert(
    tmp_path: Path,
    archive: Path,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = open_npz(archive)

    def run(out: Path, **options: Any) -> EmbeddingSet | None:
        chosen = ExtractOptions(batch_size=7, compute="float32", **options)
        return extract(
            images, Deciding(), out, encoder_name="x", preprocess=Preprocess(), options=chosen
        )

    with pytest.raises(ValueError, match=f"engine {engine} must run this encoder, got: ") as told:
        run(tmp_path / "out", engine=engine)
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == [archive]
    monkeypatch.setattr(engines, "FEW", 0)
    done = run(tmp_path / "out")
    assert done is not None
    assert done.meta["engine"] == "torch"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"engine: torch {version('torch')}, float32; not {engine}: ")
