"""Columns by their usual headers, in any case; what was taken is said, what is unclear refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.datasets import ImageSet
from pretrain.sources import open_images


def opened(folder: Path, header: str, *rows: str, **options: Any) -> ImageSet:
    for k in range(len(rows)):
        (folder / f"{k}.png").touch()
    (folder / "t.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    return open_images(f"csv:{folder / 't.csv'}", **options)


def users(images: ImageSet) -> list[str]:
    return [images.user_names[k] for k in np.asarray(images.users).tolist()]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("path,label,user", ()),
        ("PATH,Label,USER", ()),
        (" Path , label\u00a0,uSer", ()),
        ("image,label,user", ()),
        ("File,class,patient", ("path", "label", "user")),
        ("filename,Finding,client", ("path", "label", "user")),
        ("file_name,DIAGNOSIS,writer_id", ("path", "label", "user")),
        ("Image Path,Target,Site", ("path", "label", "user")),
        ("Image Index,Finding Labels,Patient ID", ("path", "label", "user")),
        ("img,labels,subject-id", ("path", "label", "user")),
    ],
)
def test_usual_headers(tmp_path: Path, capsys, header: str, said: Sequence[str]) -> None:
    images = opened(tmp_path, header, "0.png,a,u", "1.png,b,v")
    assert (images.class_names, users(images)) == (("a", "b"), ["u", "v"])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].split(" is column ")[0] for line in lines] == list(said)
    columns = header.split(",")
    for part, line in zip(said, lines, strict=True):
        place = ("path", "label", "user").index(part)
        assert f"{part} is column {columns[place]!r} (--columns {part}=NAME" in line


def test_the_plain_header_comes_first(tmp_path: Path, capsys) -> None:
    images = opened(tmp_path, "site,class,user,label,path", "s,x,u,a,0.png", "s,y,v,b,1.png")
    assert (images.class_names, users(images)) == (("a", "b"), ["u", "v"])
    assert capsys.readouterr().err == ""
    images = opened(tmp_path, "path,finding,class", "0.png,a,x", "1.png,b,y")
    assert images.class_names == ("x", "y")
    assert "label is column 'class'" in capsys.readouterr().err


def test_what_may_be_the_users_is_not_guessed(tmp_path: Path) -> None:
    table = ("path,label,patient,site", "0.png,a,p,s", "1.png,b,q,s")
    with pytest.raises(ValueError, match=r"columns must give user= .* columns patient, site, got"):
        opened(tmp_path, *table)
    assert users(opened(tmp_path, *table, columns="user=Site")) == ["s", "s"]
    assert opened(tmp_path, *table, columns="user=").users is None
    with pytest.raises(
        ValueError, match=r"columns must give label= one of Label, LABEL in .*, got none"
    ):
        opened(tmp_path, "path,Label,LABEL", "0.png,a,b")
    with pytest.raises(
        ValueError, match="columns must give user= one of path, label, got 'hospital'"
    ):
        opened(tmp_path, "path,label", "0.png,a", columns="user=hospital")


def test_no_labels_are_said_with_the_columns_that_are_not_read(tmp_path: Path, capsys) -> None:
    assert not opened(tmp_path, "path,age,note", "0.png,40,x").labelled
    said = capsys.readouterr().err
    assert "no labels: rows for public use or prediction only, none in columns age, note" in said
    assert not opened(tmp_path, "path,label", "0.png,a", columns="label=").labelled
    assert capsys.readouterr().err == ""


def test_the_first_row_must_name_a_column_of_files(tmp_path: Path) -> None:
    rule = r"columns must give path= for .* 'path' or 'image' in its first row, got columns 0\.png"
    with pytest.raises(ValueError, match=rule):
        opened(tmp_path, "0.png,a", "1.png,b")


def test_users_are_spelled_in_one_way(tmp_path: Path, capsys) -> None:
    rows = [f"{k}.png,a,{user}" for k, user in enumerate(["u1", "u1\u00a0", "\u00fc", "u\u0308"])]
    assert users(opened(tmp_path, "path,label,user", *rows)) == ["u1", "u1", "\u00fc", "\u00fc"]
    images = opened(tmp_path, "path,label,user", "0.png,a,7", "1.png,a,7.0", "2.png,a,07")
    assert len(set(users(images))) == 3
    assert "has users '07' and '7', each its own" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["NA", "nan", "#N/A", "#NAME?"])
def test_words_for_a_missing_user_are_no_user(tmp_path: Path, word: str) -> None:
    with pytest.raises(ValueError, match="user must be a name, or empty in every row, got"):
        opened(tmp_path, "path,label,user", "0.png,a,u", f"1.png,a,{word}")


@pytest.mark.parametrize("sign", ["|", ";"])
def test_a_picture_is_one_user_s(tmp_path: Path, sign: str) -> None:
    rows = ("0.png,a,anna", "1.png,a,ben", f"2.png,a,anna {sign} ben")
    with pytest.raises(ValueError, match=r"user must be one in every row, whose .* in row 2 \(2"):
        opened(tmp_path, "path,label,user", *rows)
    assert users(opened(tmp_path, "path,label,user", f"0.png,a,ward{sign}3")) == [f"ward{sign}3"]
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(
        pa.table({"image": [b"", b""], "user": [["a"], ["a", "b"]]}), tmp_path / "t.parquet"
    )
    with pytest.raises(
        ValueError, match=r"user must be one in every row, whose picture it is, got \["
    ):
        open_images(f"parquet:{tmp_path / 't.parquet'}")
