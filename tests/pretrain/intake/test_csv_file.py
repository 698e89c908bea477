from pathlib import Path

import numpy as np
import pytest

from pretrain.datasets import UnreadableImage
from pretrain.intake.reading import named_columns
from pretrain.sources import open_images


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_columns_by_their_usual_names(write_csv, pictures, tmp_path: Path, ending: str) -> None:
    images = open_images(write_csv(ending=ending), classes=("cat", "dog", "owl"))
    assert images.labels.tolist() == pictures.numbers
    assert np.asarray(images.users).tolist() == pictures.user_numbers
    assert images.user_names == ("ward A", "ward B", "ward C")
    assert images.split.tolist() == pictures.split_numbers
    assert (images.images(slice(None)) == pictures.pixels).all()
    assert (images.images(np.array([7, 0])) == pictures.pixels[[7, 0]]).all()
    assert images.image_name(3) == "scans/03.png"
    assert images.place(3) == f"{tmp_path}/scans/03.png"
    assert not images.inferred
    test = open_images(f"csv:{tmp_path / 'table.csv'}", splits=["test"])
    assert (test.images(slice(None)) == pictures.pixels[8:]).all()
    assert test.image_name(0) == "scans/08.png"


@pytest.mark.parametrize("header", ["file;finding;clinic;part", "file\tfinding\tclinic\tpart"])
def test_columns_by_other_names(write_csv, pictures, header: str) -> None:
    names = {"path": "file", "label": "finding", "user": "clinic", "split": "part"}
    columns = ",".join(f"{part}={name}" for part, name in names.items())
    images = open_images(write_csv(header), columns=columns)
    assert images.class_names == ("cat", "dog", "owl")
    assert images.inferred  # nobody declared them
    assert images.labels.tolist() == pictures.numbers
    assert images.split.tolist() == pictures.split_numbers


def test_what_is_not_there(write_csv, pictures) -> None:
    images = open_images(write_csv("path"))
    assert not images.labelled
    assert images.users is None
    assert images.split.tolist() == [0] * 12
    assert (images.images(slice(None)) == pictures.pixels).all()
    with pytest.raises(ValueError, match=r"splits must be train for .*which has no others"):
        open_images(write_csv("path"), splits=["test"])


def written(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"csv:{path}"


def test_numbers_as_labels(tmp_path: Path) -> None:
    table = "path,label,user\n" + "".join(f"{k}.png,{k},{10 - k}\n" for k in (7, 2, 10))
    images = open_images(written(tmp_path / "t.csv", table))
    assert images.labels.tolist() == [7, 2, 10]
    assert images.class_names == tuple(map(str, range(11)))
    assert images.inferred
    assert images.user_names == ("0", "3", "8")  # as numbers are sorted, not as text
    declared = open_images(f"csv:{tmp_path / 't.csv'}", classes=tuple(map(str, range(12))))
    assert declared.labels.tolist() == [7, 2, 10]
    assert not declared.inferred
    words = open_images(f"csv:{tmp_path / 't.csv'}", classes=("10", "7", "2"))
    assert words.labels.tolist() == [1, 2, 0]  # a class of that name, not of that number
    with pytest.raises(ValueError, match=r"label must be >= 0 and < 3, got 10 in row 2"):
        open_images(f"csv:{tmp_path / 't.csv'}", classes=("a", "b", "c"))


def test_names_that_only_excel_would_write(tmp_path: Path, pictures) -> None:
    (tmp_path / "ä, b.png").write_bytes(pictures.files[0])
    table = '\ufeffpath,label\n"ä, b.png","a ""quoted"" class"\n\n'
    images = open_images(written(tmp_path / "t.csv", table))
    assert (images.images(slice(None)) == pictures.pixels[:1]).all()
    assert images.class_names == ('a "quoted" class',)


def test_paths_may_be_absolute(tmp_path: Path, pictures) -> None:
    (tmp_path / "x.png").write_bytes(pictures.files[0])
    (tmp_path / "elsewhere").mkdir()
    images = open_images(written(tmp_path / "elsewhere" / "t.csv", f"path\n{tmp_path}/x.png\n"))
    assert (images.images(slice(None)) == pictures.pixels[:1]).all()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("path,label\nx,a\n,b\n", "must name a file in every row, got none in row 1"),
        ("path,label\nx,a\ny,\n", "label must be given in every row or in none, got none in row 1"),
        ("path,user\nx,\ny,me\n", "user must be given in every row or in none, got none in row 0"),
        ("path,label\nx,-3\n", "label must be >= 0 and < 1048576, got -3 in row 0"),
        ("path,label\nx,99999999\n", "label must be >= 0 and < 1048576, got 99999999 in row 0"),
        ('path\n"x\n', "must be a table in UTF-8, got: unexpected end of data"),
        (
            b"path\n\xff\n",
            "must be a table in UTF-8, got: 'utf-8' codec",
        ),
        (b"path\n\0\n", "names must not end with a null character, got one that does"),
    ],
)
def test_damaged_tables(tmp_path: Path, text: str | bytes, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        open_images(written(tmp_path / "t.csv", text))


def test_a_column_that_was_named_must_be_there(write_csv) -> None:
    for part in ("path", "label", "user", "split"):
        rule = f"columns must give {part}= one of path, label, user, split, got 'nowhere'"
        with pytest.raises(ValueError, match=rule):
            open_images(write_csv(), columns=f"{part}=nowhere")


def test_columns_are_named_by_what_they_hold(tmp_path: Path, pictures) -> None:
    """A column's own name may hold commas and equals signs; other words are refused."""
    (tmp_path / "0.png").write_bytes(pictures.files[0])
    header = b'file,"finding, main",a=b\n0.png,cat,anna\n'
    source = written(tmp_path / "t.csv", header)
    images = open_images(source, columns="path=file,label=finding, main,user=a=b")
    assert (images.class_names, images.user_names) == (("cat",), ("anna",))
    assert named_columns("label=,user=") == {"label": "", "user": ""}
    for words in ("file", "file=path", "path=a,path=b", "lable=x,path=a", ","):
        with pytest.raises(ValueError, match=r"columns must be such as path=file,label=finding"):
            named_columns(words)


def test_a_missing_file_is_unreadable_and_named(tmp_path: Path) -> None:
    images = open_images(written(tmp_path / "t.csv", "path\nnone.png\n"))
    with pytest.raises(UnreadableImage, match=r"none\.png must be a readable image, got: No such"):
        images.images(slice(None))


ROWS = "path;label\nx.png;gr\u00fcn\ny.png;gelb\n"
CLASSES = ("gelb", "gr\u00fcn")


@pytest.mark.parametrize(
    ("text", "encoding", "option"),
    [
        (ROWS, "utf-8", None),
        (ROWS, "utf-8-sig", None),
        (ROWS, "utf-8-sig", "utf-8"),
        (ROWS, "utf-16", None),
        (ROWS, "utf-32", None),
        (f"\ufeff{ROWS}", "utf-16-be", None),
        (ROWS, "utf-16-be", "utf-16-be"),
        (ROWS, "cp1252", "cp1252"),
        (ROWS, "mac_roman", "mac-roman"),
        (f"sep=;\n{ROWS}", "utf-8", None),
        (f"SEP=;\r\n{ROWS}", "utf-16", None),
        ("sep=|\n" + ROWS.replace(";", "|"), "utf-8-sig", None),
        ("sep=\n" + ROWS, "utf-8", None),
        (ROWS + ";\n;\n\n", "utf-8", None),
        (ROWS.replace("\nx", "\n;\nx"), "utf-8", None),
        (ROWS.replace("\n", "\r"), "utf-8", None),
        (ROWS.replace(";", ";;;"), "utf-8", None),
        ('path;"a, b, c";label\nx.png;1;gr\u00fcn\ny.png;2;gelb\n', "utf-8", None),
    ],
)
def test_tables_of_every_office(
    tmp_path: Path, text: str, encoding: str, option: str | None
) -> None:
    source = written(tmp_path / "t.csv", text.encode(encoding))
    images = open_images(source, encoding=option)
    assert (images.class_names, images.labels.tolist()) == (CLASSES, [1, 0])


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (
            ROWS.encode("cp1252"),
            "must be a table in UTF-8, got: .* .or pass --encoding, such as cp1252",
        ),
        (ROWS.encode("utf-16-le"), "must be text .or pass --encoding, such as utf-16., got null"),
        (ROWS.encode("utf-16")[:-1], "must be a table in UTF-16, got: .* .or pass --encoding"),
        (b"PK\3\4" + bytes(99), "save the workbook as CSV"),
        (b"\xd0\xcf\x11\xe0" + bytes(99), "save the workbook as CSV"),
        (b"sep=;\n", "must have a first row with the columns' names, got an empty file"),
    ],
)
def test_tables_in_other_encodings(tmp_path: Path, content: bytes, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        open_images(written(tmp_path / "t.csv", content))


def test_encodings_are_checked_at_the_door(tmp_path: Path, pictures) -> None:
    source = written(tmp_path / "t.csv", ROWS)
    for name in ("klingon", "base64", "rot13"):
        with pytest.raises(
            ValueError, match=f"encoding must be one that Python knows, got '{name}'"
        ):
            open_images(source, encoding=name)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"encoding must be left out for .*, which is no csv file"):
        open_images(str(tmp_path / "folder"), encoding="utf-8")
