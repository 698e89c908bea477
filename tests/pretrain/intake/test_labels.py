"""One spelling of a name; one class a picture, or its findings, in every source; options."""

import json
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.intake import reading
from pretrain.intake.reading import (
    canonical_name,
    case_twins,
    left_by_systems,
    warn_of_case_twins,
)
from pretrain.sources import open_images
from tests.pretrain.conftest import archive, csv, data_set, parquet, put, shard, table

Write = Callable[[Path, Sequence[Any]], str]
FINDINGS = [["edema"], ["edema", "mass"], [], ["mass"]]
HAS_MASS = [0, 1, 0, 1]
PAIR = ("not mass", "mass")
NAMES = ("edema", "mass")
LISTS = [sorted(each) for each in FINDINGS]
FLAGS = [[int("edema" in each), int("mass" in each)] for each in FINDINGS]
STRUCTS = [{"edema": a, "mass": b} for a, b in FLAGS]
PRINTED = [str(np.array(f)).replace("0]", "]") for f in ([7, 0], [7, 5], [3, 0], [5, 0])]
ODD = "must name every finding once, or have 0 or 1 .* in row 0"
TWINS = r"must differ in more than case .* got 'Normal' and 'normal'"
NO_NAME = "must be a name, or empty in every row"
NUMBER = "must write a number in one way, got"
TABLE = "path,edema,Mass,age\n" + "".join(
    f"{k}.png,{a},{b},{40 + k}\n" for k, (a, b) in enumerate(FLAGS)
)
LONG = "path,finding,user\n" + "".join(
    f"{k}.png,{name},u\n" for k, each in enumerate(FINDINGS) for name in each or ["No Finding"]
)
LONG_VALUES = "path,finding,value\n" + "".join(
    f"{k}.png,{name},{int(name in each)}\n" for k, each in enumerate(FINDINGS) for name in NAMES
)
COLUMNS = "columns must be such as path=file,label=finding"
ASKED: dict[str, Any] = {"findings": True, "classes": NAMES}


def matrix(images: Any) -> list[list[int]]:
    return images.findings.tolist()


def hugging_face(folder: Path, labels: Sequence[Any]) -> str:
    library: Any = pytest.importorskip("datasets")
    kind = library.Sequence(library.ClassLabel(names=["edema", "mass", "node"]))
    data_set(labels, kind).save_to_disk(folder / "hf")
    return f"hf:{folder / 'hf'}"


KINDS: list[tuple[Write, Any, str]] = [
    *((csv, ["edema", f"edema{sign}mass", "none", "mass"], "mass") for sign in ("|", "; ", ", ")),
    (csv, ["edema", "edema + mass", "none", "mass"], "mass"),
    *((write, LISTS, "mass") for write in (parquet, shard)),
    *((write, FLAGS, "1") for write in (parquet, shard, archive)),
    *((write, STRUCTS, "mass") for write in (parquet, shard)),
    *((parquet, [[of(x) for x in flags] for flags in FLAGS], "1") for of in (float, bool)),
    *((hugging_face, [[0], [0, 1], [], [1]], name) for name in ("mass", "1")),
    (csv, list(map(str, LISTS)), "mass"),
    (csv, [json.dumps(each).replace('"', '""') for each in LISTS], "mass"),
    (csv, PRINTED, "5"),
    (archive, np.array(FLAGS, np.float32), "1"),
    (archive, ["edema", "edema|mass", "none", "mass"], "mass"),
]


@pytest.mark.parametrize(("write", "labels", "name"), KINDS)
def test_several_findings_are_no_class_and_one_of_them_is(tmp_path, write, labels, name) -> None:
    source = write(tmp_path, labels)
    with pytest.raises(ValueError, match=r"--label-is NAME.* several findings a picture: .* row"):
        open_images(source)
    images = open_images(source, label_is=f" {name} ")
    assert images.labels.tolist() == HAS_MASS
    name = "mass" if write is hugging_face else name
    assert (images.class_names, images.inferred) == ((f"not {name}", name), False)
    with pytest.raises(ValueError, match="label_is must be one of"):
        open_images(source, label_is="nodule")
    images = open_images(source, findings=True)  # a column each
    assert images.findings is not None
    assert images.labels.tolist() == [-1] * 4
    assert images.findings[:, images.class_names.index(name)].tolist() == HAS_MASS
    assert images.inferred == (write is not hugging_face)
    if set(images.class_names) == set(NAMES):
        assert matrix(open_images(source, findings=True, classes=NAMES)) == FLAGS


def test_declared_classes_name_the_findings_of_an_archive(tmp_path: Path) -> None:
    source = archive(tmp_path, FLAGS)
    for asked in ("mass", "1"):
        images = open_images(source, label_is=asked, classes=NAMES)
        assert (images.labels.tolist(), images.class_names) == (HAS_MASS, PAIR)
    named = archive(tmp_path, FLAGS, names=np.array([b"edema", b"mass"]))
    assert open_images(named, label_is="mass").class_names == PAIR
    both = {"x_test": np.zeros((1, 4, 4), np.uint8), "y_test": np.zeros(1, int)}
    with pytest.raises(ValueError, match=r"\(n,\) in every split or \(n, K\) in every split"):
        open_images(archive(tmp_path, FLAGS, **both), label_is="1")


def test_what_is_one_label_after_all(tmp_path: Path) -> None:
    """A sign in a declared or only label, lists of one, and one spelling of what is declared."""
    names = ("ape|cat", "dog; wolf")
    assert open_images(csv(tmp_path, list(names)), classes=names).labels.tolist() == [0, 1]
    assert open_images(csv(tmp_path, ["ape|cat"] * 2)).class_names == ("ape|cat",)
    found = open_images(csv(tmp_path, ["carcinoma, other", "carcinoma", "1/2"]))
    assert found.class_names == ("1/2", "carcinoma", "carcinoma, other")
    images = open_images(parquet(tmp_path, [["cat"], ["dog"], ["cat"]]))
    assert (images.class_names, images.labels.tolist()) == (("cat", "dog"), [0, 1, 0])
    source = csv(tmp_path, ["u\u0308ber", "unter"])
    assert open_images(source, classes=("unter", "\u00fcber ")).labels.tolist() == [1, 0]
    for labels in (["edema", "edema|mass"], ["edema", "mass"], ["edema|mass"] * 2):
        images = open_images(csv(tmp_path, labels), label_is="node", classes=(*NAMES, "node"))
        assert (images.labels.tolist(), images.class_names) == ([0, 0], ("not node", "node"))


@pytest.mark.parametrize(
    ("write", "labels", "options", "rule"),
    [
        (csv, ["edema", "mass|tube"], {"label_is": "node"}, r"of .*node'\), got 'tube' in row 1"),
        (csv, ["{'a': 1}", "{'a': 0}"], {}, r"must be a name \(or a column for each finding\)"),
        (csv, ["", ""], {"label_is": "cat"}, "be left out for t, which has no labels"),
        (shard, [[1, 0.5], [0, 1]], {"label_is": "1"}, ODD),
        (shard, [[1, 0, 1], [0, 1]], {"label_is": "1"}, ODD),
        (shard, [["a", None], ["b"]], {"label_is": "1"}, ODD),
        (archive, FLAGS, {"label_is": "mass", "classes": (*NAMES, "x")}, "of 3 classes, got 2"),
        (archive, [[0, 1], [0.5, 0.5]], {"label_is": "1"}, r"class, got \[0.5 0.5\] in row 1"),
        *((write, ["Normal", "normal"], {}, TWINS) for write in (csv, parquet, shard, archive)),
        (csv, ["0", "0.0", "7"], {}, f"{NUMBER} '0' in row 0 .* and '0.0'"),
        (csv, ["1", "01", "7"], {}, f"{NUMBER} '01' in row 1 .* and '1'"),
        (csv, ["0", "1", "-1"], {}, r"where -1 is none, got -1 in row 2 \(2\.png\): leave"),
        *(
            (write, ["a", word], {}, rf"must be a name \(or be declared .* got '{word}' in row 1")
            for word in ("NA", "n/a", "NULL", "<NA>", "#N/A", "#REF!")
            for write in (csv, shard)
        ),
        (csv, ["a", "NaN"], {"ignore_case": True}, f"{NO_NAME}, got 'NaN' in row 1"),
        (csv, ["", ""], {"findings": True}, "must be given, got none in 2 rows"),
    ],
)
def test_labels_that_are_refused(tmp_path, write, labels, options, rule) -> None:
    source = write(tmp_path, labels)
    if "node" in options.values():
        options = options | {"classes": (*NAMES, "node")}
    with pytest.raises(ValueError, match=rule):
        open_images(source, **options)
    if not options and "column for each" not in rule:  # they may mean what they say
        declared = open_images(source, classes=tuple(labels))
        assert declared.labels.tolist() == list(range(len(labels)))


def test_one_column_a_finding(tmp_path: Path, capsys) -> None:
    csv(tmp_path, FLAGS)
    rule, source = "several findings a picture: columns Mass, edema", table(tmp_path, TABLE)
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    images = open_images(source, label_is="mass")
    assert (images.labels.tolist(), images.class_names) == (HAS_MASS, PAIR)
    assert not open_images(source, columns="label=").labelled
    table(tmp_path, TABLE.replace("1.png,1,1", "1.png,1,-1"))
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    with pytest.raises(ValueError, match=r"0 or 1 in every row, got -1 in row 1 \(1\.png\)"):
        open_images(source, label_is="mass")
    assert not open_images(csv(tmp_path, [1, 0, 1], header="edema")).labelled
    said = capsys.readouterr().err
    assert "no labels: rows for public use or prediction only, none in columns edema" in said
    table(tmp_path, "path,label,mass\n0.png,mass|edema,0\n1.png,edema,1\n")
    with pytest.raises(ValueError, match=r"columns must give label= .* --label-is mass may be"):
        open_images(source, label_is="mass")
    for column, labels in (("mass", [0, 1]), ("label", [1, 0])):
        found = open_images(source, label_is="mass", columns=f"label={column}")
        assert found.labels.tolist() == labels
    flags = {"edema": [1, 1, 0, 0], "Mass": [False, True, False, True], "age": [40, 41, 42, 43]}
    source = parquet(tmp_path, image=[b""] * 4, **flags)
    with pytest.raises(ValueError, match=rule):
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
        put(tmp_path / "folder" / name / "0.png")
    folder = open_images(str(tmp_path / "folder"), label_is="cat", classes=("cat", "dog"))
    assert folder.labels.tolist() == [1, 0]


@pytest.mark.parametrize("write", [csv, parquet, shard, archive])
def test_one_class_has_one_spelling_and_its_case_may_be_ignored(tmp_path, write) -> None:
    for one, other in (("\u00fcber", "u\u0308ber"), ("cat", "cat\u00a0"), ("\ufeffcat", "cat")):
        images = open_images(write(tmp_path, [one, other, "owl"]))
        assert len(images.class_names) == 2
        assert images.labels[0] == images.labels[1] != images.labels[2]
    source = write(tmp_path, ["Normal", "normal", "Normal"])
    assert open_images(source, classes=("normal", "Normal")).labels.tolist() == [1, 0, 1]
    assert open_images(source, ignore_case=True).class_names == ("Normal",)
    pipes = write(tmp_path, ["Mass|edema", "mass", "edema"])
    with pytest.raises(ValueError, match="must differ in more than case"):
        open_images(pipes, label_is="mass")
    joined = open_images(pipes, label_is="mass", ignore_case=True)
    assert joined.labels.tolist() == [1, 1, 0]


def test_a_class_that_only_counting_makes_is_said(tmp_path: Path, capsys) -> None:
    assert open_images(csv(tmp_path, [1, 3])).class_names == ("0", "1", "2", "3")
    assert "label has numbers from 0: classes 0, 2 have no rows" in capsys.readouterr().err
    open_images(csv(tmp_path, [1, 3]), classes=("1", "3"))
    assert open_images(csv(tmp_path, ["0.0", "1.0"])).class_names == ("0.0", "1.0")
    assert capsys.readouterr().err == ""


def test_minus_one_is_no_label(tmp_path: Path, capsys) -> None:
    source = csv(tmp_path, ["-1", "-1", "-1", "-1"])
    assert not open_images(source).labelled
    capsys.readouterr()
    rows = "path,label,split\n0.png,0,train\n1.png,1,train\n2.png,-1,Test\n"
    images = open_images(table(tmp_path, rows))
    assert (images.labels.tolist(), images.split.tolist()) == ([0, 1], [0, 0])
    assert "test has no labels: 1 left out (--splits test reads it" in capsys.readouterr().err
    assert not open_images(source, splits=["test"]).labelled
    table(tmp_path, rows + "3.png,1,test\n")
    with pytest.raises(ValueError, match="got -1 in row 2"):
        open_images(source)
    assert len(open_images(source, splits=["train"])) == 2


WIDE = (
    "Path,Sex,No Finding,Mass,Edema\n"
    "0.png,F,,0.0,1\n1.png,M,,1,1.0\n2.png,F,1,-1,\n3.png,F,,1,nan\n"
)


def test_rows_or_columns_of_a_table_are_findings(tmp_path: Path, capsys) -> None:
    csv(tmp_path, [""] * 4)
    for text in (LONG, LONG_VALUES):
        images = open_images(table(tmp_path, text), **ASKED)
        assert (matrix(images), len(images)) == (FLAGS, 4)
    capsys.readouterr()
    for unknown, value in ((None, 0), ("negative", 0), ("positive", 1), ("ask", -1)):
        images = open_images(table(tmp_path, WIDE), unknown=unknown, **ASKED)
        assert matrix(images) == [[1, 0], [1, 1], [value, value], [value, 1]]
        assert "unknown: edema 2, mass 1, of 4 rows each" in capsys.readouterr().err
    found = open_images(table(tmp_path, WIDE), findings=True)
    assert (found.class_names, found.inferred) == (("Edema", "Mass"), True)
    assert "findings are columns Edema, Mass; not read: Sex" in capsys.readouterr().err
    one_each = open_images(csv(tmp_path, ["mass", "edema", "mass", "edema"]), findings=True)
    assert matrix(one_each) == [[0, 1], [1, 0], [0, 1], [1, 0]]


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
    ],
)
def test_malformed_findings_are_one_line(tmp_path: Path, text: str, rule: str) -> None:
    csv(tmp_path, [""] * 4)
    with pytest.raises(ValueError, match=rule) as refused:
        open_images(table(tmp_path, text), **ASKED)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["Entzündung", "Å", "가", "naïve", "Ω"])
def test_either_form_of_a_word_is_one_name(word: str) -> None:
    for form in ("NFC", "NFD"):
        spelled = unicodedata.normalize(form, word)
        for around in ("", " ", "\u00a0", "\u3000", "\ufeff", "\u200b \u2069", "\r\n"):
            name = canonical_name(around + spelled + around)
            assert name == unicodedata.normalize("NFC", word)
    assert canonical_name("a  b") == "a  b"  # what is inside is left
    assert canonical_name("caf\udce9") == "caf\udce9"  # bytes that are no UTF-8
    assert canonical_name(" \u00a0") == ""


def test_words_for_splits_and_for_what_systems_leave() -> None:
    for split, words in {
        "train": ("train", "Training", "TRAIN "),
        "test": ("Test", "testing"),
        "val": ("val", "Valid", "validation", "DEV"),
        "evaluation": ("Evaluation",),
        None: ("car", "trains", "", "test2"),
    }.items():
        assert {reading.split_named(word) for word in words} == {split}
    assert reading.Reading(splits=("Valid", "training")).splits == ("val", "train")
    left = ("__MACOSX", "@eaDir", ".DS_Store", "._1.png", "Lost+Found", "$Recycle.Bin", "@Recycle")
    for name in (*left, "System Volume Information", ".ipynb_checkpoints", "#recycle"):
        assert left_by_systems(name)
    for name in ("cat", "recycled", "_other", "@home", "lost"):
        assert not left_by_systems(name)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"splits": ("unsupervised",)}, r"splits must be of .*, got \['unsupervised'\]"),
        ({"classes": ("\u00fcber", "u\u0308ber")}, "classes must be distinct, got"),
        ({"label_is": " "}, "label_is must be the name of a label, got an empty one"),
        ({"label_is": "a", "findings": True}, "label_is must be left out with findings"),
        ({"unknown": "ask"}, "unknown must be left out without findings"),
        ({"unknown": "perhaps", "findings": True}, "unknown must be one of"),
        *(({"bits": n}, rf"bits must be in \[8, 16\], got {n}") for n in (7, 17, 0)),
        *(
            ({"encoding": name}, f"encoding must be one that Python knows, got '{name}'")
            for name in ("klingon", "base64", "rot13")
        ),
        *(
            ({"columns": words}, COLUMNS)
            for words in ("file", "file=path", "path=a,path=b", "lable=x,path=a", ",")
        ),
        ({"encoding": "utf-8"}, "encoding must be left out for .*, which is no csv file"),
    ],
)
def test_options_that_cannot_be(tmp_path, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        open_images(str(tmp_path), **options)
    assert reading.named_columns("label=,user=") == {"label": "", "user": ""}


def test_names_that_differ_only_in_case_or_width(capsys) -> None:
    assert case_twins(["b", "a", "B", "c"]) == [("B", "b")]
    assert case_twins(["Straße", "STRASSE", "ﬁn", "fin"]) == [("STRASSE", "Straße"), ("fin", "ﬁn")]
    assert case_twins(["a b", "a\u00a0b", "ab"]) == [("a b", "a\u00a0b")]
    assert case_twins(["ab", "a\u200bb", "ba"]) == [("ab", "a\u200bb")]
    warn_of_case_twins("it", ("u1", "u2"))
    assert not capsys.readouterr().err
    warn_of_case_twins("it", ("u1", "U1", "v", "V"))
    assert "differ only in case: 'U1' and 'u1', and 1 groups more" in capsys.readouterr().err
