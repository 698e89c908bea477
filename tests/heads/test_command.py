"""`python -m heads fit`: in this process, and in its own where that matters."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from heads import SoftmaxHead
from heads.__main__ import main
from tests.command_lines import Said, typed

ROOT = Path(__file__).parents[2]
GOOD = {"--num-classes": "3", "--l2-reg": "0.1", "--clip-norm": "2.0"}
Call = Callable[..., Said]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    x = np.random.default_rng(0).random((40, 5)).astype(np.float32) / 2
    x[:, 0] = 1
    np.save(directory / "embeddings.npy", x)
    np.save(directory / "labels.npy", np.arange(40) % 3)
    return directory


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs a command line in this process."""
    with typed("heads", main, monkeypatch, capsys) as run:
        yield run


def fit(data: Path, **changed: str) -> list[str]:
    """The words of a command."""
    options = GOOD | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return ["fit", "--data", str(data), *[word for option in options.items() for word in option]]


def test_without_noise_the_model_is_private_data(heads: Call, data: Path) -> None:
    code, printed, error = heads(*fit(data, out=str(data.parent / "out")))
    assert (code, error) == (0, "")
    assert "private data, not to be released" in printed
    report = json.loads((data.parent / "out" / "report.json").read_text())
    assert "private data, not to be released" in report["release"]
    assert report["neighbouring"] == "replace one record"
    assert report["compositions"] == 1
    stated = SoftmaxHead(num_classes=3, l2_reg=0.1, clip_norm=2.0).sensitivity(40)
    assert stated < report["sensitivity"] < 1.0011 * stated
    assert not {"gradient_norm", "iterations", "seconds"} & set(report)
    assert load_file(data.parent / "out" / "model.safetensors")["weights"].shape == (5, 3)
    assert sorted(path.name for path in data.parent.iterdir()) == ["data", "out"]


TWINS = """
import os, sys
from heads.__main__ import main
first = os.fork()
if first:
    os.waitpid(first, 0)
sys.argv += ["--out", "second" if first else "first"]
sys.exit(main())
"""


def test_noise_has_the_stated_size_and_is_never_the_same(data: Path) -> None:
    """In two processes that begin alike: torch's own generator would repeat itself."""
    wide = np.zeros((40, 4000), dtype=np.float32)
    wide[:, 0] = 1
    np.save(data / "embeddings.npy", wide)
    options = {"method": "svm", "solver": "sgd", "epochs": "1", "noise_multiplier": "3"}
    command = [sys.executable, "-c", TWINS, *fit(data, **options)]
    own = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=data.parent, env=own, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("unsuitable for release") == 2
    found = []
    for name in ("first", "second"):
        report = json.loads((data.parent / name / "report.json").read_text())
        assert report["compositions"] == 3
        weights = load_file(data.parent / name / "model.safetensors")["weights"][1:]
        found.append(weights / (3 * report["sensitivity"]))
    for noise in found:
        assert noise.std().item() == pytest.approx(1, abs=5 / math.sqrt(2 * noise.numel()))
    assert (found[0] != found[1]).any()


def test_commands_and_help(heads: Call, data: Path) -> None:
    code, printed, error = heads()
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "command must be 'fit'" in error
    code, printed, _ = heads("fit", "--help")
    assert code == 0
    assert "--noise-multiplier" in printed
