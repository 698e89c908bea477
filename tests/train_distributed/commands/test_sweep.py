"""A sweep that is killed and resumed gives the same cells; the demo keeps apart what is public."""

import gzip
import itertools
import json
import math
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain import probe, simclr
from tests.embedding_sets import clusters
from train_distributed.commands import rehearsing
from train_distributed.commands.comparing import Plot, Sweep
from train_distributed.research.experiments.conditions import ExperimentName
from train_distributed.research.experiments.figures import summarise, table
from train_distributed.simulation import digits as digit_sets
from train_distributed.simulation import runner
from train_distributed.simulation.plan import Result
from train_distributed.store.store import read_store

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sets(tmp_path) -> tuple[Path, Path]:
    private, public = clusters(260, 4, 40, test=60), clusters(320, 8, 40, first=2, seed=1)
    private.meta["data"] = "blobs"
    private.save(tmp_path / "private")
    public.save(tmp_path / "public")
    return tmp_path / "private", tmp_path / "public"


def sweep(sets: tuple[Path, Path], out: Path, name: ExperimentName = "non-iid", **changes) -> Sweep:
    conditions = {"users": (10,), "epsilons": (0.5, 2.0), "seeds": 2} | changes
    return Sweep(name, *sets, out=out, **conditions)


def cells(out: Path) -> list[dict]:
    return json.loads((out / "results.json").read_text())["cells"]


def interrupted_at(number: int, monkeypatch) -> list[str]:
    """Interrupts the job of this number; keys of those that began, as they begin."""
    played, real = [], runner._Stage.play

    def counted(stage, job):
        played.append(f"{job.key}, {[each.epsilon for each in stage.plan.promises]}")
        if len(played) == number:
            raise KeyboardInterrupt
        return real(stage, job)

    monkeypatch.setattr(runner._Stage, "play", counted)
    return played


def test_interrupted_sweep_equals_uninterrupted(sets, tmp_path, monkeypatch, capsys):
    once: dict[str, Any] = {"seeds": 1, "epsilons": (2.0,)}
    sweep(sets, tmp_path / "whole", "frontier", **once).run()
    played = interrupted_at(12, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match=r"rows of 11 of \d+ jobs are kept in .*continues"):
        sweep(sets, tmp_path / "resumed", "frontier", **once).run()
    assert not (tmp_path / "resumed").exists()
    (unfinished,) = tmp_path.glob(".resumed.*")
    capsys.readouterr()
    sweep(sets, tmp_path / "resumed", "frontier", **once).run()
    assert "rows of 11 of" in capsys.readouterr().err
    twice = {key for key in played if played.count(key) > 1}
    assert twice == {played[11]}  # the interrupted one is the only one started twice
    assert cells(tmp_path / "resumed") == cells(tmp_path / "whole")
    assert not unfinished.exists()
    ours = [each["accuracy"] for each in cells(tmp_path / "whole") if each["label"] == "ours"]
    assert len(ours) == 2  # partitions do not touch statistics under the same noise
    assert len(set(ours)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frontier", "non-iid"])
def test_killed_sweep_equals_uninterrupted(sets, tmp_path, name):
    def command(out: str) -> list[str]:
        options = [f"--embeddings={sets[0]}", f"--public={sets[1]}", "--users", "10"]
        options += ["--seeds=2", "--epsilons", "0.5", "2", f"--out={tmp_path / out}"]
        return [sys.executable, "-m", "train_distributed", "sweep", name, *options]

    subprocess.run(command("whole"), cwd=ROOT, check=True, capture_output=True)
    clock, finished = random.Random(), [[]]
    for _ in range(3):
        with subprocess.Popen(command("killed"), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and len(journalled(tmp_path)) <= len(finished[-1]):
                time.sleep(0.01)
            time.sleep(clock.uniform(0, 0.3))  # a random moment of a later job
            process.kill()
        if (tmp_path / "killed").exists():  # on a busy machine the kill may come too late
            break
        finished.append(journalled(tmp_path))
    else:
        subprocess.run(command("killed"), cwd=ROOT, check=True, capture_output=True)
    assert len(finished) > 1  # one kill at least
    assert cells(tmp_path / "killed") == cells(tmp_path / "whole")
    for earlier, keys in itertools.pairwise(finished):
        assert len(keys) == len(set(keys)) > len(earlier)


def journalled(folder: Path) -> list[str]:
    """Keys of the finished jobs."""
    journal = next(folder.glob(".killed.*.unfinished.sqlite"), None)
    return [] if journal is None else [row.name for row in read_store(journal, "journal")[1:]]


def test_folds_test_every_row_once_and_two_sweeps_do_not_mix(sets, tmp_path, monkeypatch, capsys):
    changes = {"folds": 4, "seeds": 1, "epsilons": (math.inf,), "schemes": ("iid",)}
    met, real = [], runner._Stage.play

    def meet(stage, job):
        if not met:
            met.append(None)
            with pytest.raises(FileExistsError, match="one command at a time"):
                sweep(sets, tmp_path / "out", "frontier", **changes).run()
        return real(stage, job)

    monkeypatch.setattr(runner._Stage, "play", meet)
    sweep(sets, tmp_path / "out", "frontier", **changes).run()
    assert met
    assert {cell["seed"] for cell in cells(tmp_path / "out")} == {0, 1, 2, 3}
    assert {cell["rows"] for cell in cells(tmp_path / "out")} == {195}


@pytest.mark.parametrize("name", ["users", pytest.param("non-iid", marks=pytest.mark.slow)])
def test_every_experiment_ends_in_a_figure_that_plot_draws_again(sets, tmp_path, name, capsys):
    pytest.importorskip("opacus")
    changes = {"users": (10, 1), "schemes": ("iid",)} if name == "users" else {"users": (10, 5)}
    sweep(sets, tmp_path / "out", name, seeds=1, epsilons=(8.0,), **changes).run()
    found = {c["users"]: c["accuracy"] for c in cells(tmp_path / "out") if c["method"] == "dp-fl"}
    assert name != "users" or (found.keys() == {1, 10} and found[10] > 0.4)  # baseline by name
    figure = (tmp_path / "out/figure.png").read_bytes()
    capsys.readouterr()
    Plot(tmp_path / "out", tmp_path / "again.png").run()
    assert (tmp_path / "again.png").read_bytes() == figure
    assert (tmp_path / "out/table.txt").read_text().strip() in capsys.readouterr().out
    rows = tmp_path / "out/results.json"
    packed = gzip.compress(rows.read_bytes())
    rows.with_name("results.json.gz").write_bytes(packed)
    rows.unlink()
    Plot(tmp_path / "out", tmp_path / "unpacked.png").run()
    assert (tmp_path / "unpacked.png").read_bytes() == figure
    for broken in (packed[:-9], packed[1:], b"\x1f\x8b\x08\0" + bytes(30)):
        rows.with_name("results.json.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"results must be the JSON of a sweep"):
            Plot(tmp_path / "out", tmp_path / "never.png").run()


def test_summaries_take_the_best_setting_of_a_label():
    rows = [
        Result("a", "svm", "iid", 1.0, seed, accuracy, {"l2_reg": l2_reg}, "raw")
        for l2_reg, values in ((1.0, (0.5, 0.7)), (2.0, (0.8, 0.9)))
        for seed, accuracy in enumerate(values)
    ]
    found = summarise(rows)["a", "iid", 1.0]
    assert found.mean == pytest.approx(0.85)
    assert found.std == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert "85.0 ± 7.1" in table(rows)
    cells = (("a", 0, 0.9), ("a", 1, 0.1), ("b", 0, 0.6), ("b", 1, 0.6))
    rows = [Result(name, name, "iid", 1.0, seed, x, {}, "pixels") for name, seed, x in cells]
    assert summarise(rows, by=("scheme", "epsilon"))["iid", 1.0].mean == pytest.approx(0.6)


def test_other_options_keep_what_is_finished(sets, tmp_path, monkeypatch, capsys):
    iid: dict[str, Any] = {"seeds": 1, "schemes": ("iid",)}
    played = interrupted_at(4, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="rows of 3 of"):
        sweep(sets, tmp_path / "out", "frontier", **iid, epsilons=(2.0,)).run()
    (unfinished,) = tmp_path.glob(".out.*")
    before = unfinished.read_bytes()
    sweep(sets, tmp_path / "out", "frontier", **iid, epsilons=(0.5,)).run()
    assert f"with other options, or of another version, {unfinished}" in capsys.readouterr().err
    assert unfinished.read_bytes() == before
    first = played[:3]
    del played[:]
    played += [""] * 4
    again = sweep(sets, tmp_path / "out", "frontier", **iid, epsilons=(2.0,))
    replace(again, overwrite=True).run()
    assert not set(first) & set(played)
    assert not list(tmp_path.glob(".out.*"))


def test_public_labels_are_withheld_and_no_digit_is_on_both_sides():
    images, labels = digit_sets.load_digits()
    assert images.shape == (5000, 1, 28, 28)
    assert images.dtype == torch.uint8
    public, private = digit_sets.split_digits(digit_sets.pixels(images), labels)
    assert not public.labels.any()
    assert (private.labels == labels[digit_sets.PUBLIC :]).all()
    assert np.bincount(private.split).tolist() == [digit_sets.PRIVATE, digit_sets.TEST_ROWS]
    held = {row.tobytes() for row in np.asarray(private.embeddings)}
    assert not held & {row.tobytes() for row in np.asarray(public.embeddings)}


def test_the_encoder_sees_public_digits_alone(monkeypatch):
    images, seen = digit_sets.load_digits()[0], []

    def record(given, config, generator):
        seen.append(given)
        return torch.nn.Flatten(), []

    monkeypatch.setattr(simclr, "pretrain", record)
    monkeypatch.setattr(probe, "embed_all", lambda encoder, given: encoder(given).float())
    embeddings = rehearsing.simclr_embeddings(images)
    assert len(embeddings) == len(images)
    assert len(seen) == 1
    assert torch.equal(seen[0][:, :1], images[: digit_sets.PUBLIC])


def test_bad_settings_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(digit_sets, "load_digits", lambda: pytest.fail("worked before it checked"))
    with pytest.raises(ValueError, match=r"epsilon must be .* got -1"):
        rehearsing.Demo(epsilons=(-1.0,), out=tmp_path / "new").run()
    with pytest.raises(FileExistsError):
        rehearsing.Demo(out=tmp_path).run()
    assert not list(tmp_path.iterdir())
