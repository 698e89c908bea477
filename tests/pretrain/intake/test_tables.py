"""Tables of pictures in csv and Parquet: their columns, files, users, and any order of rows."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.datasets import ImageSet, UnreadableImage
from pretrain.intake.files import read_picture, start_of
from pretrain.intake.reading import PARTS
from pretrain.intake.table_files import BATCH
from pretrain.sources import open_images
from tests.pretrain.conftest import CLASSES, assert_read, data_set, encoded, parquet, put, table

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")
COLUMNS: dict[str, Callable[[list[bytes]], list[Any]]] = {
    "row {}": lambda files: files,
    "p/{}.png": lambda files: [{"bytes": f, "path": f"p/{k}.png"} for k, f in enumerate(files)],
    "{}.png": lambda files: [f"{k}.png" for k in range(12)],
    "./{}.png": lambda files: [{"bytes": None, "path": f"./{k}.png"} for k in range(12)],
}
OTHERS = "path=file,label=finding,user=clinic,split=part"
ROWS = "path;label\nx.png;gr\u00fcn\ny.png;gelb\n"
PLAIN, USERS = "path,label\n0.png,a\n", "path,user\na,u\nb,v\nc,u {} v"
NO_USER, MISSING = "user must be a name, or empty in every row", ("NA", "nan", "#N/A", "#NAME?")
AGAIN = ("pics/a.png", "./pics/a.png", "pics/../pics/a.png", r"pics\a.png", "link.png")
LISTED = {"image": [b"", b""], "user": [["a"], ["a", "b"]]}


def users(images: ImageSet) -> list[str]:
    return [images.user_names[k] for k in np.asarray(images.users).tolist()]


def as_csv(folder: Path, pictures, header: str = "path,label,user,split", end: str = "\n") -> str:
    mark = next((mark for mark in ";\t" if mark in header), ",")
    cells = zip(pictures.labels, pictures.users, pictures.splits, strict=True)
    rows = [mark.join((f"{k}.png", *each)) for k, each in enumerate(cells)]
    for k, file in enumerate(pictures.files):
        put(folder / f"{k}.png", file)
    return table(folder, end.join([header, *rows, ""]))


@pytest.mark.parametrize(
    ("header", "end", "columns"),
    [
        *(("path,label,user,split", end, None) for end in ("\n", "\r\n")),
        *((mark.join(("file", "finding", "clinic", "part")), "\n", OTHERS) for mark in ";\t"),
    ],
)
def test_columns_of_csv(tmp_path: Path, pictures, header: str, end: str, columns: Any) -> None:
    source = as_csv(tmp_path, pictures, header, end)
    assert_read(open_images(source, columns=columns, classes=CLASSES), pictures)
    images = open_images(source, columns=columns)
    assert (images.class_names, images.inferred) == (CLASSES, True)  # nobody declared them
    assert (images.image_name(3), images.place(3)) == ("3.png", f"{tmp_path}/3.png")
    test = open_images(source, columns=columns, splits=["test"])
    assert (test.images(slice(None)) == pictures.pixels[8:]).all()
    assert test.image_name(0) == "8.png"


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("groups", [5, 100])
def test_columns_of_parquet(tmp_path: Path, pictures, name: str, groups: int) -> None:
    as_csv(tmp_path, pictures)
    columns = {"image": COLUMNS[name](pictures.files), "label": pictures.numbers}
    rows = pa.table(columns | {"user": pictures.users, "split": pictures.splits})
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=groups)
    images = open_images(f"parquet:{tmp_path}/t.parquet", classes=CLASSES)
    assert_read(images, pictures)
    assert images.image_name(4) == name.format(4)
    assert images.place(4) == f"{tmp_path}/t.parquet: row 4 ({images.image_name(4)})"


def test_several_files_are_one_table(tmp_path: Path, pictures) -> None:
    for part in range(3):
        rows = slice(4 * part, 4 * part + 4)
        parquet(tmp_path, image=pictures.files[rows], finding=pictures.labels[rows])
        (tmp_path / "t.parquet").rename(tmp_path / f"part-{part}.parquet")
    for pattern in ("part-*.parquet", "part-{0..2}.parquet"):
        images = open_images(f"parquet:{tmp_path}/{pattern}", columns="label=finding")
        assert images.class_names == CLASSES
        assert images.labels.tolist() == pictures.numbers
        assert (images.images(np.array([11, 0, 5])) == pictures.pixels[[11, 0, 5]]).all()
        assert images.image_name(5) == "part-1.parquet 1"
        assert images.place(5) == f"{tmp_path}/part-1.parquet: row 1 (part-1.parquet 1)"
    names = f"{tmp_path}/part-2.parquet::{tmp_path}/part-0.parquet"
    two = open_images(f"parquet:{names}", columns="label=")
    assert (two.images(slice(None)) == pictures.pixels[[8, 9, 10, 11, 0, 1, 2, 3]]).all()
    assert not two.labelled


def test_what_is_not_there(tmp_path: Path, pictures) -> None:
    as_csv(tmp_path, pictures)
    source = table(tmp_path, "path\n0.png\n1.png\n")
    images = open_images(source)
    assert (images.labelled, images.users, images.split.any()) == (False, None, False)
    with pytest.raises(ValueError, match=r"splits must be train for .*which has no others"):
        open_images(source, splits=["test"])
    missing = open_images(table(tmp_path, "path\n0.png\nnone.png\n"))
    rule = r"t\.csv: row 1: .*none\.png must be a readable image, got: No such"
    with pytest.raises(UnreadableImage, match=rule):
        missing.images(slice(None))


def test_numbers_as_labels(tmp_path: Path) -> None:
    rows = "path,label,user\n" + "".join(f"{k}.png,{k},{10 - k}\n" for k in (7, 2, 10))
    source = table(tmp_path, rows)
    images = open_images(source)
    assert (images.labels.tolist(), images.inferred) == ([7, 2, 10], True)
    assert images.class_names == tuple(map(str, range(11)))
    assert images.user_names == ("0", "3", "8")  # as numbers are sorted, not as text
    declared = open_images(source, classes=tuple(map(str, range(12))))
    assert (declared.labels.tolist(), declared.inferred) == ([7, 2, 10], False)
    words = open_images(source, classes=("10", "7", "2"))
    assert words.labels.tolist() == [1, 2, 0]  # a class of that name, not of that number
    with pytest.raises(ValueError, match=r"label must be >= 0 and < 3, got 10 in row 2"):
        open_images(source, classes=("a", "b", "c"))
    mixed = table(tmp_path, "path,label\n7.png,7\n2.png,0\n")  # 0 would be the place of 10
    with pytest.raises(ValueError, match=r"must be one of \('10', '7', '2'\), got '0' in row 1"):
        open_images(mixed, classes=("10", "7", "2"))
    assert open_images(mixed, classes=("0", *"abcdef", "g")).labels.tolist() == [7, 0]


def test_paths_may_be_absolute_and_names_hold_signs(tmp_path: Path, pictures) -> None:
    put(tmp_path / "ä, b.png", pictures.files[0])
    text = 'path,label\n"ä, b.png","a ""quoted"" class"\n'
    images = open_images(table(tmp_path, text))
    assert (images.images(slice(None)) == pictures.pixels[:1]).all()
    assert images.class_names == ('a "quoted" class',)
    named = 'file,"finding, main",a=b\n"ä, b.png",cat,anna\n'
    columns = "path=file,label=finding, main,user=a=b"
    images = open_images(table(tmp_path, named), columns=columns)
    assert (images.class_names, images.user_names) == (("cat",), ("anna",))
    images = open_images(table(tmp_path / "elsewhere", f'path\n"{tmp_path}/ä, b.png"\n'))
    assert (images.images(slice(None)) == pictures.pixels[:1]).all()


@pytest.mark.parametrize(
    ("text", "encoding", "option"),
    [
        *((ROWS, name, None) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32")),
        *((ROWS, name, name) for name in ("utf-16-be", "cp1252")),
        (ROWS, "utf-8-sig", "utf-8"),
        (f"\ufeff{ROWS}", "utf-16-be", None),
        (f"SEP=;\r\n{ROWS}", "utf-16", None),
        ("sep=|\n" + ROWS.replace(";", "|"), "utf-8-sig", None),
        ("sep=\n" + ROWS, "utf-8", None),
        (ROWS + ";\n;\n\n", "utf-8", None),
        (ROWS.replace("\n", "\r"), "utf-8", None),
        (ROWS.replace(";", ";;;"), "utf-8", None),
        ('path;"a, b, c";label\nx.png;1;gr\u00fcn\ny.png;2;gelb\n', "utf-8", None),
    ],
)
def test_tables_of_every_office(tmp_path: Path, text: str, encoding: str, option: Any) -> None:
    images = open_images(table(tmp_path, text.encode(encoding)), encoding=option)
    assert (images.class_names, images.labels.tolist()) == (("gelb", "gr\u00fcn"), [1, 0])


@pytest.mark.parametrize(
    ("text", "columns", "rule"),
    [
        ("path,label\nx,a\n,b\n", None, "must name a file in every row, got none in row 1"),
        ("path,label\nx,a\ny,\n", None, "label must be given in .* none, got none in row 1"),
        ("path,user\nx,\ny,me\n", None, "user must be given in .* none, got none in row 0"),
        ("path,label\nx,99999999\n", None, "label must be >= 0 .*, got 99999999 in row 0"),
        ('path\n"x\n', None, "must be a table in UTF-8, got: unexpected end of data"),
        (b"path\n\0\n", None, "names must not end with a null character, got one that does"),
        (ROWS.encode("cp1252"), None, "in UTF-8, got: .* .or pass --encoding, such as cp1252"),
        (ROWS.encode("utf-16-le"), None, "text .or pass --encoding, such as utf-16., got null"),
        (ROWS.encode("utf-16")[:-1], None, "a table in UTF-16, got: .* .or pass --encoding"),
        (b"PK\3\4" + bytes(99), None, "save the workbook as CSV"),
        (b"\xd0\xcf\x11\xe0" + bytes(99), None, "save the workbook as CSV"),
        ("path,Label,LABEL\n0.png,a,b\n", None, "give label= one of Label, LABEL in .*, got none"),
        *((PLAIN, f"{part}=no", f"give {part}= one of path, label, got 'no'") for part in PARTS),
        *((f"path,user\n0.png,u\n1.png,{word}\n", None, NO_USER) for word in MISSING),
        *((USERS.format(sign), None, "user must be one .* row 2") for sign in "|;"),
        ("path\nx.png\nx.png\n", None, r"once, .* in row 0 \(x\.png\) and row 1"),
        ("path\nhttps://example.org/b.png\n", None, r"\(download it first\), got https:"),
    ],
)
def test_tables_that_are_refused(tmp_path, text, columns, rule) -> None:
    with pytest.raises(ValueError, match=rule):
        open_images(table(tmp_path, text), columns=columns)


def opened(folder: Path, header: str, *rows: str, **options: Any) -> ImageSet:
    for k in range(len(rows)):
        (folder / f"{k}.png").touch()
    return open_images(table(folder, "\n".join([header, *rows])), **options)


def test_usual_headers_and_those_that_are_not_plain_are_said(tmp_path: Path, capsys) -> None:
    plain = ("PATH,Label,USER", " Path , label\u00a0,uSer", "image,label,user")
    others = ("File,class,patient", "file_name,DIAGNOSIS,writer_id", "img,labels,subject-id")
    last, lines = "Image Index,Finding Labels,Patient ID", []
    for header in (*plain, *others, last):
        images = opened(tmp_path, header, "0.png,a,u", "1.png,b,v")
        assert (images.class_names, users(images)) == (("a", "b"), ["u", "v"])
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (0 if header in plain else 3)
    for part, column, line in zip(("path", "label", "user"), last.split(","), lines, strict=True):
        assert f": {part} is column {column!r} (--columns {part}=NAME" in line


def test_the_plain_header_comes_first_and_what_is_unclear_is_said(tmp_path: Path, capsys) -> None:
    images = opened(tmp_path, "site,class,user,label,path", "s,x,u,a,0.png", "s,y,v,b,1.png")
    assert (images.class_names, users(images)) == (("a", "b"), ["u", "v"])
    assert not opened(tmp_path, "path,label", "0.png,a", columns="label=").labelled
    assert capsys.readouterr().err == ""
    assert opened(tmp_path, "path,finding,class", "0.png,a,x").class_names == ("x",)
    assert not opened(tmp_path, "path,age,note", "0.png,40,x").labelled
    rows = ("path,label,patient,site", "0.png,a,p,s", "1.png,b,q,s")
    with pytest.raises(ValueError, match=r"columns must give user= .* columns patient, site, got"):
        opened(tmp_path, *rows)
    assert users(opened(tmp_path, *rows, columns="user=Site")) == ["s", "s"]
    assert opened(tmp_path, *rows, columns="user=").users is None


def test_users_are_spelled_in_one_way(tmp_path: Path, capsys) -> None:
    rows = [f"{k}.png,a,{user}" for k, user in enumerate(["u1", "u1\u00a0", "\u00fc", "u\u0308"])]
    assert users(opened(tmp_path, "path,label,user", *rows)) == ["u1", "u1", "\u00fc", "\u00fc"]
    images = opened(tmp_path, "path,label,user", "0.png,a,7", "1.png,a,7.0", "2.png,a,07")
    assert len(set(users(images))) == 3
    assert "has users '07' and '7', each its own" in capsys.readouterr().err
    images = opened(tmp_path, "path,label,user", "0.png,a,ward|3", "1.png,a,ward;3")
    assert users(images) == ["ward|3", "ward;3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "Z\u00fcrich/o\u0308l.png"):
        put(tmp_path / "pics" / name)
    return tmp_path


def test_spellings_of_other_systems_are_found(folder: Path) -> None:
    names = [r"pics\a.png", r".\pics\a.png", "pics/Z\u00fcrich/\u00f6l.png"]
    names += ["pics/Zu\u0308rich/o\u0308l.png", "pics\\Zu\u0308rich\\\u00f6l.png"]
    for name in names:
        images = opened(folder, "path,label", f"{name},a")
        assert images.images(slice(None)).shape == (1, 3, 4, 4)
        assert images.image_name(0) == name
    put(folder / r"pics\a.png", encoded(np.full((4, 4, 3), 255, np.uint8)))
    images = opened(folder, "path,label", r"pics\a.png,a", "pics/a.png,b")
    assert images.images(slice(None)).max((1, 2, 3)).tolist() == [255, 0]  # exactly this one first


@pytest.mark.parametrize("again", [*AGAIN, "{}/pics/a.png"])
def test_one_file_is_one_row(folder: Path, again: str) -> None:
    os.symlink(folder / "pics" / "a.png", folder / "link.png")
    again = again.format(folder)
    rows = ("path,label,user", "pics/a.png,x,anna", "pics/b.png,x,ben")
    last = r"link\.png" if again == "link.png" else r".*a\.png"
    place = rf"got it in row 0 \(pics/a\.png\) and row 2 \({last}\)$"
    for label in "xy":
        with pytest.raises(ValueError, match=f"must name every file once, .*{place}"):
            opened(folder, *rows, f"{again},{label},anna")
    with pytest.raises(ValueError, match=r"row 0 .* and row 2 .*, of users 'anna' and 'ben'"):
        opened(folder, *rows, f"{again},x,ben")
    os.link(folder / "pics" / "a.png", folder / "hard.png")
    assert len(opened(folder, *rows, "hard.png,x,anna")) == 3  # as a copy is another file


def test_one_file_in_two_rows_of_other_tables(folder: Path) -> None:
    binary = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    files = ["pics/a.png", "pics/b.png", "./pics/a.png"]
    without = [{"bytes": None, "path": name} for name in files]
    texts = pa.array(files)
    encoded_texts = texts.dictionary_encode()  # as pandas writes a column of categories
    for column in (texts, encoded_texts, pa.array(without), pa.array(without, binary)):
        source = parquet(folder, image=column, user=["u", "v", "w"])
        with pytest.raises(ValueError, match=r"once, .* in row 0 .* and row 2 .* 'u' and 'w'"):
            open_images(source)
    same_names = [{"bytes": encoded(np.zeros((4, 4), np.uint8)), "path": "0.png"}] * 3
    assert len(open_images(parquet(folder, image=same_names))) == 3
    rows = data_set([0, 1, 0], ("x", "y"))
    held = [str(folder / name) for name in files]
    rows = rows.remove_columns("image").add_column("image", held)
    rows.save_to_disk(folder / "hf")
    with pytest.raises(ValueError, match=r"must name every file once, .* row 0 .* and row 2"):
        open_images(f"hf:{folder / 'hf'}")


def test_pipes_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "none/1.png", r"C:\none\1.png", "nul\0.png"):
        with pytest.raises(UnreadableImage, match="must be a readable image, got: "):
            read_picture(tmp_path / name)
    assert start_of(tmp_path / "pipe", 4) == start_of(tmp_path / "folder", 4) == b""


def test_class_numbers_are_places_whatever_the_classes_are_called(tmp_path: Path, pictures) -> None:
    names = {"names": ["1", "0"], "_type": "ClassLabel"}
    for feature, labels in ((names, [0, 0, 1]), ({"feature": names}, [[0], [0], [1]])):
        kept = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
        rows = pa.table({"image": pictures.files[:3], "label": labels})
        pq.write_table(rows.replace_schema_metadata(kept), tmp_path / "t.parquet")
        images = open_images(f"parquet:{tmp_path}/t.parquet")
        assert (images.class_names, images.labels.tolist()) == (("1", "0"), [0, 0, 1])
        assert not images.inferred  # the file declares them


@pytest.fixture
def many(tmp_path: Path, pictures) -> str:
    """3,000 rows in one row group; row r is picture r % 12, and so large that it has many pages."""
    files = [pictures.files[k % 12] + bytes(1000) for k in range(3000)]
    pq.write_table(pa.table({"image": files}), tmp_path / "t.parquet", row_group_size=1 << 20)
    return f"parquet:{tmp_path}/t.parquet"


def test_reading_on_goes_through_the_file_once(many: str, pictures, monkeypatch) -> None:
    passed, whole = [], pq.ParquetFile.iter_batches

    def counted(self, *args, **kwargs):
        for batch in whole(self, *args, **kwargs):
            passed.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    images = open_images(many)
    for start in range(0, 3000, 300):
        for place in (start + 200, start, start + 100):  # as threads that decode ahead may come
            rows = np.arange(place, place + 100)
            found = images.images(slice(place, place + 100))
            assert (found == pictures.pixels[rows % 12]).all()
    assert sum(passed) == 3000
    assert max(passed) <= BATCH


def test_threads_at_once_and_a_file_that_is_cut(many: str, tmp_path: Path, pictures) -> None:
    images = open_images(many)

    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 3000, (12, 1))
        return all((images.images(row) == pictures.pixels[row % 12]).all() for row in rows)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
    images, place = open_images(many), tmp_path / "t.parquet"
    place.write_bytes(place.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=r"t\.parquet must be a Parquet file, got"):
        images.images(slice(0, 4))


@pytest.mark.parametrize(
    ("held", "name", "options", "rule"),
    [
        (b"PAR1 not", "t.parquet", {}, r"t\.parquet must be a Parquet file, got"),
        ({}, "none.parquet", {}, r"files must exist, got .*none\.parquet"),
        ({}, "*.parq", {}, r"files must exist, got .*\*\.parq"),
        ({}, "{0..2.parquet", {}, r"braces must be closed, got .*\{0"),
        ({"a": [1], "b": [2]}, "t.parquet", {"columns": "path=a,label=c"}, "of a, b, got 'c'"),
        ({"image": [b""] * 2, "label": [b"a", b"\xff"]}, "t.parquet", {}, "UTF-8, got .* in row 1"),
        (LISTED, "t.parquet", {}, r"user must be one in every row, whose picture it is, got \["),
    ],
)
def test_parquet_that_is_refused(tmp_path, held, name, options, rule) -> None:
    if isinstance(held, bytes):
        put(tmp_path / "t.parquet", held)
    else:
        parquet(tmp_path, **held)
    with pytest.raises(ValueError, match=rule):
        open_images(f"parquet:{tmp_path}/{name}", **options)


def test_pictures_of_parquet_that_cannot_be_read_are_named(tmp_path: Path, pictures) -> None:
    rule = "row 0 must hold an image's bytes or its path, got"
    with pytest.raises(UnreadableImage, match=rule):
        open_images(parquet(tmp_path, a=[1]), columns="path=a").images(slice(None))
    images = open_images(parquet(tmp_path, image=[pictures.files[0], None, b"?"]))
    with pytest.raises(UnreadableImage, match=r"row 1 must hold an image's bytes .* got none"):
        images.images(slice(0, 2))
    with pytest.raises(UnreadableImage, match=r"row 2 .* must be a readable image, got 1 bytes"):
        images.images(slice(2, 3))
