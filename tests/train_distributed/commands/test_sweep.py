"""A sweep that is killed and resumed gives the same cells, no finished job twice."""

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

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.commands.select import Select
from train_distributed.commands.sweep import Plot, Sweep
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.conditions import Conditions, ExperimentName
from train_distributed.research.experiments.figures import FINE, GROUPS, extrapolated
from train_distributed.research.experiments.summary import summarise, table
from train_distributed.simulation import runner
from train_distributed.simulation.plan import Result
from train_distributed.store.store import read_store

ROOT = Path(__file__).parents[3]
KINDS = ("no users' clip", "users' clip")


@pytest.fixture
def sets(tmp_path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    labels = np.arange(260) % 4
    x = 2 * np.eye(4, 40)[labels] + 0.3 * rng.standard_normal((260, 40))
    split = np.repeat([0, 1], [200, 60]).astype(np.uint8)
    meta = {"class_names": list("abcd"), "data": "blobs"}
    private = EmbeddingSet(embeddings=x.astype(np.float32), labels=labels, split=split, meta=meta)
    private.save(tmp_path / "private")
    known = np.arange(320) % 8
    public = 2 * np.eye(8, 40, 2)[known] + 0.3 * rng.standard_normal((320, 40))
    EmbeddingSet(embeddings=public.astype(np.float32), labels=known).save(tmp_path / "public")
    return tmp_path / "private", tmp_path / "public"


def sweep(sets: tuple[Path, Path], out: Path, name: ExperimentName = "non-iid", **changes) -> Sweep:
    conditions = {"users": (10,), "epsilons": (0.5, 2.0), "seeds": 2, "lineup": ("ours",)} | changes
    return Sweep(name, *sets, Conditions(**conditions), out=out)


def cells(out: Path) -> list[dict]:
    return json.loads((out / "results.json").read_text())["cells"]


def interrupted_at(number: int, monkeypatch) -> list[str]:
    """Interrupts the job of this number; keys of those that began, as they begin."""
    played, real = [], runner._Stage.play

    def counted(stage, job):
        played.append(job.key)
        if len(played) == number:
            raise KeyboardInterrupt
        return real(stage, job)

    monkeypatch.setattr(runner._Stage, "play", counted)
    return played


def test_interrupted_sweep_equals_uninterrupted(sets, tmp_path, monkeypatch, capsys):
    sweep(sets, tmp_path / "whole", "accuracy", seeds=1).run()
    played = interrupted_at(12, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match=r"rows of 11 of \d+ jobs are kept in .*continues"):
        sweep(sets, tmp_path / "resumed", "accuracy", seeds=1).run()
    assert not (tmp_path / "resumed").exists()
    (unfinished,) = tmp_path.glob(".resumed.*")
    capsys.readouterr()
    sweep(sets, tmp_path / "resumed", "accuracy", seeds=1).run()
    assert "rows of 11 of" in capsys.readouterr().err
    twice = {key for key in played if played.count(key) > 1}
    assert twice == {played[11]}  # the interrupted one is the only one started twice
    assert cells(tmp_path / "resumed") == cells(tmp_path / "whole")
    assert not unfinished.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frontier", "non-iid"])
def test_killed_sweep_equals_uninterrupted(sets, tmp_path, name):
    def command(out: str) -> list[str]:
        options = [f"--embeddings={sets[0]}", f"--public={sets[1]}", "--users", "10"]
        options += ["--seeds=2", "--tasks=1", "--epsilons", "0.5", "2", f"--out={tmp_path / out}"]
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


def test_partitions_do_not_touch_statistics_under_the_same_noise(sets, tmp_path, capsys):
    sweep(sets, tmp_path / "out", "accuracy").run()
    found = {}
    for cell in cells(tmp_path / "out"):
        if cell["method"] == "discriminant":
            key = (cell["method"], cell["epsilon"], cell["seed"])
            found.setdefault(key, set()).add(cell["accuracy"])
    assert len(found) == 8
    assert all(len(accuracies) == 1 for accuracies in found.values())


@pytest.mark.parametrize("named", [False, True])
def test_users_are_protected_without_and_with_clips(sets, tmp_path, capsys, named: bool):
    """Either is chosen by rehearsals of its own; named users hold their own rows."""
    private = EmbeddingSet.open(sets[0])
    users = np.arange(len(private)) // 20
    private = replace(private, users=users if named else None)
    private.save(tmp_path / "named")
    paths = (tmp_path / "named", sets[1])
    sweep(paths, tmp_path / "out", "user-level", tasks=1, epsilons=(20.0,)).run()
    found = cells(tmp_path / "out")
    labels = {f"{kind}{how}" for kind in KINDS for how in ("", ", chosen by select")}
    assert {cell["label"] for cell in found} == labels
    schemes = {"by-writer"} if named else {"iid 20 rows each", "one-class 20 rows each"}
    for label in labels:
        rows = [cell for cell in found if cell["label"] == label]
        assert {cell["scheme"] for cell in rows} == schemes
        assert ("user_clip" in rows[0]["options"]) == label.startswith("users' clip")
        if "chosen" in label:
            assert len(rows) == 2 * len(schemes)
    mean = {kind: np.mean([c["accuracy"] for c in found if c["label"] == kind]) for kind in KINDS}
    assert mean["users' clip"] > mean["no users' clip"] + 0.1


def test_the_choice_of_the_command_is_compared_with_rivals(sets, tmp_path, capsys):
    sweep(sets, tmp_path / "out", "selection", tasks=1, seeds=1, epsilons=(1.0,)).run()
    found = cells(tmp_path / "out")
    chosen = [cell for cell in found if cell["label"] == "ours, chosen by select"]
    assert {cell["scheme"] for cell in chosen} == {"iid 20 rows each", "one-class 20 rows each"}
    rivals = {(c["method"], c["transform"], str(c["options"])) for c in found if c not in chosen}
    assert 1 < len(rivals) <= 24
    Select(sets[1], 10, 20, 4, Privacy(1.0, 1e-5), tasks=1, out=tmp_path / "select").run()
    best = json.loads((tmp_path / "select/report.json").read_text())["candidates"][0]
    assert {(c["transform"], str(c["options"])) for c in chosen} == {
        (best["transform"], str(best["options"]))
    }
    for cell in chosen:
        twins = [
            c["accuracy"]
            for c in found
            if all(c[k] == cell[k] for k in ("method", "transform", "options", "scheme", "seed"))
        ]
        assert len(twins) == 2  # once as a rival, once as the choice
        assert twins[0] == twins[1]
    assert "- grid" in capsys.readouterr().out


def test_folds_test_every_row_once(sets, tmp_path, capsys):
    sweep(sets, tmp_path / "out", "central", folds=4, seeds=1, epsilons=(math.inf,)).run()
    assert {cell["seed"] for cell in cells(tmp_path / "out")} == {0, 1, 2, 3}
    assert {cell["rows"] for cell in cells(tmp_path / "out")} == {195}


@pytest.mark.parametrize(
    "name",
    ["users", "cost", *(pytest.param(n, marks=pytest.mark.slow) for n in ("groups", "unequal"))],
)
def test_every_experiment_ends_in_a_figure_that_plot_draws_again(sets, tmp_path, name, capsys):
    sweep(sets, tmp_path / "out", name, users=(10, 5), seeds=1, epsilons=(2.0,)).run()
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


def test_heat_map_is_the_measured_line_at_rescaled_epsilon():
    rows = [
        Result("a", "svm", "iid", epsilon, 0, accuracy, {}, "raw", users=1000)
        for epsilon, accuracy in ((0.1, 0.2), (1.0, 0.6))
    ]
    values = extrapolated(rows, 200_000)
    for row, group in zip(values, GROUPS, strict=True):
        for value, epsilon in zip(row, FINE, strict=True):
            needed = epsilon * 200_000 / (1000 * group)
            if needed < 0.1:
                assert math.isnan(value)
            else:
                expected = 0.2 + 0.4 * min(1.0, math.log10(needed) + 1)
                assert value == pytest.approx(expected)


def test_baselines_are_another_method_with_a_name(sets, tmp_path, capsys):
    pytest.importorskip("opacus")
    changes = {"lineup": ("dp-fl",), "seeds": 1, "epsilons": (8.0,), "schemes": ("iid",)}
    sweep(sets, tmp_path / "out", "accuracy", users=(1, 10), **changes).run()
    alone, shared = cells(tmp_path / "out")
    assert {alone["method"], shared["method"]} == {"dp-fl"}
    assert (alone["users"], shared["users"]) == (1, 10)
    assert alone["accuracy"] > 0.4


def test_other_options_keep_what_an_interrupted_sweep_has_finished(
    sets, tmp_path, monkeypatch, capsys
):
    played = interrupted_at(4, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="rows of 3 of"):
        sweep(sets, tmp_path / "out", "accuracy", seeds=1).run()
    (unfinished,) = tmp_path.glob(".out.*")
    before = unfinished.read_bytes()
    sweep(sets, tmp_path / "out", "accuracy", seeds=1, epsilons=(0.5,)).run()
    assert f"with other options, or of another version, {unfinished}" in capsys.readouterr().err
    assert unfinished.read_bytes() == before
    first = played[:3]
    del played[:]
    played += [""] * 4
    Sweep.run(replace(sweep(sets, tmp_path / "out", "accuracy", seeds=1), overwrite=True))
    assert not set(first) & set(played)
    assert not list(tmp_path.glob(".out.*"))


def test_two_sweeps_into_one_directory_do_not_mix(sets, tmp_path, monkeypatch):
    met, real = [], runner._Stage.play

    def meet(stage, job):
        if not met:
            met.append(None)
            with pytest.raises(FileExistsError, match="one command at a time"):
                sweep(sets, tmp_path / "out", "accuracy", seeds=1).run()
        return real(stage, job)

    monkeypatch.setattr(runner._Stage, "play", meet)
    sweep(sets, tmp_path / "out", "accuracy", seeds=1).run()
    assert met


def test_users_shows_what_examples_are_worth(sets, tmp_path):
    rng = np.random.default_rng(5)
    labels = np.arange(40) % 4
    rows = 2 * np.eye(4, 40)[labels] + 0.3 * rng.standard_normal((40, 40))
    shown = EmbeddingSet(
        embeddings=rows.astype(np.float32), labels=labels, meta={"class_names": list("abcd")}
    )
    shown.save(tmp_path / "shown")
    more = {"schemes": ("iid",), "epsilons": (0.1,), "rows_per_user": 10}
    sweep(sets, tmp_path / "out", "users", examples=str(tmp_path / "shown"), **more).run()
    found = {"nothing": [], "examples": []}
    for cell in cells(tmp_path / "out"):
        if cell["label"].startswith("known: "):
            found[cell["label"].removeprefix("known: ")].append(cell["accuracy"])
    assert np.mean(found["examples"]) > np.mean(found["nothing"]) + 0.2
    private = EmbeddingSet.open(sets[0])
    private.save(tmp_path / "leak")
    with pytest.raises(ValueError, match="examples must hold no private rows"):
        sweep(sets, tmp_path / "no", "users", examples=str(tmp_path / "leak"), **more).run()
