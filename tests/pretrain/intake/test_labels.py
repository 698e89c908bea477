"""One class a picture, or one finding against the rest; one spelling of it; in every source."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.sources import open_images

Write = Callable[[Path, Sequence[Any]], str]
FINDINGS = [["edema"], ["edema", "mass"], [], ["mass"]]
HAS_MASS = [0, 1, 0, 1]
PAIR = ("not mass", "mass")


def matrix(images: Any) -> list[list[int]]:
    """Findings of every picture."""
    return images.findings.tolist()


def picture(k: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (60 * k % 256, 9, 9)).save(buffer, "PNG")
    return buffer.getvalue()


def csv(folder: Path, labels: Sequence[Any], header: str = "label") -> str:
    lines = [f"path,{header}"]
    for k, label in enumerate(labels):
        (folder / f"{k}.png").write_bytes(picture(k))
        lines.append(f'{k}.png,"{label}"' if isinstance(label, str) else f"{k}.png,{label}")
    (folder / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    return f"csv:{folder / 't.csv'}"


def parquet(folder: Path, labels: Sequence[Any], **more: Any) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"image": [picture(k) for k in range(len(labels))], "label": labels}
    pq.write_table(pa.table(columns | more), folder / "t.parquet")
    return f"parquet:{folder / 't.parquet'}"


def shard(folder: Path, labels: Sequence[Any]) -> str:
    with tarfile.open(folder / "t.tar", "w") as tar:
        for k, label in enumerate(labels):
            fields = json.dumps({"label": label}).encode()
            for suffix, content in (("png", picture(k)), ("json", fields)):
                member = tarfile.TarInfo(f"{k}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return f"wds:{folder / 't.tar'}"


def hugging_face(folder: Path, labels: Sequence[Any], kind: Any = None) -> str:
    library: Any = pytest.importorskip("datasets")
    kind = kind or library.Sequence(library.ClassLabel(names=["edema", "mass", "node"]))
    features = library.Features({"image": library.Image(), "label": kind})
    images = [{"bytes": picture(k), "path": None} for k in range(len(labels))]
    held = library.Dataset.from_dict({"image": images, "label": labels}, features=features)
    held.save_to_disk(folder / "hf")
    return f"hf:{folder / 'hf'}"


def archive(folder: Path, labels: Any, **more: Any) -> str:
    y = np.array(labels)
    np.savez(folder / "t.npz", x_train=np.zeros((len(y), 4, 4), np.uint8), y_train=y, **more)
    return str(folder / "t.npz")


LISTS = [sorted(each) for each in FINDINGS]
FLAGS = [[int("edema" in each), int("mass" in each)] for each in FINDINGS]
STRUCTS = [{"edema": a, "mass": b} for a, b in FLAGS]
KINDS: list[tuple[Write, Any, str]] = [
    (csv, ["edema", "edema|mass", "none of them", "mass"], "mass"),
    (csv, ["edema", "edema; mass", "none of them", "mass"], "mass"),
    (csv, ["edema", "edema, mass", "none of them", "mass"], "mass"),
    (csv, ["edema", "edema + mass", "none of them", "mass"], "mass"),
    (csv, list(map(str, LISTS)), "mass"),
    (csv, [json.dumps(each).replace('"', '""') for each in LISTS], "mass"),
    (
        csv,
        [str(np.array(flags)).replace("0]", "]") for flags in ([7, 0], [7, 5], [3, 0], [5, 0])],
        "5",
    ),
    (parquet, LISTS, "mass"),
    (parquet, FLAGS, "1"),
    (parquet, [[float(x) for x in flags] for flags in FLAGS], "1"),
    (parquet, [[bool(x) for x in flags] for flags in FLAGS], "1"),
    (parquet, STRUCTS, "mass"),
    (shard, LISTS, "mass"),
    (shard, FLAGS, "1"),
    (shard, STRUCTS, "mass"),
    (hugging_face, [[0], [0, 1], [], [1]], "mass"),
    (hugging_face, [[0], [0, 1], [], [1]], "1"),
    (archive, FLAGS, "1"),
    (archive, np.array(FLAGS, np.float32), "1"),
    (archive, ["edema", "edema|mass", "none", "mass"], "mass"),
]


@pytest.mark.parametrize(("write", "labels", "name"), KINDS)
def test_several_findings_are_no_class_and_one_of_them_is(
    tmp_path: Path, write: Write, labels: Any, name: str
) -> None:
    source = write(tmp_path, labels)
    with pytest.raises(ValueError, match=r"--label-is NAME.* several findings a picture: .* row"):
        open_images(source)
    images = open_images(source, label_is=f" {name} ")
    assert images.labels.tolist() == HAS_MASS
    if write is hugging_face:
        name = "mass"
    assert (images.class_names, images.inferred) == ((f"not {name}", name), False)
    with pytest.raises(ValueError, match="label_is must be one of"):
        open_images(source, label_is="nodule")


def test_declared_classes_name_the_findings_of_an_archive(tmp_path: Path) -> None:
    source, names = archive(tmp_path, FLAGS), ("edema", "mass")
    for asked in ("mass", "1"):
        images = open_images(source, label_is=asked, classes=names)
        assert (images.labels.tolist(), images.class_names) == (HAS_MASS, PAIR)
    with pytest.raises(ValueError, match="must have a number for each of 3 classes, got 2"):
        open_images(source, label_is="mass", classes=(*names, "node"))
    named = archive(tmp_path, FLAGS, names=np.array([b"edema", b"mass"]))
    assert open_images(named, label_is="mass").class_names == PAIR
    with pytest.raises(
        ValueError, match=r"must be 0 and 1 for every class, got \[0.5 0.5\] in row 1"
    ):
        open_images(archive(tmp_path, [[0, 1], [0.5, 0.5]]), label_is="1")
    both = {"x_test": np.zeros((1, 4, 4), np.uint8), "y_test": np.zeros(1, int)}
    with pytest.raises(ValueError, match=r"\(n,\) in every split or \(n, K\) in every split"):
        open_images(archive(tmp_path, FLAGS, **both), label_is="1")


def test_a_user_without_the_finding_has_both_classes(tmp_path: Path) -> None:
    names = ("edema", "mass", "node")
    for labels in (["edema", "edema|mass"], ["edema", "mass"], ["edema|mass"] * 2):
        images = open_images(csv(tmp_path, labels), label_is="node", classes=names)
        assert (images.labels.tolist(), images.class_names) == ([0, 0], ("not node", "node"))
    with pytest.raises(ValueError, match=r"must be of .*node'\), got 'tube' in row 1"):
        open_images(csv(tmp_path, ["edema", "mass|tube"]), label_is="node", classes=names)


def test_a_sign_in_a_declared_or_only_label_is_a_sign(tmp_path: Path) -> None:
    names = ("ape|cat", "dog; wolf")
    assert open_images(csv(tmp_path, list(names)), classes=names).labels.tolist() == [0, 1]
    assert open_images(csv(tmp_path, ["ape|cat"] * 2)).class_names == ("ape|cat",)
    found = open_images(csv(tmp_path, ["carcinoma, other", "carcinoma", "1/2"]))
    assert found.class_names == ("1/2", "carcinoma", "carcinoma, other")
    with pytest.raises(ValueError, match=r"must be a name \(or a column for each finding\)"):
        open_images(csv(tmp_path, ["{'a': 1}", "{'a': 0}"]))


def test_declared_classes_are_of_one_spelling(tmp_path: Path) -> None:
    source = csv(tmp_path, ["u\u0308ber", "unter"])
    assert open_images(source, classes=("unter", "\u00fcber ")).labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="classes must be distinct, got"):
        open_images(source, classes=("\u00fcber", "u\u0308ber"))


def test_lists_of_one_label_are_labels(tmp_path: Path) -> None:
    images = open_images(parquet(tmp_path, [["cat"], ["dog"], ["cat"]]))
    assert (images.class_names, images.labels.tolist()) == (("cat", "dog"), [0, 1, 0])


@pytest.mark.parametrize("labels", [[[1, 0.5], [0, 1]], [[1, 0, 1], [0, 1]], [["a", None], ["b"]]])
def test_lists_that_are_neither_names_nor_flags(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(
        ValueError, match=r"must name every finding once, or have 0 or 1 .* in row 0"
    ):
        open_images(shard(tmp_path, labels), label_is="1")


TABLE = "path,edema,Mass,age\n" + "".join(
    f"{k}.png,{a},{b},{40 + k}\n" for k, (a, b) in enumerate(FLAGS)
)


def test_one_column_a_finding(tmp_path: Path, capsys) -> None:
    csv(tmp_path, FLAGS)
    (tmp_path / "t.csv").write_text(TABLE)
    source = f"csv:{tmp_path / 't.csv'}"
    with pytest.raises(ValueError, match="several findings a picture: columns Mass, edema"):
        open_images(source)
    images = open_images(source, label_is="mass")
    assert (images.labels.tolist(), images.class_names) == (HAS_MASS, PAIR)
    assert not open_images(source, columns="label=").labelled
    (tmp_path / "t.csv").write_text(TABLE.replace("1.png,1,1", "1.png,1,-1"))
    with pytest.raises(ValueError, match=r"several findings a picture: columns Mass, edema"):
        open_images(source)
    with pytest.raises(
        ValueError, match=r"must be 0 or 1 in every row, got -1 in row 1 \(1\.png\)"
    ):
        open_images(source, label_is="mass")
    one = open_images(csv(tmp_path, [1, 0, 1], header="edema"))
    assert not one.labelled
    said = capsys.readouterr().err
    assert "no labels: rows for public use or prediction only, none in columns edema" in said
    (tmp_path / "t.csv").write_text("path,label,mass\n0.png,mass|edema,0\n1.png,edema,1\n")
    with pytest.raises(ValueError, match=r"columns must give label= .* --label-is mass may be"):
        open_images(source, label_is="mass")
    for column, labels in (("mass", [0, 1]), ("label", [1, 0])):
        found = open_images(source, label_is="mass", columns=f"label={column}")
        assert found.labels.tolist() == labels


def test_columns_of_findings_in_other_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    flags = {"edema": [1, 1, 0, 0], "mass": [False, True, False, True], "age": [40, 41, 42, 43]}
    source = parquet(tmp_path, [None] * 4, **flags)
    pq: Any = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pq.read_table(tmp_path / "t.parquet").drop(["label"]), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="several findings a picture: columns edema, mass"):
        open_images(source)
    assert open_images(source, label_is="mass").labels.tolist() == HAS_MASS


def test_one_class_against_the_rest_in_every_source(tmp_path: Path) -> None:
    labels = ["dog", "cat", "owl", "cat"]
    for source in (csv(tmp_path, labels), parquet(tmp_path, labels), archive(tmp_path, labels)):
        images = open_images(source, label_is="cat")
        assert (images.labels.tolist(), images.class_names) == ([0, 1, 0, 1], ("not cat", "cat"))
    declared = open_images(source, label_is="cat", classes=("dog", "cat", "owl"))
    assert declared.labels.tolist() == [0, 1, 0, 1]
    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        (tmp_path / "folder" / name / "0.png").write_bytes(picture(0))
    folder = open_images(str(tmp_path / "folder"), label_is="cat", classes=("cat", "dog"))
    assert folder.labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="label_is must be left out for t, which has no labels"):
        open_images(csv(tmp_path, ["", ""]), label_is="cat")
    with pytest.raises(ValueError, match="label_is must be the name of a label, got an empty one"):
        open_images(source, label_is=" ")


@pytest.mark.parametrize("write", [csv, parquet, shard, archive])
@pytest.mark.parametrize(
    "twins",
    [("\u00fcber", "u\u0308ber"), ("cat", "cat\u00a0"), (" cat", "cat"), ("\ufeffcat", "cat")],
)
def test_spellings_of_one_class_are_one(
    tmp_path: Path, write: Write, twins: tuple[str, str]
) -> None:
    images = open_images(write(tmp_path, [*twins, "owl"]))
    assert len(images.class_names) == 2
    assert images.labels[0] == images.labels[1] != images.labels[2]


@pytest.mark.parametrize("write", [csv, parquet, shard, archive])
def test_classes_that_differ_in_case_are_refused_or_declared(tmp_path: Path, write: Write) -> None:
    source = write(tmp_path, ["Normal", "normal", "Normal"])
    with pytest.raises(
        ValueError, match=r"must differ in more than case .* got 'Normal' and 'normal'"
    ):
        open_images(source)
    assert open_images(source, classes=("normal", "Normal")).labels.tolist() == [1, 0, 1]
    assert open_images(source, ignore_case=True).class_names == ("Normal",)
    pipes = write(tmp_path, ["Mass|edema", "mass", "edema"])
    with pytest.raises(ValueError, match="must differ in more than case"):
        open_images(pipes, label_is="mass")
    joined = open_images(pipes, label_is="mass", ignore_case=True)
    assert joined.labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize("twins", [("0", "0.0"), ("1", "01"), ("2.50", "2.5")])
def test_one_number_is_one_label(tmp_path: Path, twins: tuple[str, str]) -> None:
    rule = rf"must write a number in one way, got '{twins[0]}' in row \d .* and '{twins[1]}'"
    with pytest.raises(ValueError, match="must write a number in one way"):
        open_images(csv(tmp_path, [*twins, "7"]))
    assert rule
    assert open_images(csv(tmp_path, list(twins)), classes=twins).labels.tolist() == [0, 1]
    assert open_images(csv(tmp_path, ["0.0", "1.0"])).class_names == ("0.0", "1.0")


def test_a_class_that_only_counting_makes_is_said(tmp_path: Path, capsys) -> None:
    assert open_images(csv(tmp_path, [1, 3])).class_names == ("0", "1", "2", "3")
    assert "label has numbers from 0: classes 0, 2 have no rows" in capsys.readouterr().err
    open_images(archive(tmp_path, [1, 2]))
    assert "label has numbers from 0: classes 0 have no rows" in capsys.readouterr().err
    open_images(csv(tmp_path, [1, 3]), classes=("1", "3"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("word", ["NA", "n/a", "NULL", "<NA>", "#N/A", "#REF!"])
def test_words_for_a_missing_label_are_no_class(tmp_path: Path, word: str) -> None:
    for write in (csv, shard):
        source = write(tmp_path, ["a", word])
        with pytest.raises(ValueError, match=rf"must be a name .* got '{word}' in row 1"):
            open_images(source)
        assert open_images(source, classes=("a", word)).labels.tolist() == [0, 1]


def test_minus_one_is_no_label(tmp_path: Path, capsys) -> None:
    source = csv(tmp_path, ["0", "1", "-1"])
    with pytest.raises(ValueError, match=r"where -1 is none, got -1 in row 2 \(2\.png\): leave"):
        open_images(source)
    assert open_images(csv(tmp_path, ["1", "-1"]), classes=("-1", "1")).labels.tolist() == [1, 0]
    assert not open_images(csv(tmp_path, ["-1", "-1"])).labelled
    capsys.readouterr()
    rows = "path,label,split\n0.png,0,train\n1.png,1,train\n2.png,-1,Test\n"
    (tmp_path / "t.csv").write_text(rows)
    images = open_images(source)
    assert (images.labels.tolist(), images.split.tolist()) == ([0, 1], [0, 0])
    assert "test has no labels: 1 left out (--splits test reads it" in capsys.readouterr().err
    assert not open_images(source, splits=["test"]).labelled
    (tmp_path / "t.csv").write_text(rows + "3.png,1,test\n")
    with pytest.raises(ValueError, match="got -1 in row 2"):
        open_images(source)
    assert len(open_images(source, splits=["train"])) == 2


NAMES = ("edema", "mass")
MATRIX = [[1, 0], [1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize(("write", "labels", "name"), KINDS)
def test_findings_are_a_column_each(tmp_path: Path, write: Write, labels: Any, name: str) -> None:
    text = isinstance(labels[0], str)
    source = write(tmp_path, [w.removesuffix(" of them") for w in labels] if text else labels)
    images = open_images(source, findings=True)
    assert images.findings is not None
    assert images.labels.tolist() == [-1] * 4
    column = images.class_names.index("mass" if write is hugging_face else name)
    assert images.findings[:, column].tolist() == HAS_MASS
    assert images.inferred == (write is not hugging_face)
    if set(images.class_names) == set(NAMES):
        assert matrix(open_images(source, findings=True, classes=NAMES)) == MATRIX


LONG = "path,finding,user\n" + "".join(
    f"{k}.png,{name},u\n" for k, each in enumerate(FINDINGS) for name in each or ["No Finding"]
)
LONG_VALUES = "path,finding,value\n" + "".join(
    f"{k}.png,{name},{int(name in each)}\n" for k, each in enumerate(FINDINGS) for name in NAMES
)
WIDE = "\n".join(
    [
        *("Path,Sex,No Finding,Mass,Edema", "0.png,F,,0.0,1", "1.png,M,,1,1.0", "2.png,F,1,-1,"),
        *("3.png,F,,1,nan", ""),
    ]
)


def table(folder: Path, text: str) -> str:
    source = csv(folder, [""] * 4)
    (folder / "t.csv").write_text(text)
    return source


def test_rows_or_columns_of_a_table_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (LONG, LONG_VALUES):
        images = open_images(table(tmp_path, text), findings=True, classes=NAMES)
        assert (matrix(images), len(images)) == (MATRIX, 4)
    ask: dict[str, Any] = {"findings": True, "classes": NAMES}
    capsys.readouterr()
    for unknown, value in ((None, 0), ("negative", 0), ("positive", 1), ("ask", -1)):
        images = open_images(table(tmp_path, WIDE), unknown=unknown, **ask)
        assert matrix(images) == [[1, 0], [1, 1], [value, value], [value, 1]]
        assert "unknown: edema 2, mass 1, of 4 rows each" in capsys.readouterr().err
    found = open_images(table(tmp_path, WIDE), findings=True)
    assert (found.class_names, found.inferred) == (("Edema", "Mass"), True)
    assert "findings are columns Edema, Mass; not read: Sex" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (LONG.replace("1.png,mass,u", "1.png,mass,v"), "one user and split in all of its rows"),
        (LONG.replace("1.png,mass", "1.png,No Finding"), "must be none or some in every row"),
        (LONG.replace("1.png,mass", "1.png,node"), "must be of .* got 'node' in row 1"),
        (LONG_VALUES.replace("value", "here"), "must be called value"),
        (LONG_VALUES + "1.png,mass,0\n", "must have one value"),
        (WIDE.replace("0.0,1", "0.0,maybe"), "column 'Edema' must hold 0, 1, or -1 .* 'maybe'"),
        (WIDE.replace("Mass", "Node"), "one column for every finding of --class-names"),
        ("path,label\n0.png,\n", "must be given, got none in 1 rows"),
    ],
)
def test_malformed_findings_are_one_line(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule) as refused:
        open_images(table(tmp_path, text), findings=True, classes=NAMES)
    assert "\n" not in str(refused.value)


def test_findings_and_a_class_are_not_both_asked_for(tmp_path: Path) -> None:
    source = csv(tmp_path, ["mass", "edema", "mass", "edema"])
    with pytest.raises(ValueError, match="label_is must be left out with findings"):
        open_images(source, findings=True, label_is="mass")
    with pytest.raises(ValueError, match="unknown must be left out without findings"):
        open_images(source, unknown="ask")
    with pytest.raises(ValueError, match="unknown must be one of"):
        open_images(source, findings=True, unknown="perhaps")
    assert matrix(open_images(source, findings=True)) == [[0, 1], [1, 0], [0, 1], [1, 0]]
