"""Pictures, tables and archives that `embed run` and `predict` read."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from tests.train_distributed.commands.bad_inputs.case import Spoil, arrays, cut, put, table

RUN = "embed run --encoder network.safetensors --data"
PREDICT = "predict --model model --data"
HEADER = "path,label,user,split\n"
ROW = "pictures/red/0.png,red,user0,train\n"


def picture_of_size(name: str, width: int, height: int) -> Spoil:
    """A PNG that says so in its header and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return put(name, b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))


def larger(folder: Path) -> None:
    Image.new("RGB", (9, 12)).save(folder / "pictures" / "red" / "0.png")


def floats(folder: Path) -> None:
    Image.new("F", (8, 8)).save(folder / "pictures" / "red" / "1.tif")


def loop(folder: Path) -> None:
    (folder / "pictures" / "red" / "9.png").symlink_to("9.png")


PIXELS = np.zeros((4, 8, 8, 3), np.uint8)
LABELS = np.arange(4) % 3

CASES = table(
    (f"{RUN} nowhere", r"images must be an npz file, .* got nowhere"),
    (f"{RUN} nowhere --layout flat", r"images must be an npz file, .* got nowhere"),
    (f"{RUN} ''", r"images must be .* got nothing"),
    (f"{RUN} 'a\0b'", r"images must be .* got|null"),
    (f"{RUN} csv:", r"images must be .* got csv:"),
    (f"{RUN} csv:pictures", r"pictures: Is a directory"),
    (f"{RUN} csv:no.csv", r"no\.csv: No such file"),
    (f"{RUN} csv:t.csv", r"t\.csv must have a first row .* empty", put("t.csv", "")),
    (
        f"{RUN} csv:table.csv --columns label=finding",
        r"table\.csv: columns must give label= one of path, .* got 'finding'",
    ),
    (
        f"{RUN} csv:t.csv",
        r"columns must give path= for t\.csv, .* got columns a, b",
        put("t.csv", "a,b\n1,2\n"),
    ),
    (
        f"{RUN} csv:t.csv",
        r"t\.csv must be a table in UTF-8, got",
        put("t.csv", HEADER.encode() + "pictures/rot/ä.png,rot,a,train\n".encode("latin-1")),
    ),
    (
        f"{RUN} csv:t.csv",
        r"t\.csv must name every column once, got path, path",
        put("t.csv", "path,path\n1,2\n"),
    ),
    (
        f"{RUN} csv:t.csv",
        r"4 columns in every row, got 2 in row 1",
        put("t.csv", HEADER + ROW + "a,b\n"),
    ),
    (f"{RUN} csv:t.csv", r"t\.csv|readable image", put("t.csv", HEADER + ROW.replace("0", "\0"))),
    (f"{RUN} csv:t.csv", r"t\.csv must hold .* got none", put("t.csv", HEADER)),
    (
        f"{RUN} csv:t.csv",
        r"split must be one of train, .* got 'tset' in row 0",
        put("t.csv", HEADER + ROW.replace("train", "tset")),
    ),
    (
        f"{RUN} csv:t.csv",
        r"users of t must not be in train and test both .* got 1 who are: user0",
        put("t.csv", HEADER + ROW + ROW.replace("train", "test").replace("0.png", "1.png")),
    ),
    (
        f"{RUN} csv:table.csv --class-names blue green",
        r"label must be one of .* got 'red' in row \d",
    ),
    (f"{RUN} pictures --class-names red red", r"class_names must .*got"),
    (f"{RUN} private.npz --num-classes 0", r"num_classes must be in \[2, \d+\], got 0"),
    (f"{RUN} private.npz --num-classes {10**12}", r"num_classes must be in \[2, \d+\], got 10"),
    (f"{RUN} pictures --test-share 2", r"test_share must be in \(0, 1\), got 2"),
    (f"{RUN} pictures --test-share row:0.2", r"test_share must be a share such .* got row:0\.2"),
    (f"{RUN} pictures --test-share 0.2", r"must have users .* image:0\.2\), got pictures"),
    (
        f"{RUN} csv:table.csv --one-user --columns user=user",
        r"user= of columns .* one_user, got user",
    ),
    (f"{RUN} csv:table.csv --columns file", r"columns must be such as path=file,.* got 'file'"),
    (f"{RUN} pictures --splits tset", r"splits must be of .* got \['tset'\]"),
    (f"{RUN} pictures --columns user=who", r"columns must be left out for pictures, .* got"),
    (f"{RUN} private.npz --layout flat", r"layout must be left out for private\.npz"),
    (
        f"{RUN} pictures",
        r"pictures/red/1\.png must be a readable image, got",
        put("pictures/red/1.png", b"no picture"),
    ),
    (
        f"{RUN} pictures",
        r"pictures/red/1\.png must be a readable image, got",
        cut("pictures/red/1.png"),
    ),
    (f"{RUN} pictures", r"red/1\.png must be a readable image", cut("pictures/red/1.png", 0)),
    (f"{RUN} pictures", r"red/1\.tif must have 8 or 16 bits .* got", floats),
    (f"{RUN} pictures", r"red/9\.png must be a readable", loop),
    (f"{RUN} pictures", r"all images must have .* got", larger),
    (
        f"{RUN} pictures",
        r"red/1\.png must have at most max_pixels = \d+ pixels, got .*",
        picture_of_size("pictures/red/1.png", 14_000, 14_000),
    ),
    (
        f"{PREDICT} pictures",
        r"red/1\.png must .* got",
        picture_of_size("pictures/red/1.png", 10**9, 10**9),
    ),
    (f"{RUN} data.npz", r"data\.npz must be a complete npz", put("data.npz", "x")),
    (f"{RUN} private.npz", r"private\.npz must be a complete npz", cut("private.npz")),
    (f"{RUN} data.npz", r"data\.npz must hold .* got", arrays(y_train=LABELS)),
    (
        f"{RUN} data.npz",
        r"x_train must be .* got",
        arrays(x_train=PIXELS.astype(float), y_train=LABELS),
    ),
    (f"{RUN} data.npz", r"must .* got", arrays(x_train=PIXELS, y_train=LABELS[:3])),
    (f"{RUN} data.npz", r"must .* got -1", arrays(x_train=PIXELS, y_train=LABELS - 1)),
    (
        f"{RUN} data.npz",
        r"must be .* got dtype object",
        arrays(x_train=PIXELS, y_train=np.array([1, None, 2, 0], object)),
    ),
)
