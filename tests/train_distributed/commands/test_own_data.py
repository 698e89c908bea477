"""Every command of docs/data.md's page on one's own data works on data laid out as it says."""

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
CLASSES = ("normal", "pneumonia")


def lines() -> list[str]:
    text = PAGE.read_text()
    page = text[text.index("## Pictures") : text.index("## Encoders")]
    block = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0].replace("\\\n", " ")
    return [line.split(" # ")[0] for line in block.strip().splitlines()]


def picture(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (40, 36, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pictures of four users and two classes, as every command expects them."""
    datasets = pytest.importorskip("datasets")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    files = [picture(k) for k in range(8)]
    finding = [CLASSES[k % 2] for k in range(8)]
    site = [f"clinic {k // 2}" for k in range(8)]
    for k in range(8):
        of_class = f"{finding[k]}/{k}.png"
        own = (f"photos/{of_class}", f"clinics/{site[k]}/{of_class}")
        for path in map(Path, (*own, f"pictures/{k}.png", f"xrays/{k}.png")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[k])
    rows = [f"{k}.png,{finding[k]},{site[k]},{'test' if k > 5 else 'train'}" for k in range(8)]
    Path("xrays/table.csv").write_text("\n".join(["image,finding,hospital,part", *rows]) + "\n")
    for part in range(2):
        own = slice(4 * part, 4 * part + 4)
        columns = {"image": files[own], "label": finding[own], "site": site[own]}
        pq.write_table(pa.table(columns), f"scans-{part}.parquet")
        with tarfile.open(f"shard-{part}.tar", "w") as tar:
            for k in range(8)[own]:
                fields = json.dumps({"finding": finding[k], "user": site[k]}).encode()
                for name, content in ((f"{k}.png", files[k]), (f"{k}.json", fields)):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    features = datasets.Features(kinds | {"site": datasets.Value("string")})
    images = [{"bytes": file, "path": None} for file in files]
    columns = {"image": images, "label": finding, "site": site}
    whole = datasets.Dataset.from_dict(columns, features=features)
    parts = {"train": whole.select(range(5)), "test": whole.select(range(5, 8))}
    datasets.DatasetDict(parts).save_to_disk("saved")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32), np.uint8)
    np.savez("digits.npz", x_train=pixels, y_train=np.arange(8))


def test_every_command_works(laid_out: None, say) -> None:
    for line in lines():
        code, _, error = say(line.removeprefix("blind-averaging "))
        assert code == 0, (line, error)
    sets = {name: EmbeddingSet.open(name) for name in "abcdefgh"}
    assert {len(each) for each in sets.values()} == {8}
    assert not sets["c"].labelled
    known = {name: each.users is not None for name, each in sets.items()}
    assert known == dict(zip("abcdefgh", [0, 1, 0, 1, 1, 1, 1, 0], strict=True))
    order = [sets["b"].name(row) for row in range(8)]
    rows = [int(Path(name).stem) for name in order]
    for name in "bcdefg":  # the same pictures: the same embeddings, to the bit
        mine = rows if name == "b" else list(range(8))
        found = np.empty((8, sets[name].dim), np.float32)
        found[mine] = sets[name].embeddings
        assert np.array_equal(found, sets["d"].embeddings), name
    assert sets["d"].split.tolist() == [0] * 6 + [1] * 2
    assert sets["e"].split.sum() == 2  # a user of four
    assert sets["f"].meta["users_in_both_splits"] == 1
    assert [sets[name].declared_classes for name in "bdf"] == [CLASSES] * 3
    assert sets["g"].declared_classes == ()
    assert EmbeddingSet.open("i").declared_classes == ("not pneumonia", "pneumonia")
