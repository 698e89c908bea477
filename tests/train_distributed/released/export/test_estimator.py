"""The scikit-learn pipeline: this library's own parts, and the numbers of `predict`."""

import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from skops import io

from embed import PublicTransform
from embed.centre import Centre
from train_distributed import Release
from train_distributed.one_shot.report_file import Report
from train_distributed.released.export.estimator import (
    ABOUT,
    load_sklearn,
    pipeline,
    save_sklearn,
)
from train_distributed.released.export.parity import some_rows


def make(
    p: int,
    q: int,
    classes: int,
    constant: float,
    temperature: float = 1.0,
    far: float = 0.0,
    noise: float = 0.0,
) -> Release:
    """A model whose rows are mapped for this noise about a centre that is `far`, if that is not 0.

    Otherwise its features are clipped to another length than 1.
    """
    rng = np.random.default_rng(0)
    public = rng.standard_normal((300, p)) * np.linspace(0.01, 3, p) + 5
    transform = PublicTransform.fit(
        torch.from_numpy(public).float(),
        components=q,
        constant=constant,
        clip_norm=None if far else math.sqrt(constant**2 + 2),
    )
    if far:
        towards = torch.from_numpy(rng.standard_normal(q))
        centre = Centre.of(towards * (far / towards.norm()), 1.0, transform.public)
        transform = transform.mapped(noise, q, centre)
        assert transform.dim == q + 1 or noise
    weights = torch.from_numpy(30 * rng.standard_normal((transform.dim, classes)))
    names = tuple(f"class {k}" for k in range(classes))
    report = Report.of({"epsilon": 0.5, "delta": 1e-5, "method": "svm"})
    return Release(weights, transform, names, report, temperature=temperature)


def rows(released: Release) -> np.ndarray:
    """Inside the clip, at its border, beyond it, and as far as floats go.

    About the public mean and, if there is one, about the centre.
    """
    transform = released.transform
    mean = transform.mean.double().numpy()
    if transform.centre is not None:
        assert transform.directions is not None
        features = transform.centre @ torch.linalg.pinv(transform.directions)
        mean = mean + (transform.basis.double() @ (transform.scale * features)).numpy()
    near = np.random.default_rng(1).standard_normal((200, len(mean)))
    sizes = [1e-300, 1e-9, 1e-2, 0.1, 1.0, 10.0, 1e6, 1e30, 1e59, 1e150, 1e300, 1e307]
    far = [mean + size * near[k] for k, size in enumerate(sizes)]
    far += [size * near[k] for k, size in enumerate(sizes)]
    return np.stack([*(mean + 0.3 * near), *far, mean, np.zeros_like(mean)])


SHAPES = [(6, 4, 3, 1.0, 1.0), (40, 40, 10, 0.5, 0.2), (30, 30, 2, 0.0, 3.0), (5, 1, 2, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("far", "noise"), [(0.0, 0.0), (0.5, 0.0), (0.9, 2.0), (1 - 2.0**-40, 0.3)]
)
@pytest.mark.parametrize(("p", "q", "classes", "constant", "temperature"), SHAPES)
def test_classes_and_probabilities_are_those_of_predict(
    tmp_path,
    p: int,
    q: int,
    classes: int,
    constant: float,
    temperature: float,
    far: float,
    noise: float,
) -> None:
    released = make(p, q, classes, constant, temperature, far, noise)
    save_sklearn(released, tmp_path / "model.skops")
    assert io.get_untrusted_types(file=tmp_path / "model.skops") == []
    loaded = load_sklearn(tmp_path / "model.skops")
    x = rows(released)
    for given in (x, x[:200].astype(np.float32), x[:1]):
        shares = released.predict_proba(given).numpy()
        assert np.abs(loaded.predict_proba(given) - shares).max() < 1e-10
        names = np.array(released.class_names)[released.predict(given)]
        assert (loaded.predict(given) == names).all()


def test_the_rows_of_an_export_are_of_both_clips() -> None:
    """What `export` compares must lie inside of the clip about the centre too, not only beyond."""
    released = make(40, 40, 10, 0.5, far=0.9)
    transform = released.transform
    norms = transform(some_rows(released))[:, 1:].norm(dim=1)
    inside = (norms < transform.reach * (1 - 1e-6)).double().mean()
    assert 0.2 < inside < 0.8


def test_the_pipeline_says_what_it_is(released, tmp_path) -> None:
    save_sklearn(released, tmp_path / "model.skops")
    about = getattr(load_sklearn(tmp_path / "model.skops"), ABOUT)
    assert about["class_names"] == list(released.class_names)
    assert (about["epsilon"], about["delta"]) == (1.0, 1e-5)
    assert about["encoding"]["encoder_hash"] == released.encoding.encoder_hash
    assert "posterior of Gaussian classes" in about["probabilities"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(released, value: float) -> None:
    x = np.zeros((2, 6))
    x[1, 3] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        pipeline(released).predict(x)


def test_rows_of_another_length_are_refused(released) -> None:
    with pytest.raises(ValueError, match="features"):
        pipeline(released).predict(np.zeros((2, 7)))


PROGRAM = """
import sys
import numpy as np
from skops import io

model = io.load(sys.argv[1])
np.save(sys.argv[3], model.predict_proba(np.load(sys.argv[2])))
assert not {"train_distributed", "embed", "heads", "pretrain"} & set(sys.modules)
"""


@pytest.mark.slow
def test_it_is_loaded_where_this_project_is_not(released, tmp_path) -> None:
    save_sklearn(released, tmp_path / "model.skops")
    x = rows(released)
    np.save(tmp_path / "rows.npy", x)
    files = [str(tmp_path / name) for name in ("model.skops", "rows.npy", "shares.npy")]
    command = [sys.executable, "-I", "-c", PROGRAM, *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    difference = np.load(tmp_path / "shares.npy") - released.predict_proba(x).numpy()
    assert np.abs(difference).max() < 1e-10


def test_nothing_is_pickled(released, tmp_path) -> None:
    save_sklearn(released, tmp_path / "model.skops")
    content = Path(tmp_path / "model.skops").read_bytes()
    assert content[:2] == b"PK"  # a zip of JSON and npy files
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_sklearn(tmp_path / "model.skops")
