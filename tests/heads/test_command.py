"""`python -m heads fit` as a subprocess."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from heads import SoftmaxHead

ROOT = Path(__file__).parents[2]
GOOD = {"--num-classes": "3", "--l2-reg": "0.1", "--clip-norm": "2.0"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    x = np.random.default_rng(0).random((40, 5)).astype(np.float32) / 2
    x[:, 0] = 1
    np.save(directory / "embeddings.npy", x)
    np.save(directory / "labels.npy", np.arange(40) % 3)
    return directory


def heads(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heads", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def fit(data: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    options = GOOD | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    options = {"--data": str(data), "--out": str(data.parent / "out")} | options
    return heads("fit", *[word for option in options.items() for word in option])


def refused(done: subprocess.CompletedProcess[str], message: str, data: Path) -> None:
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert done.stdout == ""
    assert [path.name for path in data.parent.iterdir()] == ["data"]


def test_without_noise_the_model_is_private_data(data: Path) -> None:
    done = fit(data)
    assert (done.returncode, done.stderr) == (0, "")
    assert "private data, not to be released" in done.stdout
    report = json.loads((data.parent / "out" / "report.json").read_text())
    assert "private data, not to be released" in report["release"]
    assert report["neighbouring"] == "replace one record"
    assert report["compositions"] == 1
    stated = SoftmaxHead(num_classes=3, l2_reg=0.1, clip_norm=2.0).sensitivity(40)
    assert stated < report["sensitivity"] < 1.0011 * stated
    assert not {"gradient_norm", "iterations", "seconds"} & set(report)
    assert load_file(data.parent / "out" / "model.safetensors")["weights"].shape == (5, 3)
    assert sorted(path.name for path in data.parent.iterdir()) == ["data", "out"]


def test_noise_has_the_stated_size_and_is_never_the_same(data: Path) -> None:
    wide = np.zeros((40, 4000), dtype=np.float32)
    wide[:, 0] = 1
    np.save(data / "embeddings.npy", wide)
    options = {"method": "svm", "solver": "sgd", "epochs": "1", "noise_multiplier": "3"}
    found = []
    for name in ("first", "second"):
        out = data.parent / name
        done = fit(data, out=str(out), **options)
        assert done.returncode == 0, done.stderr
        assert "unsuitable for release" in done.stdout
        report = json.loads((out / "report.json").read_text())
        assert report["compositions"] == 3
        weights = load_file(out / "model.safetensors")["weights"][1:]
        found.append(weights / (3 * report["sensitivity"]))
    for noise in found:
        assert noise.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * noise.numel()))
    assert (found[0] != found[1]).any()


def test_an_existing_directory_is_refused(data: Path) -> None:
    done = fit(data, out=str(data))
    refused(done, f"out must not exist, got {data}", data)


def test_missing_and_unreadable_files(data: Path) -> None:
    (data / "labels.npy").write_bytes(b"")
    refused(fit(data), "data must hold a readable labels.npy, got", data)
    (data / "labels.npy").unlink()
    refused(fit(data), "(No such file or directory)", data)


def test_arrays_that_do_not_fit(data: Path) -> None:
    np.save(data / "labels.npy", np.arange(39) % 3)
    refused(fit(data), "(n,), got (40, 5) and (39,)", data)
    np.save(data / "labels.npy", np.zeros(40))
    refused(fit(data), "labels.npy must hold integers, got float64", data)
    np.save(data / "labels.npy", np.full(40, 3))
    refused(fit(data), "y must lie in [0, 3), got 3", data)
    np.save(data / "labels.npy", np.array([{}] * 40, dtype=object), allow_pickle=True)
    refused(fit(data), "data must hold a readable labels.npy", data)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"l2_reg": "0"}, "l2_reg must be finite and > 0, got 0.0"),
        ({"clip_norm": "1"}, "x must have finite rows of norm <= clip_norm = 1.0, got norm 1."),
        ({"noise_multiplier": "nan"}, "noise_multiplier must be finite and > 0, got nan"),
        ({"radius": "1"}, "head must have radius None for an exact solution, got 1.0"),
        ({"solver": "sgd", "epochs": "0"}, "epochs must be >= 1, got 0"),
        ({"method": "forest"}, "forest"),
        ({"l2_reg": "much"}, "much"),
    ],
)
def test_bad_options(data: Path, changed: dict[str, str], message: str) -> None:
    refused(fit(data, **changed), message, data)


def test_commands_and_help(data: Path) -> None:
    refused(heads("train"), "command must be 'fit', got train", data)
    refused(heads(), "command must be 'fit', got nothing", data)
    done = heads("fit", "--help")
    assert done.returncode == 0
    assert "--noise-multiplier" in done.stdout
