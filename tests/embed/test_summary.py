"""What `embed run` says at its end, and whom it does not let vanish."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed.run import Run
from pretrain.intake import files
from pretrain.sources import open_images
from tests.embed.conftest import embed

RNG = np.random.default_rng(4)


def draw(place: Path, side: int = 8, *, wide: int = 0) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if wide:
        Image.fromarray(RNG.integers(0, wide, (side, side)).astype(np.uint16)).save(place)
    else:
        Image.fromarray(RNG.integers(0, 256, (side, side, 3), np.uint8)).save(place)


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """Three users; anna has most, and files that are no pictures."""
    for user, cats, dogs in (("anna", 4, 3), ("ben", 1, 2), ("eve", 1, 1)):
        for name, count in (("cat", cats), ("dog", dogs)):
            for k in range(count):
                draw(tmp_path / "clinics" / user / name / f"{k}.png", 8 + k)
    for name in ("a.txt", "b.txt", "c.TXT", "Thumbs.db", ".x.png"):
        (tmp_path / "clinics" / "anna" / "cat" / name).write_bytes(b"?")
    return tmp_path / "clinics"


def said(capsys: pytest.CaptureFixture[str], clinics: Path, checkpoint: Path, **options) -> str:
    out = clinics.parent / "out"
    options = {"layout": "user-class", "resize": 8, "encoder": str(checkpoint)} | options
    Run(data=str(clinics), out=out, overwrite=True, **options).run()
    return capsys.readouterr().out


def test_rows_classes_users_and_what_was_skipped(capsys, clinics, checkpoint) -> None:
    words = said(capsys, clinics, checkpoint)
    assert "rows       12: 12 train\n" in words
    assert "classes    2, of 6 rows each\n" in words
    assert "users      3, of 2 (eve) to 7 (anna) rows, median 3\n" in words
    assert "pictures   8 x 8 to 11 x 11, RGB; embedded as 8 x 8\n" in words
    assert "skipped    3 .txt: no picture by its suffix\n" in words
    assert "skipped    1 .db: no picture by its suffix\n" in words
    assert "skipped    1 .png: hidden, or left by a system\n" in words


def test_declared_classes_that_nobody_has_are_counted(capsys, clinics, checkpoint) -> None:
    words = said(capsys, clinics, checkpoint, class_names=("owl", "cat", "dog"))
    assert "classes    3, of 0 (owl) to 6 (cat) rows, median 6\n" in words


def test_splits_are_counted_by_one_name(capsys, tmp_path, checkpoint) -> None:
    for split, count in (("train", 3), ("valid", 2), ("Test", 1), ("evaluation", 1)):
        for k in range(count):
            draw(tmp_path / "set" / split / "cat" / f"{k}.png")
    words = said(capsys, tmp_path / "set", checkpoint, layout="auto")
    assert "rows       7: 3 train, 1 test, 3 evaluation\n" in words
    assert "users" not in words


def test_pictures_without_labels(capsys, tmp_path, checkpoint) -> None:
    draw(tmp_path / "set" / "1.png")
    draw(tmp_path / "set" / "2.png", wide=1 << 16)
    words = said(capsys, tmp_path / "set", checkpoint, layout="flat")
    assert "classes    no labels: rows for public use or prediction only\n" in words
    assert "pictures   8 x 8, 16-bit grey, RGB; embedded" in words


def test_users_that_differ_only_in_case_are_named(capsys, clinics, checkpoint) -> None:
    (clinics / "eve").rename(clinics / "Anna")
    out = clinics.parent / "out"
    Run(data=str(clinics), layout="user-class", resize=8, encoder=str(checkpoint), out=out).run()
    assert "differ only in case: 'Anna' and 'anna'; each" in capsys.readouterr().err


def test_unreadable_pictures_are_counted_by_suffix(capsys, clinics, checkpoint) -> None:
    (clinics / "anna" / "dog" / "1.png").write_bytes(b"damaged")
    (clinics / "anna" / "dog" / "9.jpg").write_bytes(b"")
    words = said(capsys, clinics, checkpoint, skip_unreadable=True)
    reasons = clinics.parent / "out" / "unreadable.txt"
    assert f"skipped    1 .png: unreadable, see {reasons}\n" in words
    assert f"skipped    1 .jpg: unreadable, see {reasons}\n" in words
    assert "users      3, of 2 (eve) to 6 (anna) rows" in words


@pytest.mark.parametrize("what", ["user", "class"])
def test_nobody_vanishes(clinics, checkpoint, what: str) -> None:
    lost = [*(clinics / "ben").rglob("*.png")] if what == "user" else [*clinics.rglob("dog/*.png")]
    for file in lost:
        file.write_bytes(b"damaged")
    name = {"user": "ben", "class": "dog"}[what]
    rule = rf"every {what} must keep an image .* got {len(lost)} of {what} {name} and none readable"
    options = {"layout": "user-class", "resize": 8, "encoder": str(checkpoint)}
    with pytest.raises(ValueError, match=rule):
        Run(data=str(clinics), out=clinics / "out", skip_unreadable=True, **options).run()
    assert not (clinics / "out").exists()


def test_a_user_of_another_format_is_missed_at_once(
    clinics, row_numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "EXTRAS", {"HEIC": "no_such_module", "DICOM": "nor_this"})
    for file in (clinics / "ben").rglob("*.png"):
        file.rename(file.with_suffix(".HEIC"))
    images = open_images(str(clinics), layout="user-class", resize=8, skip_unreadable=True)
    with pytest.raises(ValueError, match=r"3 of user ben and none readable; unreadable: \.heic"):
        embed(images, row_numbers, clinics / "out", skip_unreadable=True)
    assert not row_numbers.seen


@pytest.mark.parametrize("bright", [None, 3, 9])
def test_a_dark_set_is_refused_before_it_is_embedded(
    tmp_path: Path, row_numbers, bright: int | None
) -> None:
    for k in range(10):
        draw(tmp_path / "set" / "cat" / f"{k}.png", wide=4096 if k != bright else 65536)
    images = open_images(str(tmp_path / "set"))
    if bright is not None:
        embed(images, row_numbers, tmp_path / "out")
        return
    with pytest.raises(ValueError, match=r"must use 1/16 of their range \(or pass --bits 12"):
        embed(images, row_numbers, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    declared = open_images(str(tmp_path / "set"), bits=12)
    embed(declared, row_numbers, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "meta.json").read_text())["bits"] == 12


def test_dark_pictures_among_others_are_found_at_the_end(tmp_path: Path, row_numbers) -> None:
    for k in range(9):  # the first and the last have 8 bits
        draw(tmp_path / "set" / "cat" / f"{k}.png", wide=0 if k in (0, 8) else 4096)
    with pytest.raises(ValueError, match="must use 1/16 of their range"):
        embed(open_images(str(tmp_path / "set")), row_numbers, tmp_path / "out")
    assert not (tmp_path / "out").exists()
