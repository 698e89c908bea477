"""Files of somebody else's with more levels than a stack holds: refused in one line, by name."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embed import PublicTransform
from pretrain.sources import open_images
from tests.train_distributed.commands.bad_inputs.case import DEEP


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
