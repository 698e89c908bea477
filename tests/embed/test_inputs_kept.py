"""--overwrite never removes what a command reads."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet
from embed.hold_out import HoldOut
from embed.plot import Plot
from embed.run import Exclude, FitTransform, Run
from pretrain.commands import Probe


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    EmbeddingSet(embeddings=values, labels=np.arange(30) % 3).save(tmp_path / "rows")
    return tmp_path / "rows"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "photos" / name / "0.png")
    return tmp_path / "photos"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_embedding_sets_stay(rows: Path) -> None:
    before = files(rows.parent)
    for command in (
        HoldOut(embeddings=rows, share=0.5, out=rows, overwrite=True),
        Exclude(embeddings=rows, public=(rows,), out=rows, overwrite=True),
        FitTransform(public=rows, out=rows, overwrite=True),
        FitTransform(public=rows, out=rows.parent, overwrite=True),
        Plot(embeddings=rows, out=rows, overwrite=True),
    ):
        with pytest.raises(ValueError, match="out must not hold what the command reads"):
            command.run()
    assert files(rows.parent) == before


@pytest.mark.parametrize("kind", ["", "csv:"])
def test_pictures_stay(photos: Path, kind: str) -> None:
    before = files(photos)
    for out in (photos, photos.parent):
        for command in (
            Run(data=f"{kind}{photos}", out=out, overwrite=True),
            Probe(data=f"{kind}{photos}", out=out, overwrite=True),
        ):
            with pytest.raises(ValueError, match="out must not hold what the command reads"):
                command.run()
    assert files(photos) == before


@pytest.mark.parametrize("kind", ["", "hf:", "mirrored:", "mirrored:hf:"])
def test_encoders_stay(photos: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "weights").write_bytes(b"all of it")
    run = Run(data=str(photos), encoder=f"{kind}{tmp_path}/net", out=tmp_path / "net")
    with pytest.raises(ValueError, match="out must not hold what the command reads"):
        run.run()
    assert files(tmp_path / "net") == {"weights": b"all of it"}
