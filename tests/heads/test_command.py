"""`python -m heads fit`, and what its functions refuse."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import heads
from heads.__main__ import main
from tests.command_lines import typed

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


def fit(data: Path, **changed: str) -> list[str]:
    options = GOOD | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return ["fit", "--data", str(data), *[word for option in options.items() for word in option]]


def test_without_noise_the_model_is_private_data(data: Path, monkeypatch, capsys) -> None:
    with typed("heads", main, monkeypatch, capsys) as run:
        code, printed, error = run(*fit(data, out=str(data.parent / "out")))
    assert (code, error) == (0, "")
    assert "private data, not to be released" in printed
    report = json.loads((data.parent / "out" / "report.json").read_text())
    assert "private data, not to be released" in report["release"]
    assert report["neighbouring"] == "replace one record"
    assert report["compositions"] == 1
    stated = heads.SoftmaxHead(num_classes=3, l2_reg=0.1, clip_norm=2.0).sensitivity(40)
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


HEAD = heads.SoftmaxHead(num_classes=3, l2_reg=1.0, clip_norm=2.0)
X, Y = torch.ones(2, 4, 3, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.int64)


def sgd(x: Tensor = X, y: Tensor = Y, **options: Any) -> object:
    steps: dict[str, Any] = {"epochs": 1, "batch_size": 2}
    return heads.fit_sgd(HEAD, x, y, **steps | options)


def certified(x: Tensor = X, y: Tensor = Y, **options: Any) -> object:
    return heads.fit_exact(HEAD, x, y, **options)


def sums(x: Tensor = X, y: Tensor = Y, **options: Any) -> object:
    return heads.class_sums(x, y, 3, **options)


def refused(message: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """By a message that names the argument, the rule and the value."""
    with pytest.raises(ValueError, match=re.escape(message)):
        call(*arguments, **options)


def with_one(whole: Tensor, value: float) -> Tensor:
    """A copy in which the third row of the second user holds another value."""
    changed = whole.clone()
    changed[1, 2].view(-1)[0] = value
    return changed


@pytest.mark.parametrize("fit", [sgd, certified])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_not_finite_or_too_long(fit, value: float, dtype: torch.dtype) -> None:
    x = with_one(X.to(dtype), value)
    refused("x must have finite rows of norm <= clip_norm = 2.0, got norm ", fit, x)
    refused("in row [1, 2]", fit, x)
    refused("in row [2]", fit, x[1], Y[1])


@pytest.mark.parametrize("fit", [sgd, certified])
def test_a_row_too_long_by_what_float32_cannot_see(fit) -> None:
    x = torch.zeros_like(X)
    x[..., 0] = 2.0
    fit(x)
    refused("got norm 2.0000000002", fit, with_one(x, 2.0 * (1 + 1e-10)))


@pytest.mark.parametrize("function", [sgd, certified, sums])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": with_one(Y, -1)}, "y must lie in [0, 3), got -1"),
        ({"y": with_one(Y, 3)}, "y must lie in [0, 3), got 3"),
        ({"y": Y[:, :3]}, "got x (2, 4, 3) and y (2, 3)"),
        ({"x": X[0, 0], "y": Y[0, 0]}, "got x (3,) and y ()"),
        ({"y": Y.int()}, "y must be int64, got torch.int32"),
        ({"x": X[:, :0], "y": Y[:, :0]}, "at least one row and column, got shape (2, 0, 3)"),
        ({"x": X[:0], "y": Y[:0]}, "at least one row and column, got shape (0, 4, 3)"),
        ({"counts": torch.tensor([4, 0])}, "counts must lie in [1, 4], got 0"),
        ({"counts": torch.tensor([5, 1])}, "counts must lie in [1, 4], got 5"),
        ({"counts": torch.tensor([1, 1, 1])}, "counts must be of shape (2,), got (3,)"),
        ({"counts": torch.tensor([1.5, 2.0])}, "counts must be int64, got torch.float32"),
    ],
)
def test_rows_labels_and_counts(function, change: dict[str, Tensor], message: str) -> None:
    refused(message, function, **change)


def fit_scaled(dtype: torch.dtype, **change: float) -> None:
    head = heads.LogisticHead(num_classes=2, **{"l2_reg": 1.0, "clip_norm": 1.0, **change})
    x, y = torch.zeros(4, 9, dtype=dtype), torch.arange(4) % 2
    heads.fit_sgd(head, x, y, epochs=1, batch_size=2, method="gram")


svm = partial(heads.HuberSVMHead, num_classes=2, l2_reg=1.0, clip_norm=1.0)
ball = partial(heads.project_ball, radius=1.0)
wide, narrow = partial(fit_scaled, torch.float64), partial(fit_scaled, torch.float32)
NARROW = "must lie in [1e-12, 1000000000000000.0] for rows in torch.float32"
MANY_STEPS = partial(heads.sgd_sensitivity, HEAD, 50, 10, epochs=10**14, batch_size=20)
REFUSED: list[tuple[Callable[[], object], str]] = [
    *[
        (partial(fit, X.to(dtype)), f"x must be float32 or float64, got {dtype}")
        for fit in (sgd, certified)
        for dtype in (torch.int64, torch.float16, torch.bfloat16)
    ],
    (partial(svm, num_classes=1), "num_classes must be >= 2"),
    (partial(svm, l2_reg=0.0), "l2_reg must be finite and > 0"),
    (partial(svm, l2_reg=math.nan), "l2_reg must be finite and > 0"),
    (partial(svm, clip_norm=math.inf), "clip_norm must be finite and > 0"),
    (partial(svm, radius=-1.0), "radius must be finite and > 0"),
    (partial(svm, relaxation=0.0), "relaxation must be finite and > 0"),
    (partial(HEAD.sensitivity, 0), "n must be >= 1"),
    (partial(HEAD.sensitivity, 5, bound="paper"), "radius must be given for bound='paper'"),
    (partial(HEAD.sensitivity, 5, bound="loose"), "bound must be 'tight' or 'paper'"),  # pyright: ignore
    (partial(sgd, batch_size=0), "batch_size must be >= 1"),
    (partial(sgd, method="dual"), "method must be 'auto', 'gram' or 'primal'"),
    (partial(sgd, smoothness=1.0), "smoothness must be finite and >= l2_reg + curvature"),
    (partial(sgd, smoothness=math.nan), "smoothness must be finite"),
    (partial(wide, l2_reg=1e-300), "l2_reg must lie in [1e-60, 1e+60]"),
    (partial(wide, clip_norm=1e200), "clip_norm must lie in [1e-60, 1e+60]"),
    (partial(wide, radius=1e-61), "radius must lie in [1e-60, 1e+60]"),
    (partial(wide, radius=1e-9), "radius must be larger beside lipschitz / l2_reg"),
    (partial(narrow, l2_reg=1e-20), f"lipschitz / l2_reg {NARROW}"),
    (partial(narrow, clip_norm=1e-13), f"clip_norm {NARROW}"),
    (partial(narrow, radius=1e-13), f"radius {NARROW}"),
    (partial(narrow, l2_reg=1e9, clip_norm=1e14), "l2_reg + curvature must be <= 1e+24"),
    (MANY_STEPS, "epochs must be so few that rounding in torch.float64 moves the weights by"),
    *[
        (partial(certified, tolerance=tolerance), "tolerance must be finite and >=")
        for tolerance in (0.0, -1.0, 1e-17, math.nan, math.inf)
    ],
    *[
        (partial(function, with_one(X, bad)), "x must have finite rows")
        for function in (sums, heads.second_moments)
        for bad in (math.nan, math.inf, -math.inf)
    ],
    *[
        (partial(ball, torch.tensor([[bad], [1.0]])), "weights must have finite norms")
        for bad in (math.nan, math.inf)
    ],
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_constants_of_heads_and_options_of_solvers(call, message: str) -> None:
    refused(message, call)


@pytest.mark.parametrize("scale", [1e-300, 1e-61, 1e61, 1e200, math.inf, math.nan, 0.0, -1.0])
def test_sizes_of_statistics(scale: float) -> None:
    refused("clip_norm must", heads.class_sums_sensitivity, scale, scale / 2)
    refused("clip_norm must", heads.least_squares_sensitivity, scale, 1.0)
    refused("alpha must", heads.least_squares_sensitivity, 1.0, scale)
    refused("alpha must", heads.least_squares_statistics, X, Y, 2, scale)
