"""Extractions: shares, failures, kills at any moment, and the options of the command."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from embed import EmbeddingSet
from embed.engines import ENGINES, refusal
from embed.run import Run
from pretrain import build_encoder
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from pretrain.probe import embed_all
from pretrain.sources import open_images
from tests.benchmarks.run_by import RunBy
from tests.embed import conftest
from tests.embed.conftest import rows_in

embed = partial(conftest.embed, batch_size=4, shard_rows=10)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture
def command(tmp_path: Path, archive: Path, checkpoint: Path) -> Callable[..., EmbeddingSet]:
    def run(name: str = "out", **options: Any) -> EmbeddingSet:
        defaults = {"data": str(archive), "encoder": str(checkpoint), "out": tmp_path / name}
        Run(**defaults | options).run()
        return EmbeddingSet.open(tmp_path / name)

    return run


def test_the_command_embeds_what_the_encoder_gives(command, tmp_path, archive, checkpoint) -> None:
    opened, images = command(), open_npz(archive)
    pixels = torch.from_numpy(images.images(slice(None)))
    expected = embed_all(build_encoder(str(checkpoint)), pixels).numpy()
    assert np.allclose(opened.embeddings, expected, atol=1e-5)
    for name in ("labels", "split", "users"):
        assert np.array_equal(getattr(opened, name), getattr(images, name))
    assert opened.meta["class_names"] == ["0", "1", "2"]
    assert not (tmp_path / "out.partial").exists()


def test_options_of_the_command(command, checkpoint) -> None:
    prepared = f"{checkpoint}@12,invert"
    opened = command(encoder=prepared, dtype="float16", splits=("test",), batch_size=7)
    assert opened.embeddings.dtype == np.float16
    assert opened.split.tolist() == [1] * 20
    assert (opened.meta["encoder"], opened.meta["batch_size"]) == (checkpoint.name, 7)
    assert opened.encoding.preprocess == Preprocess(image_size=12, invert=True, pictures=8)
    counted = command(overwrite=True)
    assert (len(counted), counted.declared_classes) == (100, ())
    assert command("five", num_classes=5).declared_classes == tuple("01234")
    assert command("named", class_names=("a", "b", "c")).declared_classes == ("a", "b", "c")


def test_all_rows_are_one_owners(command, capsys) -> None:
    """Whoever is in the pictures; the owner's own test images are no other user's."""
    opened = command(one_user=True)
    assert not np.asarray(opened.users).any()
    assert (opened.split == 1).sum() == 20
    assert "users      all rows are one owner's, as --one-user says\n" in capsys.readouterr().out
    drawn = command("drawn", one_user=True, splits=("train",), test_share="image:0.2")
    assert (drawn.split == 1).sum() == 16


def test_the_command_divides_records_or_users(command) -> None:
    images, users, same = (
        command(str(share), splits=("train",), test_share=share).split
        for share in ("image:0.2", "user:0.2", 0.2)
    )
    assert (images == 1).sum() == users.sum() == 16
    assert np.array_equal(users, same)


TRAIN = {"splits": ("train",)}
SUCH = r"a share such as 0\.2, user:0\.2 or image:0\.2, got"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"test_share": "image:0.2"}, "test_share must be left out for images"),
        (TRAIN | {"test_share": "image:2"}, r"test_share must be in \(0, 1\)"),
        (TRAIN | {"test_share": "image:.001"}, "must take some of 80 images and leave some"),
        *[(TRAIN | {"test_share": share}, SUCH) for share in ("record:0.2", "image:", "a fifth")],
        (TRAIN | {"test_share": 0.2, "one_user": True}, "two or more users to divide, got 1"),
        ({"one_user": True, "columns": "user=ward"}, "user= of columns must be left out with one"),
    ],
)
def test_options_that_are_refused(command, tmp_path, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        command("no", **options)
    assert not list(tmp_path.glob("no*"))


def test_shares_of_several_processes_make_the_same_set(tmp_path, archive, row_numbers) -> None:
    images = open_npz(archive)
    embed(images, row_numbers, tmp_path / "one")
    for index in (2, 0, 1):
        done = embed(images, row_numbers, tmp_path / "three", shard=f"{index}/3")
        assert (done is None) == (index != 1)
    assert row_numbers.seen[:100] == list(range(100))
    assert sorted(row_numbers.seen[100:]) == list(range(100))
    assert files(tmp_path / "one") == files(tmp_path / "three")
    assert len(embed(images, row_numbers, tmp_path / "one")) == 100
    assert len(row_numbers.seen) == 200  # a finished run is not repeated


def test_test_records_are_drawn_once_all_are_embedded(tmp_path, archive, row_numbers) -> None:
    """By the operating system, whichever process is last, and never again for a finished set."""
    images = open_images(str(archive), splits=["train"])
    done = [
        embed(images, row_numbers, tmp_path / "out", shard=f"{index}/3", test_share=0.25)
        for index in (2, 0, 1, 0)
    ]
    assert done[:2] == [None, None]
    drawn = EmbeddingSet.open(tmp_path / "out")
    assert (drawn.split == 1).sum() == 20
    assert np.array_equal(done[3].split, drawn.split)
    assert drawn.embeddings[:, 0].tolist() == list(range(80))
    other = embed(images, row_numbers, tmp_path / "other", test_share=0.25)
    assert not np.array_equal(other.split, drawn.split)
    with pytest.raises(FileExistsError):
        embed(images, row_numbers, tmp_path / "out", test_share=0.5)


def test_another_extraction_in_the_same_place_is_refused(tmp_path, archive, row_numbers) -> None:
    images = open_npz(archive)
    embed(images, row_numbers, tmp_path / "out", shard="0/2")
    with pytest.raises(ValueError, match=r"same extraction .* got another dtype"):
        embed(images, row_numbers, tmp_path / "out", dtype="float16")
    with pytest.raises(ValueError, match="got another data_hash"):
        embed(images.take(np.arange(100)[::-1]), row_numbers, tmp_path / "out")


def test_a_full_disk_keeps_finished_shards(tmp_path, archive, row_numbers, monkeypatch) -> None:
    images, synced = open_npz(archive), []

    def full(*arguments: int) -> None:
        synced.append(arguments)
        if len(synced) in (1, 5):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)  # from the start: nothing is left
    with pytest.raises(OSError, match=r"800 bytes.*No space left"):
        embed(images, row_numbers, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == [archive.name]
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        embed(images, row_numbers, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(finished_of(tmp_path / "out")) == 3
    before = len(row_numbers.seen)
    embed(images, row_numbers, tmp_path / "out")
    assert row_numbers.seen[before:] == list(range(30, 100))
    assert EmbeddingSet.open(tmp_path / "out").embeddings[:, 0].tolist() == list(range(100))


class Refusing(conftest.Mean):
    """Takes so many batches, then fails as a network does that was built for another size."""

    def __init__(self, batches: int = 0, error: type[BaseException] = AssertionError) -> None:
        super().__init__()
        self.batches, self.error = batches, error

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.batches -= bool(rows_in(images))  # generated pictures are looked at first
        if self.batches < 0:
            raise self.error("another size")
        return super().forward(images)


@pytest.mark.parametrize("error", [AssertionError, KeyboardInterrupt])
@pytest.mark.parametrize("batches", [0, 2])  # three batches are a shard
def test_where_nothing_was_finished_nothing_is_left(tmp_path, archive, batches, error) -> None:
    images = open_npz(archive)
    for out in (tmp_path / "out", tmp_path / "a" / "b" / "out"):
        with pytest.raises((ValueError, KeyboardInterrupt), match="another size"):
            embed(images, Refusing(batches, error), out)
        assert list(tmp_path.iterdir()) == [archive]
    for later in (3, batches):  # finished shards of an earlier call are kept
        with pytest.raises((ValueError, KeyboardInterrupt), match="another size"):
            embed(images, Refusing(later, error), tmp_path / "out")
        assert finished_of(tmp_path / "out") == {"000000"}
    embed(images, Refusing(99), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [archive.name, "out"]


@pytest.mark.parametrize("batches", [0, 99])
def test_a_failure_leaves_the_directory_to_others_at_work_in_it(tmp_path, archive, batches) -> None:
    """One share fails while another computes its first batch; the last to fail removes it."""
    out, met = tmp_path / "out", []

    class Meeting(Refusing):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if rows_in(images) and not met:
                with pytest.raises(ValueError, match="another size"):
                    embed(open_npz(archive), Refusing(), out, shard="1/2")
                met.append((tmp_path / "out.partial" / "meta.json").exists())
            return super().forward(images)

    if batches:
        assert embed(open_npz(archive), Meeting(batches), out, shard="0/2") is None
        assert len(finished_of(out)) == 5
    else:
        with pytest.raises(ValueError, match="another size"):
            embed(open_npz(archive), Meeting(), out, shard="0/2")
        assert list(tmp_path.iterdir()) == [archive]
    assert met == [True]


def test_torchrun_shares_by_rank(tmp_path, archive, checkpoint, monkeypatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        RunBy(data=str(archive), encoder=str(checkpoint), out=out, shard_rows=16).run()
        assert out.exists() == (rank == 1)
    for rank in ("2", "one", "-1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=f"RANK/WORLD_SIZE must be i/n .* got {rank}/2"):
            Run(data=str(archive), encoder=str(checkpoint), out=out).run()


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (1e6, "float16")])
def test_embeddings_that_are_not_finite_are_named(tmp_path, archive, row_numbers, value, dtype):
    nn.init.constant_(row_numbers.weight, value)
    words = rf"embeddings must be finite in {dtype}.* row \d, .*images\.npz: row \d of train"
    with pytest.raises(ValueError, match=words):
        embed(open_npz(archive), row_numbers, tmp_path / "out", dtype=dtype)
    assert list(tmp_path.iterdir()) == [archive]


ROOT = Path(__file__).parents[2]

START = """
import sys, time
from pathlib import Path
import torch
from embed.partial import ResumableExtraction
from pretrain import build_encoder
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from tests.embed.conftest import embed
images, out = open_npz(Path(sys.argv[1])), Path(sys.argv[2])
"""
SLOWLY = """
write = ResumableExtraction.write
def slowly(*arguments):
    write(*arguments)
    time.sleep(0.2)

ResumableExtraction.write = slowly
embed(images, build_encoder(sys.argv[3]), out, preprocess=Preprocess(image_size=16), batch_size=3,
      shard_rows=4, engine=sys.argv[4])
"""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", START + program, *map(str, arguments)]


def finished_of(out: Path) -> set[str]:
    """Names of the shards that are marked as finished."""
    marks = out.with_name("out.partial") / "finished"
    return {mark.name for mark in marks.glob("*") if mark.name.isdigit()}


@pytest.mark.parametrize(
    ("engine", "kills"),
    [("torch", 1)] + [pytest.param(name, 5, marks=pytest.mark.slow) for name in ENGINES],
)
def test_kills_change_nothing(tmp_path, archive, checkpoint, engine: str, kills: int) -> None:
    if engine == "openvino" and (why := refusal("auto")):
        pytest.skip(why)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    out, moments, kept = tmp_path / "out", random.Random(1), set[str]()
    for kill in range(kills):
        words = python(SLOWLY, archive, out, checkpoint, engine)
        child = subprocess.Popen(words, cwd=ROOT, env=environment)
        if kill in (1, 2):  # while it imports and converts
            time.sleep(moments.uniform(1.0, 4.0))
        else:
            while child.poll() is None and len(finished_of(out)) <= len(kept):
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert kept <= finished_of(out)
        kept = finished_of(out)
    assert 0 < len(kept) < 25
    whole = tmp_path / "whole"
    for place, named in ((out, "auto"), (whole, engine)):
        words = python(SLOWLY, archive, place, checkpoint, named)
        subprocess.run(words, cwd=ROOT, env=environment, check=True)
    assert files(out) == files(whole)
    assert f'"engine": "{engine}"' in (out / "meta.json").read_text()


MEMORY = """
import resource

class Wide(torch.nn.Linear):
    embedding_dim = 2048
    def forward(self, images):
        return super().forward(images.mean((2, 3)))

embed(images, Wide(3, 2048), out, batch_size=256, shard_rows=1024)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_follow_the_number_of_images(tmp_path: Path) -> None:
    peaks = []
    for rows in (4_000, 40_000):
        path = tmp_path / f"{rows}.npz"
        pixels, labels = np.zeros((rows, 32, 32, 3), np.uint8), np.zeros(rows, np.int64)
        np.savez(path, x_train=pixels, y_train=labels)
        words = python(MEMORY, path, tmp_path / f"out{rows}")
        done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 32  # MiB; of embeddings there are 31 and 313
