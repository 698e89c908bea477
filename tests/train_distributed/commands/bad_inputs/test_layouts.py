"""Predict and evaluate read pictures in the layouts of `embed run`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet
from tests.train_distributed.commands.bad_inputs.world import COLOURS


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    """The world, with pictures by user and class, and as MedMNIST stores them."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True, symlinks=True)
    rng = np.random.default_rng(5)
    pixels, labels = [], []
    for number in range(60):
        name = list(COLOURS)[number % 3]
        place = tmp_path / "by_user" / f"user{number % 4}" / name
        place.mkdir(parents=True, exist_ok=True)
        picture = np.clip(rng.normal(COLOURS[name], 40, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(place / f"{number}.png")
        pixels.append(picture)
        labels.append(number % 3)
    np.savez(
        tmp_path / "medmnist.npz",
        train_images=np.stack(pixels[:40]),
        train_labels=np.array(labels[:40], np.uint8)[:, None],
        val_images=np.stack(pixels[40:50]),
        val_labels=np.array(labels[40:50], np.uint8)[:, None],
        test_images=np.stack(pixels[50:]),
        test_labels=np.array(labels[50:], np.uint8)[:, None],
    )
    return tmp_path


def _accuracy(place: Path) -> float:
    return json.loads((place / "metrics.json").read_text())["accuracy"]


def test_predict_reads_users_folders_tables_and_medmnist(say, folder: Path) -> None:
    typed = ("predict", "--model", "model", "--evaluate")
    sources = {
        "users": ("--data", "by_user", "--layout", "user-class"),
        "table": ("--data", "csv:table.csv", "--columns", "path=path,label=label"),
        "medmnist": ("--data", "medmnist.npz"),
        "val": ("--data", "medmnist.npz", "--splits", "val"),
    }
    rows = {}
    for name, words in sources.items():
        code, _, error = say(*typed, *words, "--out", name)
        assert code == 0, error
        rows[name] = (folder / name / "predictions.csv").read_text().count("\n") - 1
    assert rows == {"users": 60, "table": 9, "medmnist": 60, "val": 10}
    assert _accuracy(folder / "users") == _accuracy(folder / "medmnist")  # the same pictures


def test_evaluate_takes_pictures_and_keeps_a_ledger(say, folder: Path) -> None:
    typed = ("evaluate", "--model", "model", "--data", "by_user", "--layout", "user-class")
    code, printed, error = say(*typed, "--epsilon", "50", "--ledger", "held.ledger", "--out", "e")
    assert code == 0, error
    report = json.loads((folder / "e" / "evaluation.json").read_text())
    assert (report["rows"], report["users"]) == (60, 4)
    assert report["suitable_for_release"]
    assert report["accuracy"]["estimate"] > report["majority_baseline"]["estimate"]
    assert "majority_baseline" in printed
    assert say("ledger", "show", "--ledger", "held.ledger")[0] == 0
    code, _, error = say(*typed)
    assert (code, error) == (2, "error: ledger must be given, got none\n")
    options = ("--embeddings", "private", "--layout", "flat")
    code, _, error = say("evaluate", "--model", "model", *options)
    assert (code, "layout must be left out with embeddings, got flat" in error) == (2, True)


def test_hold_out_says_why_users_hold_out_nothing(say, tmp_path: Path) -> None:
    meta = {"class_names": ["a", "b"]}
    users = np.repeat([0, 1, 2], [10, 2, 1])  # a fifth of two and of one row is none
    rows, labels = np.eye(13, 4), np.arange(13) % 2
    EmbeddingSet(embeddings=rows, labels=labels, users=users, meta=meta).save(tmp_path / "mine")
    typed = ("embed", "hold-out", "--embeddings", "mine", "--share", "0.2")
    code, printed, _ = say(*typed, "--out", "rows")
    assert code == 0
    counted, why = printed.splitlines()
    assert counted == "11 rows to train on, 2 held out, in rows"
    assert why.startswith("2 of 3 users hold out no row: the share of their rows rounds to none")
    _, printed, _ = say(*typed[:-1], "0.4", "--by", "user", "--out", "users")
    assert "1 users are held out with all of their rows" in printed
