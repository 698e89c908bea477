"""One spelling for what is one thing; twins that nobody can tell apart are refused."""

import unicodedata
from typing import Any

import pytest

from pretrain.intake.reading import (
    Reading,
    canonical_name,
    case_twins,
    left_by_systems,
    named_columns,
    split_named,
    warn_of_case_twins,
)
from pretrain.sources import open_images

COLUMNS = "columns must be such as path=file,label=finding"


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
        assert {split_named(word) for word in words} == {split}
    assert Reading(splits=("Valid", "training")).splits == ("val", "train")
    for name in ("__MACOSX", "@eaDir", ".DS_Store", "._1.png", "Lost+Found", "$Recycle.Bin"):
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
    assert named_columns("label=,user=") == {"label": "", "user": ""}


def test_users_that_differ_only_in_case_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert case_twins(["b", "a", "B", "c"]) == [("B", "b")]
    assert case_twins(["Straße", "STRASSE", "ﬁn", "fin"]) == [("STRASSE", "Straße"), ("fin", "ﬁn")]
    assert case_twins(["a b", "a\u00a0b", "ab"]) == [("a b", "a\u00a0b")]
    assert case_twins(["ab", "a\u200bb", "ba"]) == [("ab", "a\u200bb")]
    warn_of_case_twins("it", ("u1", "u2"))
    assert not capsys.readouterr().err
    warn_of_case_twins("it", ("u1", "U1", "v", "V"))
    rule = "warning: it has users whose names differ only in case: 'U1' and 'u1', and 1 groups more"
    assert rule in capsys.readouterr().err
