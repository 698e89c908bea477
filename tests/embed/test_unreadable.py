"""Damaged pictures among good ones: the run stops and names them, or skips and counts them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet
from pretrain.sources import open_images
from tests.embed.conftest import embed

ROOT = Path(__file__).parents[2]
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


def run(table: str, encoder: Any, out: Path, **options: Any) -> EmbeddingSet | None:
    images = open_images(table, classes=("x", "y"), max_pixels=1 << 17)
    defaults: dict[str, Any] = {"batch_size": 3, "shard_rows": 7, "skip_unreadable": True}
    return embed(images, encoder, out, **defaults | options)


def check(done: EmbeddingSet | None, out: Path) -> None:
    assert done is not None
    kept = [row for row in range(40) if row not in DAMAGED]
    assert done.embeddings[:, 0].tolist() == kept
    assert done.labels.tolist() == [row % 2 for row in kept]
    assert done.users is not None
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


def test_without_being_asked_nothing_is_skipped(table: str, tmp_path: Path, row_numbers) -> None:
    with pytest.raises(ValueError, match=r"p/0\.png must be a readable image, got 10 bytes of no"):
        run(table, row_numbers, tmp_path / "out", skip_unreadable=False)
    assert not list(tmp_path.glob("out*"))


def test_rows_labels_users_and_names_stay_together(table: str, tmp_path: Path, row_numbers) -> None:
    done = run(table, row_numbers, tmp_path / "out")
    check(done, tmp_path / "out")
    seen = len(row_numbers.seen)
    check(run(table, row_numbers, tmp_path / "out"), tmp_path / "out")  # not done again
    assert len(row_numbers.seen) == seen


def test_shares_of_several_processes(table: str, tmp_path: Path, row_numbers) -> None:
    assert run(table, row_numbers, tmp_path / "out", shard="1/2") is None
    check(run(table, row_numbers, tmp_path / "out", shard="0/2"), tmp_path / "out")


def test_a_run_that_stopped_at_one_goes_on_without_it(
    table: str, tmp_path: Path, row_numbers
) -> None:
    for row in (0, 39):
        Image.new("RGB", (8, 8)).save(tmp_path / "p" / f"{row}.png")
    with pytest.raises(ValueError, match=r"p/6\.png must be a readable image"):
        run(table, row_numbers, tmp_path / "out", skip_unreadable=False, shard_rows=3)
    finished = list((tmp_path / "out.partial" / "finished").iterdir())
    assert len(finished) == 2
    row_numbers.seen.clear()
    done = run(table, row_numbers, tmp_path / "out", shard_rows=3)
    assert done is not None
    assert done.meta["unreadable"] == 3
    assert 5 not in row_numbers.seen  # what was finished is not computed again


def test_what_was_skipped_is_not_forgotten(table: str, tmp_path: Path, row_numbers) -> None:
    run(table, row_numbers, tmp_path / "out", shard="0/2")
    for row in (0, 39):
        Image.new("RGB", (8, 8)).save(tmp_path / "p" / f"{row}.png")
    with pytest.raises(ValueError, match="same extraction"):
        run(table, row_numbers, tmp_path / "out", skip_unreadable=False)
    meta = tmp_path / "out.partial" / "meta.json"
    held = json.loads(meta.read_text())
    images = open_images(table, classes=("x", "y"))
    from embed.extract import _data_hash, _ends

    held["data_hash"] = _data_hash(images, _ends(images, skip=False))
    meta.write_text(json.dumps(held))
    with pytest.raises(ValueError, match="--skip-unreadable passed, where 3 unreadable images"):
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
def test_interruptions_change_nothing(
    table: str, tmp_path: Path, row_numbers, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


CHILD = """
import sys
from pathlib import Path
from tests.embed.conftest import Slow
from tests.embed.test_unreadable import run
run(sys.argv[1], Slow(), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_kills_change_nothing(table: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, table, str(out)]
    child = subprocess.Popen(command, cwd=ROOT)
    finished = tmp_path / "out.partial" / "finished"
    while child.poll() is None and len(list(finished.glob("*"))) < 3:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 0 < len(list(finished.glob("00*"))) < 6
    subprocess.run(command, cwd=ROOT, check=True)
    check(EmbeddingSet.open(out), out)
