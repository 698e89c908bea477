"""Pictures, tables, archives, encoders, embedding sets and transforms that commands read."""

import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.train_distributed.commands.bad_inputs.case import (
    DEEP,
    NAN_ROW,
    NEW,
    OVER,
    Spoil,
    arrays,
    as_folder,
    cut,
    gone,
    put,
    under,
)

RED, FITTED = "pictures/red/1.png", "transform.safetensors"
META, ROWS = "private/meta.json", "private/embeddings.npy"
HEADER, ROW = "path,label,user,split", "pictures/red/0.png,red,user0,train"
OTHER = ROW.replace("train", "test").replace("0.png", "1.png")
LATIN = f"{HEADER}\npictures/rot/ä.png,rot,a,train\n".encode("latin-1")
PIXELS, LABELS = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 3
OBJECTS = np.array([1, None, 2, 0], object)


def csv(*rows: str) -> Spoil:
    """Writes t.csv of these rows."""
    return put("t.csv", "".join(f"{row}\n" for row in (HEADER, *rows)))


def picture(side: int) -> Spoil:
    """A PNG that says in its header how large it is and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return put(RED, b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))


def larger(folder: Path) -> None:
    Image.new("RGB", (9, 12)).save(folder / "pictures" / "red" / "0.png")


def floats(folder: Path) -> None:
    Image.new("F", (8, 8)).save(folder / "pictures" / "red" / "1.tif")


def loop(folder: Path) -> None:
    (folder / "pictures" / "red" / "9.png").symlink_to("9.png")


def deep_shard(folder: Path) -> None:
    with tarfile.open(folder / "shard-0.tar", "w") as tar:
        member = tarfile.TarInfo("0.json")
        member.size = len(DEEP)
        tar.addfile(member, io.BytesIO(DEEP.encode()))


def names(of_classes: Any) -> Spoil:
    """Changes the class names of the private set."""

    def spoil(folder: Path) -> None:
        meta = json.loads((folder / META).read_text())
        (folder / META).write_text(json.dumps(meta | {"class_names": of_classes}))

    return spoil


def array(name: str, values: Any) -> Spoil:
    """Puts an array in the place of a file."""
    return lambda folder: np.save(folder / name, values)


TYPED = {
    "run --embeddings private --public public": [
        ("", r"private/embeddings\.npy must be a complete npy", gone(ROWS), cut(ROWS)),
        ("", r"private/labels\.npy must be a complete npy file", cut("private/labels.npy", 0)),
        ("", r"private/embeddings\.npy must be", as_folder(ROWS)),
        ("", r"private/meta\.json must be a readable JSON", put(META, "{"), put(META, DEEP)),
        ("", r"private/meta\.json must be a JSON object", put(META, "[]")),
        ("", r"private/meta\.json must be a readable JSON", put(META, b"\xff\xfe\0")),
        ("", "labels must be 96 integers, got", array("private/labels.npy", np.zeros(5, int))),
        ("", r"embeddings must be a float \(N, p\), got", array(ROWS, np.zeros((96, 6), int))),
        ("", r"embeddings\.npy must be", array(ROWS, np.array([{}]))),
        ("", "class_names must be a list of distinct names", names(["a", "a", "b"]), names(5)),
        ("", "class_names must be a list of distinct names", names(None), names({"a": 1})),
        ("", "labels must be < 2 class names, got 2", names(["a", "b"])),
        ("", "users must be >= 0, got -1", array("private/users.npy", np.arange(96) - 1)),
        ("", "split must be 0, 1 or 2, got", array("private/split.npy", np.full(96, 7, np.uint8))),
    ],
    "run --embeddings private --public": [
        ("foreign", "public and embeddings must be embedded by one encoder, got"),
        ("cropped", "must be .*preprocess.*|one encoder"),
        ("foreign_transform.safetensors", "one encoder, got"),
        ("narrow", "transform must be of 6 columns, got one of 3"),
        (FITTED, r"transform\.safetensors must .*got", cut(FITTED), cut(FITTED, 0)),
        ("transform.safetensors --examples public", "must be left out with public a transform"),
        ("nowhere", "embeddings must be an existing directory"),
        ("nowhere.safetensors", r"nowhere\.safetensors"),
        ("model/model.safetensors", r"model\.safetensors: transform must hold .* got"),
        ("private", "public must be another set"),
        ("public_nan", f"{NAN_ROW} of public_nan/"),
    ],
    "run --public public --embeddings": [
        ("nowhere", "embeddings must be an existing directory, got nowhere"),
        ("table.csv", r"existing directory, got table\.csv"),
        ("nan", rf"{NAN_ROW} of nan/embeddings\.npy \(7\.png\)"),
        ("nobody", "users must be named .*run --one-user.*simulate --users N.*, got none for nob"),
        ("unlabelled", "embeddings must have labels to learn from, got unlabelled"),
    ],
    "run": [("--embeddings private", "--public")],
    "rival": [
        ("amp --embeddings unlabelled --public public", "must have labels"),
        ("admm-dual --embeddings unlabelled --public public", "must have labels"),
    ],
    "embed run --encoder network.safetensors --data": [
        ("nowhere | nowhere --layout flat", "images must be an npz file, .* got nowhere"),
        ("''", "images must be .* got nothing"),
        ("csv:", "images must be .* got csv:"),
        ("'a\0b'", "images must be .* got|null"),
        ("csv:pictures", "pictures: Is a directory"),
        ("csv:no.csv", r"no\.csv: No such file"),
        ("csv:table.csv --columns label=kind", r"table\.csv: columns must give label= .*'kind'"),
        ("csv:table.csv --class-names blue green", r"label must be one of .* got 'red' in row \d"),
        ("private.npz --num-classes 0", r"num_classes must be in \[2, \d+\], got 0"),
        ("private.npz --num-classes 1000000000000", r"num_classes must be in \[2, \d+\], got 10"),
        ("csv:table.csv --one-user --columns user=user", "user= of columns .* one_user, got user"),
        ("csv:table.csv --columns file", "columns must be such as path=file,.* got 'file'"),
        ("private.npz --layout flat", r"layout must be left out for private\.npz"),
        ("private.npz", r"private\.npz must be a complete npz", cut("private.npz")),
        ("wds:none-*.tar", r"none-\*\.tar"),
        ("wds:table.csv", r"table\.csv"),
        ("wds:shard-0.tar", r"0\.json must be text", deep_shard),
        ("parquet:table.csv", r"table\.csv must be .* got"),
        ("hf:private", "private must .* got|hf must have"),
        ("cifar10:pictures", "pictures must hold cifar10 .* got"),
        ("private", "private must hold .* got none"),
        ("csv:pictures/t.csv --out pictures --overwrite", OVER),
        ("'wds:pictures/*.tar' --out pictures --overwrite", OVER),
        ("pictures/red --layout flat --out pictures --overwrite", OVER),
    ],
    "embed run --encoder network.safetensors --data csv:t.csv": [
        ("", r"t\.csv must have a first row .* empty", put("t.csv", "")),
        ("", r"columns must give path= for t\.csv, .* columns a, b", put("t.csv", "a,b\n1,2\n")),
        ("", r"t\.csv must be a table in UTF-8, got", put("t.csv", LATIN)),
        ("", r"t\.csv must name every column once, got path, path", put("t.csv", "path,path\n1,2")),
        ("", "4 columns in every row, got 2 in row 1", csv(ROW, "a,b")),
        ("", r"t\.csv|readable image", csv(ROW.replace("0", "\0"))),
        ("", r"t\.csv must hold .* got none", csv()),
        ("", "split must be one of train, .* 'tset' in row 0", csv(ROW.replace("train", "tset"))),
        ("", "users of t must not be in train and test both .* who are: user0", csv(ROW, OTHER)),
    ],
    "embed run --encoder network.safetensors --data pictures": [
        ("--class-names red red", "class_names must .*got"),
        ("--test-share 2", r"test_share must be in \(0, 1\), got 2"),
        ("--test-share row:0.2", r"test_share must be a share such .* got row:0\.2"),
        ("--test-share 0.2", r"must have users .* image:0\.2\), got pictures"),
        ("--splits tset", r"splits must be of .* got \['tset'\]"),
        ("--columns user=who", "columns must be left out for pictures, .* got"),
        ("", r"pictures/red/1\.png must be a readable image, got", put(RED, b"no picture")),
        ("", r"pictures/red/1\.png must be a readable image, got", cut(RED)),
        ("", r"red/1\.png must be a readable image", cut(RED, 0)),
        ("", r"red/1\.tif must have 8 or 16 bits .* got", floats),
        ("", r"red/9\.png must be a readable", loop),
        ("", "all images must have .* got", larger),
        ("", r"red/1\.png must have at most max_pixels = \d+ pixels, got", picture(14_000)),
        ("--max-pixels 0", "max_pixels must be >= 1, got 0"),
        ("--resize 0", "resize must be >= 1, got 0"),
        ("--resize 1000000", "resize must be <= 9459, got 1000000"),
        ("--batch-size 0", "batch_size must be >= 1, got .*0"),
        ("--device nonsense | --device cuda:99", "device must be .* got {}"),
        ("--device cuda", r"device must be one that is here \(cpu\), got cuda"),
        ("", r"network\.safetensors must be .*got", cut("network.safetensors")),
        ("", r"network\.safetensors", cut("network.safetensors", 0)),
        ("--out old", NEW),
        ("--out table.csv --overwrite | --out table.csv/out", r"table\.csv"),
        ("--out /proc/nowhere/out", "/proc/nowhere"),
        ("--out pictures --overwrite", OVER),
    ],
    "embed run --encoder network.safetensors --data data.npz": [
        ("", r"data\.npz must be a complete npz", put("data.npz", "x")),
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
        ("simclr-small@crop=0", r"crop must be in \(0, 1\], got 0"),
        ("simclr-small@crop=nan", r"crop must be in \(0, 1\], got nan"),
        ("simclr-small@8,crop=all", r"crop must be a number in \(0, 1\], got all in"),
        ("concat:simclr-small@8,invert+simclr-small", "invert .* all of its parts, or none"),
        ("nonsense | pictures", "encoder must be .* got {}"),
        ("pictures/red/0.png", r"pictures/red/0\.png"),
        ("timm:resnet18", "weights must be .* got none"),
        ("timm:nothing_of_the_kind --weights random", "timm.* got .*nothing_of"),
        ("timm:resnet18 --weights nowhere.pt", r"weights must be .* got nowhere\.pt"),
        ("model/encoder.safetensors --out model --overwrite", OVER),
        ("mirrored:hf:model@8,invert --out model --overwrite", OVER),
        ("mirrored:hf:model --out model --overwrite", OVER),
    ],
    "embed": [
        ("run --data pictures --weights random", "weights must be left out .* got random"),
        ("hold-out --embeddings private --share .5", "must hold no evaluation rows yet"),
        ("run --data x --encoder open_clip:B", "embed run --encoder open_clip has been retired: "),
    ],
    "embed hold-out --embeddings train_only --share": [
        ("0 | nan", r"share must be in \(0, 1\), got {}"),
        (".5 --seed -1", "seed must be >= 0, got -1"),
        ("1e-9", "share must hold out some of .* got 1e-09 by record, which is 0"),
        (".5 --out train_only --overwrite", OVER),
    ],
    "embed fit-transform --components 3 --public": [
        ("public_nan", f"{NAN_ROW} of public_nan/"),
        ("public --components 0", r"components must be in \[1, 6\], got 0"),
        ("public --components 7", r"components must be in \[1, 6\], got 7"),
        ("public --clip-quantile 1.5", r"clip_quantile must be in \[0, 1\], got 1\.5"),
        ("public --constant nan", "constant must be .* got nan"),
        ("public --constant 1e9", "constant must be .* got 1"),
        ("public --out public --overwrite", OVER),
    ],
    "embed exclude --public": [
        ("nowhere --embeddings private", "existing directory, got nowhere"),
        ("narrow --embeddings private", "must .* got"),
        ("public --embeddings public", "must .* got 0"),
        ("public --private private", "exclude --private has been retired: give .* --embeddings"),
        ("public", "--embeddings"),
        ("public --embeddings private --out public --overwrite", OVER),
    ],
    "predict --model model --data": [
        ("pictures", r"red/1\.png must .* got", picture(10**9)),
        ("nowhere", "images must be .* got nowhere"),
        ("pictures", r"pictures/red/1\.png must be a readable image", cut(RED)),
        ("pictures --device nonsense", "device must be .* got nonsense"),
        ("pictures --batch-size -1", "batch_size must be >= 1, got -1"),
        ("pictures --resize 0", "resize must be >= 1, got 0"),
        ("pictures --resize 12", r"resize must be left out, .*8 x 8 px\), got 12"),
        ("one --skip-unreadable", "must hold a readable image, got none", put("one/1.png", b"")),
        ("data.npz --evaluate", "evaluate must have labels, got 4 rows", arrays(x_test=PIXELS)),
        ("csv:pictures/t.csv --out pictures --overwrite", OVER),
    ],
    "predict --model": [
        ("bare --data pictures", "encoder must be given by name and weights"),
    ],
    "predict --model bare --data pictures": [
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
    "sweep": [
        ("frontier --seeds 1 --users 4 --public foreign --embeddings private", "one encoder")
    ],
    "sweep frontier --seeds 1 --users 4 --public public --embeddings": [
        ("nan", f"{NAN_ROW} of nan/"),
        ("unlabelled", "embeddings must have labels"),
        ("private --public narrow", "public must have 6 columns as embeddings, got 3"),
        ("private --epsilons -1", "epsilon must be > 0, got -1"),
        ("train_only", "must .* got"),
    ],
    "": [
        ("simulate --scheme one-class --embeddings unlabelled --public public", "must have labels")
    ],
}

CASES = under(TYPED)
