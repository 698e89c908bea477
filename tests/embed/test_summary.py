"""What a run says at its end; damaged pictures stop it, or are skipped, and nobody vanishes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embed.encoding import Encoding
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


def said(capsys: pytest.CaptureFixture[str], data: Path, checkpoint: Path, **options) -> str:
    options = {"layout": "user-class", "resize": 8, "encoder": str(checkpoint)} | options
    Run(data=str(data), out=data.parent / "out", overwrite=True, **options).run()
    captured = capsys.readouterr()
    return captured.err + captured.out


def test_a_run_says_what_it_embedded_and_what_it_skipped(
    capsys, tmp_path, clinics, checkpoint
) -> None:
    for name in ("1.png", "9.jpg"):
        (clinics / "anna" / "dog" / name).write_bytes(b"damaged")
    options = {"class_names": ("owl", "cat", "dog"), "skip_unreadable": True}
    words = said(capsys, clinics, checkpoint, **options)
    for line in (
        "rows       11: 11 train",
        "classes    3, of 0 (owl) to 6 (cat) rows, median 5",
        "users      3, of 2 (eve) to 6 (anna) rows, median 3",
        "pictures   8 x 8 to 11 x 11, RGB; embedded as 8 x 8",
        "skipped    3 .txt: no picture by its suffix",
        "skipped    1 .db: no picture by its suffix",
        "skipped    1 .png: hidden, or left by a system",
        f"skipped    1 .png: unreadable, see {tmp_path}/out/unreadable.txt",
        f"skipped    1 .jpg: unreadable, see {tmp_path}/out/unreadable.txt",
    ):
        assert f"{line}\n" in words
    for k, split in enumerate(("train", "train", "valid", "Test", "evaluation")):
        draw(tmp_path / "set" / split / "cat" / f"{k}.png")
    words = said(capsys, tmp_path / "set", checkpoint, layout="auto")
    assert "rows       5: 2 train, 1 test, 2 evaluation\n" in words
    assert "classes    1, of 5 rows each\n" in words
    assert "users" not in words
    for k in range(2):
        draw(tmp_path / "flat" / f"{k}.png", wide=k << 16)
    words = said(capsys, tmp_path / "flat", checkpoint, layout="flat")
    assert "classes    no labels: rows for public use or prediction only\n" in words
    assert "pictures   8 x 8, 16-bit grey, RGB; embedded" in words


@pytest.mark.parametrize("what", ["user", "class"])
def test_nobody_vanishes(capsys, clinics, checkpoint, what: str) -> None:
    lost = [*(clinics / "ben").rglob("*.png")] if what == "user" else [*clinics.rglob("dog/*.png")]
    for file in lost:
        file.write_bytes(b"damaged")
    name = {"user": "ben", "class": "dog"}[what]
    rule = rf"every {what} must keep an image .* got {len(lost)} of {what} {name} and none readable"
    with pytest.raises(ValueError, match=rule):
        said(capsys, clinics, checkpoint, skip_unreadable=True)
    assert not (clinics.parent / "out").exists()


def test_a_user_of_another_format_is_missed_at_once(clinics, row_numbers, monkeypatch) -> None:
    monkeypatch.setattr(files, "EXTRAS", {"HEIC": "no_such_module", "DICOM": "nor_this"})
    for file in (clinics / "ben").rglob("*.png"):
        file.rename(file.with_suffix(".HEIC"))
    images = open_images(str(clinics), layout="user-class", resize=8, skip_unreadable=True)
    with pytest.raises(ValueError, match=r"3 of user ben and none readable; unreadable: \.heic"):
        embed(images, row_numbers, clinics / "out", skip_unreadable=True)
    assert not row_numbers.seen


@pytest.mark.parametrize("pictures", ["d" * 10, "dddbdddddd", "dddddddddb", "8ddddddd8"])
def test_a_dark_set_is_refused_before_it_is_embedded(tmp_path, row_numbers, pictures: str) -> None:
    """Or at its end, where its first and last pictures have 8 bits; but not with a bright one."""
    for k, kind in enumerate(pictures):
        wide = {"d": 4096, "b": 65536, "8": 0}[kind]
        draw(tmp_path / "set" / "cat" / f"{k}.png", wide=wide)
    images, out = open_images(str(tmp_path / "set")), tmp_path / "out"
    if "b" in pictures:
        embed(images, row_numbers, out)
        return
    with pytest.raises(ValueError, match=r"must use 1/16 of their range \(or pass --bits 12"):
        embed(images, row_numbers, out)
    assert not out.exists()
    if "8" not in pictures:
        assert not list(tmp_path.glob("out*"))
        made = embed(open_images(str(tmp_path / "set"), bits=12), row_numbers, out).encoding
        assert made is not None
        assert (made.bits, Encoding.from_json(made.to_json())) == (12, made)


DAMAGED = (0, 6, 7, 20, 39)  # the first and the last among them


@pytest.fixture
def table(tmp_path: Path) -> str:
    """40 pictures whose first pixel is their row; five are damaged in different ways."""
    lines = ["path,label,user,split"]
    (tmp_path / "p").mkdir()
    for row in range(40):
        path = tmp_path / "p" / f"{row}.png"
        pixels = np.full((8, 8, 3), 100, np.uint8)
        pixels[0, 0] = row
        Image.fromarray(pixels).save(path)
        lines.append(f"p/{row}.png,{'xy'[row % 2]},u{row // 4},{'test' if row > 31 else 'train'}")
    (tmp_path / "p" / "0.png").write_bytes(b"no picture")
    (tmp_path / "p" / "6.png").write_bytes((tmp_path / "p" / "5.png").read_bytes()[:50])
    (tmp_path / "p" / "7.png").write_bytes(b"")
    (tmp_path / "p" / "20.png").unlink()
    Image.new("1", (1 << 9, 1 << 9)).save(tmp_path / "p" / "39.png")  # above max_pixels
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{tmp_path}/t.csv"


def run(table: str, encoder: Any, out: Path, **options: Any) -> Any:
    images = open_images(table, classes=("x", "y"), max_pixels=1 << 17)
    defaults: dict[str, Any] = {"batch_size": 3, "shard_rows": 7, "skip_unreadable": True}
    return embed(images, encoder, out, **defaults | options)


def check(done: Any, out: Path) -> None:
    kept = [row for row in range(40) if row not in DAMAGED]
    assert done.embeddings[:, 0].tolist() == kept
    assert done.labels.tolist() == [row % 2 for row in kept]
    names = [done.meta["user_names"][user] for user in done.users]
    assert names == [f"u{row // 4}" for row in kept]
    assert done.split.tolist() == [int(row > 31) for row in kept]
    assert [done.name(k) for k in range(35)] == [f"p/{row}.png" for row in kept]
    assert (done.meta["rows"], done.meta["unreadable"]) == (35, 5)
    lines = (out / "unreadable.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == [f"p/{row}.png" for row in DAMAGED]
    assert "No such file" in lines[3]
    assert "max_pixels = 131072 pixels, got 512 x 512" in lines[4]
    assert done.content_hash() == done.subset(slice(None)).content_hash()


@pytest.mark.parametrize("shares", [("0/1",), ("1/2", "0/2")])
def test_rows_labels_users_and_names_stay_together(table, tmp_path, row_numbers, shares) -> None:
    done = [run(table, row_numbers, tmp_path / "out", shard=share) for share in shares]
    assert done[:-1] == [None] * (len(shares) - 1)
    check(done[-1], tmp_path / "out")
    seen = len(row_numbers.seen)
    check(run(table, row_numbers, tmp_path / "out"), tmp_path / "out")  # not done again
    assert len(row_numbers.seen) == seen


def test_a_run_that_stopped_at_one_goes_on_without_it(table, tmp_path, row_numbers) -> None:
    for row in (0, 39):
        Image.new("RGB", (8, 8)).save(tmp_path / "p" / f"{row}.png")
    with pytest.raises(ValueError, match=r"p/6\.png must be a readable image"):
        run(table, row_numbers, tmp_path / "out", skip_unreadable=False, shard_rows=3)
    assert len(list((tmp_path / "out.partial" / "finished").iterdir())) == 2
    row_numbers.seen.clear()
    done = run(table, row_numbers, tmp_path / "out", shard_rows=3)
    assert done.meta["unreadable"] == 3
    assert 5 not in row_numbers.seen  # what was finished is not computed again


def test_what_was_skipped_is_not_forgotten(table: str, tmp_path: Path, row_numbers) -> None:
    for row in (0, 39):  # of which a hash is taken
        Image.new("RGB", (8, 8)).save(tmp_path / "p" / f"{row}.png")
    run(table, row_numbers, tmp_path / "out", shard="0/2")
    with pytest.raises(ValueError, match="--skip-unreadable passed, where 2 unreadable images"):
        run(table, row_numbers, tmp_path / "out", skip_unreadable=False)


def test_nothing_readable_at_all(tmp_path: Path, row_numbers) -> None:
    (tmp_path / "t.csv").write_text("path\na.png\nb.png\n")
    rule = r"t must hold a readable image, got none; the first: .*a\.png must be a readable image"
    with pytest.raises(ValueError, match=rule):
        run(f"csv:{tmp_path}/t.csv", row_numbers, tmp_path / "out")


def test_another_size_is_no_damage(table: str, tmp_path: Path, row_numbers) -> None:
    Image.new("RGB", (9, 8)).save(tmp_path / "p" / "8.png")
    rule = r"one size, got \(8, 9\) at row 8|images must have shape .* in rows 8 to 8, .*p/8\.png"
    with pytest.raises(ValueError, match=rule):
        run(table, row_numbers, tmp_path / "out")


@pytest.mark.parametrize("stop", [1, 4, 9, 13])
def test_interruptions_change_nothing(table, tmp_path, row_numbers, stop, monkeypatch) -> None:
    forward, calls = row_numbers.forward, []

    def interrupted(images):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return forward(images)

    monkeypatch.setattr(row_numbers, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(table, row_numbers, tmp_path / "out")
    check(run(table, row_numbers, tmp_path / "out"), tmp_path / "out")
