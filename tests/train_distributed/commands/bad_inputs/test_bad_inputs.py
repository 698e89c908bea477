"""Bad inputs to every command: one line that says what is wrong, and nothing is changed on disk."""

import io
import json
import re
import shutil
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.train_distributed.commands.bad_inputs import cases
from tests.train_distributed.commands.bad_inputs.cases import NAN_ROW, OVER, Spoil, arrays, cut, put
from tests.train_distributed.commands.bad_inputs.world import state

BARE = "--embeddings unlabelled --public public"
INTO = "--out pictures --overwrite"
RED, RED_9, FITTED = "pictures/red/1.png", "pictures/red/9.png", "transform.safetensors"
META, ROWS = "private/meta.json", "private/embeddings.npy"
HEADER, ROW = "path,label,user,split", "pictures/red/0.png,red,user0,train"
PIXELS, LABELS = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 3
NO_NAMES: list[Any] = [["a", "a", "b"], 5, None, {"a": 1}]
OBLONG = Image.new("RGB", (9, 12))
OBJECTS = np.array([1, None, 2, 0], object)


def csv(*rows: str) -> Spoil:
    return put("t.csv", "".join(f"{row}\n" for row in (HEADER, *rows)))


def picture(side: int) -> Spoil:
    """A PNG that says in its header how large it is and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return put(RED, b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))


def deep_shard(folder: Path) -> None:
    with tarfile.open(folder / "shard-0.tar", "w") as tar:
        member = tarfile.TarInfo("0.json")
        member.size = len(cases.DEEP)
        tar.addfile(member, io.BytesIO(cases.DEEP.encode()))


def names(of_classes: Any) -> Spoil:
    """Changes the class names of the private set."""

    def spoil(folder: Path) -> None:
        meta = json.loads((folder / META).read_text())
        (folder / META).write_text(json.dumps(meta | {"class_names": of_classes}))

    return spoil


def array(name: str, values: Any) -> Spoil:
    return lambda folder: np.save(folder / name, values)


TYPED = {
    "run --embeddings private --public public": [
        ("", r"private/embeddings\.npy must be a complete npy", cases.gone(ROWS), cut(ROWS)),
        ("", r"private/labels\.npy must be a complete npy file", cut("private/labels.npy", 0)),
        ("", r"private/meta\.json must be a readable JSON", put(META, "{"), put(META, cases.DEEP)),
        ("", r"private/meta\.json must be a JSON object", put(META, "[]")),
        ("", "labels must be 96 integers, got", array("private/labels.npy", np.zeros(5, int))),
        ("", r"embeddings must be a float \(N, p\), got", array(ROWS, np.zeros((96, 6), int))),
        ("", r"embeddings\.npy must be", array(ROWS, np.array([{}]))),
        ("", "class_names must be a list of distinct names", *map(names, NO_NAMES)),
        ("", "labels must be < 2 class names, got 2", names(["a", "b"])),
        ("", "users must be >= 0, got -1", array("private/users.npy", np.arange(96) - 1)),
        ("", "split must be 0, 1 or 2, got", array("private/split.npy", np.full(96, 7, np.uint8))),
    ],
    "run --embeddings private --public": [
        ("foreign", "public and embeddings must be embedded by one encoder, got"),
        ("cropped", "must be .*preprocess.*|one encoder"),
        ("foreign_transform.safetensors", "one encoder, got"),
        (FITTED, r"transform\.safetensors must .*got", cut(FITTED), cut(FITTED, 0)),
        ("transform.safetensors --examples public", "must be left out with public a transform"),
        ("nowhere", "embeddings must be an existing directory"),
        ("nowhere.safetensors", r"nowhere\.safetensors"),
        ("model/model.safetensors", r"model\.safetensors: transform must hold .* got"),
        ("private", "public must be another set"),
        ("public_nan", f"{NAN_ROW} of public_nan/"),
    ],
    "run --public public --embeddings": [
        ("nowhere | table.csv", "embeddings must be an existing directory, got {}"),
        ("nan", rf"{NAN_ROW} of nan/embeddings\.npy \(7\.png\)"),
        ("nobody", "users must be named .*run --one-user.*simulate --users N.*, got none for nob"),
        ("unlabelled", "embeddings must have labels to learn from, got unlabelled"),
    ],
    "run": [("--embeddings private", "--public")],
    "": [
        (f"rival amp {BARE} | rival admm-dual {BARE}", "must have labels"),
        (f"simulate --scheme one-class {BARE}", "must have labels"),
    ],
    "embed run --encoder network.safetensors --data": [
        ("nowhere | nowhere --layout flat", "images must be an npz file, .* got nowhere"),
        ("''", "images must be .* got nothing"),
        ("csv:", "images must be .* got csv:"),
        ("'a\0b'", "images must be .* got|null"),
        ("csv:pictures", "pictures: Is a directory"),
        ("csv:no.csv", r"no\.csv: No such file"),
        ("private.npz --num-classes 1000000000000", r"num_classes must be in \[2, \d+\], got 10"),
        ("private.npz --layout flat", r"layout must be left out for private\.npz"),
        ("private.npz", r"private\.npz must be a complete npz", cut("private.npz")),
        ("wds:none-*.tar", r"none-\*\.tar"),
        ("wds:table.csv", r"table\.csv"),
        ("wds:shard-0.tar", r"0\.json must be text", deep_shard),
        ("parquet:table.csv", r"table\.csv must be .* got"),
        ("hf:private", "private must .* got|hf must have"),
        ("cifar10:pictures", "pictures must hold cifar10 .* got"),
        ("private", "private must hold .* got none"),
        (f"csv:pictures/t.csv {INTO} | 'wds:pictures/*.tar' {INTO}", OVER),
        (f"pictures/red --layout flat {INTO}", OVER),
    ],
    "embed run --encoder network.safetensors --data csv:t.csv": [
        ("", r"t\.csv must have a first row .* empty", put("t.csv", "")),
        ("", r"t\.csv must name every column once, got path, path", put("t.csv", "path,path\n1,2")),
        ("", "4 columns in every row, got 2 in row 1", csv(ROW, "a,b")),
        ("", r"t\.csv|readable image", csv(ROW.replace("0", "\0"))),
        ("", r"t\.csv must hold .* got none", csv()),
        ("", "split must be one of train, .* 'tset' in row 0", csv(ROW.replace("train", "tset"))),
    ],
    "embed run --encoder network.safetensors --data pictures": [
        ("--class-names red red", "class_names must .*got"),
        ("--test-share 0.2", r"must have users .* image:0\.2\), got pictures"),
        ("--columns user=who", "columns must be left out for pictures, .* got"),
        ("", r"red/1\.png must be a readable image, got", put(RED, b"x"), cut(RED), cut(RED, 0)),
        ("", r"red/9\.png must be a readable", lambda at: (at / RED_9).symlink_to("9.png")),
        ("", "all images must have .* got", lambda at: OBLONG.save(at / "pictures/red/0.png")),
        ("--max-pixels 0", "max_pixels must be >= 1, got 0"),
        ("--resize 0", "resize must be >= 1, got 0"),
        ("--resize 1000000", "resize must be <= 9459, got 1000000"),
        ("--batch-size 0", "batch_size must be >= 1, got .*0"),
        ("--device nonsense | --device cuda:99", "device must be .* got {}"),
        ("--device cuda", r"device must be one that is here \(cpu\), got cuda"),
        ("", r"network\.safetensors must .*got", *(cut("network.safetensors", k) for k in (-1, 0))),
        ("--out old", cases.NEW),
        ("--out table.csv --overwrite | --out table.csv/out", r"table\.csv"),
        ("--out /proc/nowhere/out", "/proc/nowhere"),
        ("--out pictures --overwrite", OVER),
    ],
    "embed run --encoder network.safetensors --data data.npz": [
        ("", r"data\.npz must hold .* got", arrays(y_train=LABELS)),
        ("", "x_train must be .* got", arrays(x_train=PIXELS.astype(float), y_train=LABELS)),
        ("", "must .* got", arrays(x_train=PIXELS, y_train=LABELS[:3])),
        ("", "must .* got -1", arrays(x_train=PIXELS, y_train=LABELS - 1)),
        ("", "must be .* got dtype object", arrays(x_train=PIXELS, y_train=OBJECTS)),
    ],
    "embed run --data pictures --encoder": [
        ("simclr-small@100000", r"image_size must be <= \d+, .* got 100000"),
        ("simclr-small@0", "image_size must be >= 1, got 0"),
        ("simclr-small@-3", "encoder must be one of .*@PIXELS,.* got simclr-small@-3"),
        ("simclr-small@8,9", "encoder must say each once after its @, got simclr-small@8,9"),
        ("simclr-small@8,crop=all", r"crop must be a number in \(0, 1\], got all in"),
        ("concat:simclr-small@8,invert+simclr-small", "invert .* all of its parts, or none"),
        ("nonsense | pictures", "encoder must be .* got {}"),
        ("pictures/red/0.png", r"pictures/red/0\.png"),
        ("timm:resnet18", "weights must be .* got none"),
        ("timm:nothing_of_the_kind --weights random", "timm.* got .*nothing_of"),
        ("timm:resnet18 --weights nowhere.pt", r"weights must be .* got nowhere\.pt"),
        ("model/encoder.safetensors --out model --overwrite", OVER),
        ("mirrored:hf:model@8,invert --out model --overwrite", OVER),
    ],
    "embed hold-out --embeddings train_only --share": [
        (".5 --seed -1", "seed must be >= 0, got -1"),
        ("1e-9", "share must hold out some of .* got 1e-09 by record, which is 0"),
        (".5 --out train_only --overwrite", OVER),
    ],
    "embed fit-transform --components 3 --public": [
        ("public_nan", f"{NAN_ROW} of public_nan/"),
        ("public --clip-quantile 1.5", r"clip_quantile must be in \[0, 1\], got 1\.5"),
        ("public --out public --overwrite", OVER),
    ],
    "embed exclude --public": [
        ("nowhere --embeddings private", "existing directory, got nowhere"),
        ("narrow --embeddings private", "must .* got"),
        ("public --embeddings public", "must .* got 0"),
        ("public", "--embeddings"),
        ("public --embeddings private --out public --overwrite", OVER),
    ],
    "predict --model model --data": [
        ("pictures", r"red/1\.png must .* got", picture(10**9)),
        ("nowhere", "images must be .* got nowhere"),
        ("pictures --resize 12", r"resize must be left out, .*8 x 8 px\), got 12"),
        ("data.npz --evaluate", "evaluate must have labels, got 4 rows", arrays(x_test=PIXELS)),
        ("csv:pictures/t.csv --out pictures --overwrite", OVER),
    ],
    "predict --model bare --data pictures": [
        ("", "encoder must be given by name and weights"),
        ("--encoder other.safetensors", "encoder must be the one that the model learned with, "),
    ],
    "pretrain simclr --data": [
        ("nowhere", "images must be .* got nowhere"),
        ("pictures --device nonsense", "device must be .* got nonsense"),
        ("pictures --seed -1", r"seed must be in \[0, 2\^63\), got -1"),
        ("pictures --config.epochs 0", "epochs must be >= 1, got 0"),
        ("pictures --config.batch-size 512", r"images must .* N >= .* 512, got .*\(9, 3, 8, 8\)"),
        ("pictures --out pictures --overwrite", OVER),
    ],
    "pretrain probe --data": [
        ("data.npz", "images must have labels, got data without any", arrays(x_train=PIXELS)),
        ("nowhere", "images must be .* got nowhere"),
        ("pictures --out pictures --overwrite", OVER),
    ],
    "rehearse --users 4 --rows-per-user 12 --num-classes 2 --public": [
        ("public_nan", f"{NAN_ROW} of public_nan/"),
        ("public_unlabelled", "public must have labels to learn from, got public_unlabelled"),
        ("nowhere | public --like nowhere", "must be an existing directory, got nowhere"),
        ("public --like foreign", "must be embedded by one encoder"),
        ("public --like narrow", "like must have 6 columns as public, got 3"),
        ("public --like public_unlabelled", "like must have labels to learn from"),
    ],
    "sweep frontier --seeds 1 --users 4 --public public --embeddings": [
        ("nan", f"{NAN_ROW} of nan/"),
        ("unlabelled", "embeddings must have labels"),
        ("private --public narrow", "public must have 6 columns as embeddings, got 3"),
        ("private --public foreign", "one encoder"),
        ("private --epsilons -1", "epsilon must be > 0, got -1"),
        ("train_only", "must .* got"),
    ],
}

CASES = [*cases.under(TYPED), *cases.CASES]


@pytest.mark.parametrize("case", CASES, ids=[case.typed for case in CASES])
def test_bad_input_is_one_line_and_changes_nothing(
    say, world, intact, tmp_path, monkeypatch, case: cases.Case
) -> None:
    if case.typed.endswith("--device cuda") and torch.cuda.is_available():
        pytest.skip("there is such a device here")
    folder, before = world, intact  # a case that changes it fails, and those after it too
    if case.spoil is not None:
        folder = shutil.copytree(world, tmp_path, dirs_exist_ok=True, symlinks=True)
        case.spoil(folder)
        before = state(folder)
    monkeypatch.chdir(folder)
    code, printed, error = say(*case.arguments)
    assert (code, printed) == (2, ""), error
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert re.search(case.says, error), error
    after = state(folder)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == []


def test_there_are_many_and_no_two_are_one() -> None:
    assert len(CASES) >= 333
    assert len({(case.typed, case.spoil, case.says) for case in CASES}) == len(CASES)


WRITING = {
    "run": "run --embeddings private --public public --ledger none",
    "run that is counted": "run --embeddings private --public public",
    "embed run": "embed run --data private.npz --encoder network.safetensors",
    "fit-transform": "embed fit-transform --public public --components 3",
    "hold-out": "embed hold-out --embeddings train_only --share .5",
    "predict": "predict --model model --embeddings private",
    "evaluate": "evaluate --model model --embeddings private",
    "export": "export --model model --format torch-export",
    "card": "card --model model",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITING.values(), ids=WRITING)
def test_a_full_disk_is_one_line_and_nothing_is_left(
    say, world, tmp_path, small_disk: Path, command: str
) -> None:
    (small_disk / "filling").write_bytes(bytes(1 << 20))
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    before = state(tmp_path)
    code, _, error = say(*command.split(), "--out", str(small_disk / "out"))
    assert code == 2, error
    assert re.fullmatch(r"error: [^\n]*(No space left|must be free)[^\n]*\n", error), error
    assert str(small_disk) in error
    assert state(tmp_path) == before  # no ledger either: nothing was spent
