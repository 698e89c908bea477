"""A sweep that is killed and resumed gives the same cells; the demo keeps apart what is public."""

import gzip
import json
import math
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


def journalled(folder: Path) -> list[str]:
    """Keys of the finished jobs of a sweep that has not ended."""
    journals = folder.glob(".*.unfinished.sqlite")
    return [row.name for journal in journals for row in read_store(journal, "journal")[1:]]


def test_interrupted_sweep_equals_uninterrupted(sets, tmp_path, monkeypatch, capsys):
    """A kill leaves the same: what is finished is on the disk before the next job begins."""
    once: dict[str, Any] = {"seeds": 1, "epsilons": (2.0,)}
    sweep(sets, tmp_path / "whole", "frontier", **once).run()
    played, kept, real = list[str](), list[str](), runner._Stage.play

    def counted(stage, job):
        played.append(f"{job.key}, {[each.epsilon for each in stage.plan.promises]}")
        if len(played) == 12:
            kept.extend(journalled(tmp_path))
            raise KeyboardInterrupt
        return real(stage, job)

    monkeypatch.setattr(runner._Stage, "play", counted)
    with pytest.raises(KeyboardInterrupt, match=r"rows of 11 of \d+ jobs are kept in .*continues"):
        sweep(sets, tmp_path / "resumed", "frontier", **once).run()
    assert not (tmp_path / "resumed").exists()
    assert kept == journalled(tmp_path)
    assert len(set(kept)) == len(kept) > 0
    other = once | {"epsilons": (0.5,), "schemes": ("iid",)}
    sweep(sets, tmp_path / "resumed", "frontier", **other).run()
    assert "kept: an unfinished sweep with other options" in capsys.readouterr().err
    del played[12:]
    replace(sweep(sets, tmp_path / "resumed", "frontier", **once), overwrite=True).run()
    assert "rows of 11 of" in capsys.readouterr().err
    twice = {key for key in played if played.count(key) > 1}
    assert twice == {played[11]}  # the interrupted one is the only one started twice
    assert cells(tmp_path / "resumed") == cells(tmp_path / "whole")
    assert not journalled(tmp_path)
    ours = [each["accuracy"] for each in cells(tmp_path / "whole") if each["label"] == "ours"]
    assert len(ours) == 2  # partitions do not touch statistics under the same noise
    assert len(set(ours)) == 1


def test_folds_test_every_row_once(sets, tmp_path):
    changes = {"folds": 4, "seeds": 1, "epsilons": (math.inf,), "schemes": ("iid",)}
    sweep(sets, tmp_path / "out", "frontier", **changes).run()
    found = cells(tmp_path / "out")
    assert {(cell["seed"], cell["rows"]) for cell in found} == {(fold, 195) for fold in range(4)}


@pytest.mark.parametrize("name", ["users", pytest.param("non-iid", marks=pytest.mark.slow)])
def test_every_experiment_ends_in_a_figure_that_plot_draws_again(sets, tmp_path, name, capsys):
    pytest.importorskip("opacus")
    changes = {"users": (10, 1), "schemes": ("iid",)} if name == "users" else {"users": (10, 5)}
    sweep(sets, tmp_path / "out", name, seeds=1, epsilons=(8.0,), **changes).run()
    found = {c["users"]: c["accuracy"] for c in cells(tmp_path / "out") if c["method"] == "dp-fl"}
    assert name != "users" or (found.keys() == {1, 10} and found[10] > 0.4)  # baseline by name
    rows = tmp_path / "out/results.json"
    packed = gzip.compress(rows.read_bytes())
    rows.with_name("results.json.gz").write_bytes(packed)
    rows.unlink()
    capsys.readouterr()
    Plot(tmp_path / "out", tmp_path / "again.png").run()
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "out/figure.png").read_bytes()
    assert (tmp_path / "out/table.txt").read_text().strip() in capsys.readouterr().out
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
    assert (found.mean, found.std) == pytest.approx((0.85, np.std([0.8, 0.9], ddof=1)))
    assert "85.0 ± 7.1" in table(rows)


def test_public_labels_are_withheld_and_no_digit_is_on_both_sides():
    images, labels = digit_sets.load_digits()
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
