"""What the documentation says of one's own data, command, method and encoder works as it says."""

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet
from tests.embedding_sets import clusters

ROOT = Path(__file__).parents[3]
COMMAND = """
from dataclasses import dataclass

from pretrain.public import function
from train_distributed.commands import COMMANDS
from train_distributed.commands.releasing import Run


@dataclass(frozen=True, kw_only=True)
class Care:
    \"\"\"How careful.\"\"\"

    half: bool = True
    \"\"\"Take half of it.\"\"\"


@dataclass(frozen=True, kw_only=True)
class Careful(Care, Run):
    \"\"\"Train as `run` does, at half of the epsilon.\"\"\"

    command = "careful"

    @classmethod
    def groups(cls, typed):
        return super().groups(typed) | {"care": (Care,)}


careful = function("careful", Careful)
COMMANDS["careful"] = f"{__name__}:careful"
"""
MAIN = """
import json, sys
from train_distributed.__main__ import main

for line in json.load(open("lines.json")):
    sys.argv[1:] = line.split()
    try:
        code = main()
    except SystemExit as stop:  # of --help
        code = stop.code
    if code:
        sys.exit(f"{line}: {code}")
"""
SETS = "--embeddings mine --public public --epsilon 5"
PICTURES = "--layout user-class --encoder pooled.safetensors"
LINES = [
    f"careful {SETS} --out careful",
    "card --model careful --out card",
    f"run {SETS} --method plain-mean --components 4 --out plain",
    "card --model plain --out plain_card",
    f"simulate {SETS} --method plain-mean --users 20 --sums 2 --out played",
    "embed fit-transform --public public --components 4 --out transform",
    *(f"federation join --folder u{user} --name u{user} --rows 9" for user in range(3)),
    "federation init --folder fed --transform transform/transform.safetensors --hosts 127.0.0.1 "
    "--num-classes 3 --config plain.json --parties u0/u0.party.json u1/u1.party.json "
    "u2/u2.party.json",
    f"embed run --data mine_pictures --out m {PICTURES} --class-names a b",
    f"embed run --data public_pictures --out p {PICTURES}",
    "run --embeddings m --public p --epsilon 3 --delta 1e-3 --out pooled",
    "card --model pooled --out pooled_card",
    f"predict --model pooled --data mine_pictures {PICTURES} --out found",
    *("--help", "careful --help", "run --help", "embed run --help"),
]


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where one program with the entries of docs/extending.md ran all lines, and what it said."""
    folder = tmp_path_factory.mktemp("added")
    clusters(1200, 3, 8, scale=1, noise=0.1, test=300, users=30).save(folder / "mine")
    clusters(1200, 3, 8, scale=1, noise=0.1, seed=1).save(folder / "public")
    draw = np.random.default_rng(1)
    for name in ("mine", "public"):
        for number in range(120):
            shade = np.full((8, 8, 3), 60 + 120 * (number % 2)) + draw.integers(0, 50, (8, 8, 3))
            place = folder / f"{name}_pictures" / f"user{number % 10}" / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shade.astype(np.uint8)).save(place / f"{number}.png")
    config = {"method": "plain-mean", "options": {}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    (folder / "plain.json").write_text(json.dumps(config))
    page = (ROOT / "docs" / "extending.md").read_text()
    encoder, method = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    method = method.partition("if __name__")[0]
    (folder / "program.py").write_text(encoder + method + COMMAND + MAIN)
    (folder / "lines.json").write_text(json.dumps(LINES))
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_each_is_in_help_report_and_card(added: tuple[Path, str]) -> None:
    folder, said = added
    for words in ("Take half of it", "plain-mean", "3 users", "pooled:"):
        assert words in said
    assert re.search("^  careful +Train as `run` does, at half", said, re.MULTILINE)
    for name, words in {
        "card/card.md": "blind-averaging careful --embeddings mine",
        "plain_card/card.md": "the nearest class mean",
        "fed/federation.json": '"plain-mean"',
        **dict.fromkeys(("m/meta.json", "pooled/report.json"), "pooled.safetensors"),
        "pooled_card/card.md": "pooled.safetensors",
    }.items():
        assert words in (folder / name).read_text()
    careful, plain, played = (
        json.loads((folder / name / "report.json").read_text())
        for name in ("careful", "plain", "played")
    )
    assert careful["configuration"]["command"] == "careful"
    assert (plain["method"], plain["prior"]) == ("plain-mean", "equal")
    assert plain["suitable_for_release"] is True
    assert plain["test_accuracy"] > 0.9
    assert played["test_accuracy"] > 0.8


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
    assert [name for name, each in sets.items() if each.users is not None] == list("bdefg")
    rows = [int(Path(sets["b"].name(row)).stem) for row in range(8)]
    for name in "bcdefg":  # the same pictures: the same embeddings, to the bit
        found = np.array(sets[name].embeddings)
        if name == "b":
            found[rows] = sets[name].embeddings
        assert np.array_equal(found, sets["d"].embeddings), name
    assert sets["d"].split.tolist() == [0] * 6 + [1] * 2
    assert sets["e"].split.sum() == 2  # a user of four
    assert sets["f"].meta["users_in_both_splits"] == 1
    assert [sets[name].declared_classes for name in "bdf"] == [CLASSES] * 3
    assert EmbeddingSet.open("i").declared_classes == ("not pneumonia", "pneumonia")
