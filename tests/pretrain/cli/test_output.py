"""A result appears whole, in a place that was good before the work began."""

import os
from pathlib import Path

import pytest

from pretrain.cli.output import new_directory, reserved


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    worked = False
    with pytest.raises(OSError), new_directory(tmp_path / "file" / "out"):  # noqa: PT011
        worked = True
    assert not worked


def test_what_somebody_else_made_meanwhile_is_kept_and_so_is_the_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    kept = tmp_path / f"out.{os.getpid()}"

    def work() -> None:
        with new_directory(out) as partial:
            (partial / "model").write_text("mine")
            out.mkdir()
            (out / "other").write_text("theirs")

    with pytest.raises(FileExistsError, match=f"the result is in {kept}"):
        work()
    assert (out / "other").read_text() == "theirs"
    assert (kept / "model").read_text() == "mine"


def test_space_is_held_during_the_work_and_free_after_it(tmp_path: Path) -> None:
    with reserved(tmp_path, 1 << 20):
        (held,) = tmp_path.iterdir()
        assert held.stat().st_size == 1 << 20
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_found_before_the_work(tmp_path: Path) -> None:
    worked = False
    with pytest.raises(OSError), reserved(tmp_path, 1 << 60):  # noqa: PT011
        worked = True
    assert not worked
    assert not list(tmp_path.iterdir())
