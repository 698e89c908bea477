"""Files of somebody else's with more levels than a stack holds: refused in one line, by name."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.json_text import read_object
from pretrain.sources import open_images
from train_distributed.commands.configuration import RunConfig

DEEP = '{"a":' * 50_000 + "0" + "}" * 50_000


def test_embedding_sets(tmp_path: Path) -> None:
    EmbeddingSet(embeddings=np.eye(4), labels=np.arange(4) % 2).save(tmp_path / "set")
    (tmp_path / "set" / "meta.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"meta\.json must be a readable JSON object"):
        EmbeddingSet.open(tmp_path / "set")


def test_transforms(tmp_path: Path) -> None:
    path = tmp_path / "transform.safetensors"
    PublicTransform.fit(np.random.default_rng(0).standard_normal((20, 3))).save(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, {**metadata, "encoding": DEEP})
    with pytest.raises(ValueError, match="encoding must be readable"):
        PublicTransform.load(path)


def test_pictures_in_shards(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard-0.tar", "w") as tar:
        member = tarfile.TarInfo("0.json")
        member.size = len(DEEP)
        tar.addfile(member, io.BytesIO(DEEP.encode()))
    with pytest.raises(ValueError, match=r"0\.json must be text"):
        open_images(f"wds:{tmp_path}/shard-0.tar")


def test_what_select_chose(tmp_path: Path) -> None:
    (tmp_path / "chosen.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"chosen\.json"):
        RunConfig.read(tmp_path / "chosen.json")


def test_reports_of_models(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"report\.json must be a readable JSON object"):
        read_object(tmp_path / "report.json")


def test_results_of_sweeps(call, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(DEEP)
    code, _, error = call("plot", str(tmp_path))
    assert (code, error.count("\n")) == (2, 1)
    assert "results must be the JSON of a sweep" in error


def test_reports_of_ledgers(call, tmp_path: Path) -> None:
    file = ["--ledger", str(tmp_path / "other.ledger")]
    stated = ["--data", "letters", "--epsilon", "1", "--delta", "0"]
    assert call("ledger", "reserve", *file, *stated)[0] == 0
    (tmp_path / "report.json").write_text(DEEP)
    code, _, error = call("ledger", "show", *file, "--reports", str(tmp_path))
    assert (code, error.count("\n")) == (2, 1)
    assert "reports must be of results with a ledger" in error
