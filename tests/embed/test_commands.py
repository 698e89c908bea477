import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from embed.identity import in_both, refuse_leak
from embed.reference import ImportReference
from embed.run import Exclude, FitTransform, Run


def random_set(seed: int, rows: int = 200, dim: int = 8) -> EmbeddingSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    values = rng.standard_normal((rows, dim)) + 3 * np.eye(3, dim)[labels]
    return EmbeddingSet(
        embeddings=values.astype(np.float32),
        labels=labels,
        users=np.arange(rows) // 10,
        meta={"class_names": ["a", "b", "c"], "data": f"random {seed}"},
    )


@pytest.fixture
def public(tmp_path: Path) -> Path:
    random_set(0).save(tmp_path / "public")
    return tmp_path / "public"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    random_set(1).save(tmp_path / "private")
    return tmp_path / "private"


def test_fit_transform_writes_transform_and_rows(
    tmp_path: Path, public: Path, private: Path
) -> None:
    out = tmp_path / "out"
    FitTransform(public=public, apply_to=private, out=out, components=4).run()
    transform = PublicTransform.load(out / "transform.safetensors")
    rows, original = EmbeddingSet.open(out / "embeddings"), EmbeddingSet.open(private)
    assert np.array_equal(rows.embeddings, transform(original.embeddings).numpy())
    assert rows.users is not None
    assert rows.meta["transform"]["fitted_on"] == EmbeddingSet.open(public).content_hash()
    report = json.loads((out / "report.json").read_text())
    assert report["dim"] == 5
    assert report["applied_to"] == "random 1"
    with pytest.raises(FileExistsError):
        FitTransform(public=public, out=out).run()


def test_the_private_set_may_not_pass_for_public(tmp_path: Path, private: Path) -> None:
    command: dict[str, Any] = {"public": private, "apply_to": private, "components": 4}
    with pytest.raises(ValueError, match="public must be another set"):
        FitTransform(**command, out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()
    FitTransform(**command, out=tmp_path / "out", i_know_this_leaks=True).run()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["leaks"] is True


def test_neither_may_a_part_or_another_precision_of_it() -> None:
    private = random_set(1)
    part = private.subset(slice(0, 50))
    assert in_both(part, private).sum() == 50
    with pytest.raises(ValueError, match="public must be another set"):
        refuse_leak(part, private)
    for dtype in (np.float64, np.float16):  # the latter rounds every value
        other = EmbeddingSet(embeddings=private.embeddings.astype(dtype), labels=private.labels)
        assert in_both(other, private).sum() > 0.9 * len(private)
        with pytest.raises(ValueError, match="public must be another set"):
            refuse_leak(other, private)
    refuse_leak(random_set(0), private)
    refuse_leak(random_set(0, dim=4), private)


def test_neither_may_a_single_row_of_it(tmp_path: Path, public: Path, private: Path) -> None:
    """No share is tolerated: the row goes before the fit, or there is no fit."""
    one = random_set(1).embeddings[3:4]
    mixed = EmbeddingSet(
        embeddings=np.concatenate([random_set(0).embeddings, one]), labels=np.zeros(201, np.int64)
    )
    with pytest.raises(ValueError, match="got 1 of 201 rows in both"):
        refuse_leak(mixed, random_set(1))
    mixed.save(tmp_path / "mixed")
    command: dict[str, Any] = {"apply_to": private, "components": 4, "out": tmp_path / "out"}
    with pytest.raises(ValueError, match=r"without any of its rows .*embed exclude.* takes them"):
        FitTransform(public=tmp_path / "mixed", **command).run()
    Exclude(embeddings=private, public=(tmp_path / "mixed",), out=tmp_path / "rest").run()
    command["apply_to"] = tmp_path / "rest"
    FitTransform(public=tmp_path / "mixed", **command).run()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["public_rows"] == 201
    assert len(EmbeddingSet.open(tmp_path / "rest")) == 199


def test_transformed_rows_say_whether_they_were_compared(
    tmp_path: Path, public: Path, private: Path
) -> None:
    for name, fitted_on in (("honest", public), ("leaky", private)):
        out = tmp_path / name
        FitTransform(
            public=fitted_on, apply_to=private, components=4, out=out, i_know_this_leaks=True
        ).run()
        assert not EmbeddingSet.open(out / "embeddings").is_compared
    FitTransform(public=public, apply_to=private, components=4, out=tmp_path / "good").run()
    assert EmbeddingSet.open(tmp_path / "good" / "embeddings").is_compared


def write_reference(directory: Path) -> dict[str, np.ndarray]:
    directory.mkdir()
    rng = np.random.default_rng(0)
    arrays = {}
    for name, rows in (("train", 6), ("test", 4)):
        arrays[f"code_space_{name}"] = rng.standard_normal((rows, 5)).astype(np.float32)
        arrays[f"labels_{name}"] = (np.arange(rows) % 3).astype(np.float64)
        arrays[f"userid_{name}"] = np.arange(rows)[:, None] // 2
    for name, values in arrays.items():
        np.save(directory / f"{name}.npy", values)
    return arrays


def test_reference_files_are_imported(tmp_path: Path) -> None:
    arrays = write_reference(tmp_path / "reference")
    ImportReference(source=tmp_path / "reference", out=tmp_path / "out").run()
    opened = EmbeddingSet.open(tmp_path / "out")
    expected = np.concatenate([arrays["code_space_test"], arrays["code_space_train"]])
    assert np.array_equal(opened.embeddings, expected)
    assert opened.labels.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1, 2]
    assert opened.split.tolist() == [1] * 4 + [0] * 6
    assert np.asarray(opened.users).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2]


def test_imported_classes_are_declared_or_marked(tmp_path: Path) -> None:
    write_reference(tmp_path / "reference")
    source = tmp_path / "reference"
    ImportReference(source=source, out=tmp_path / "counted").run()
    assert EmbeddingSet.open(tmp_path / "counted").meta["classes"] == "inferred"
    assert EmbeddingSet.open(tmp_path / "counted").declared_classes == ()
    ImportReference(source=source, out=tmp_path / "declared", num_classes=10).run()
    assert EmbeddingSet.open(tmp_path / "declared").declared_classes == tuple("0123456789")


def test_embedded_classes_are_declared_or_marked(
    tmp_path: Path, archive: Path, checkpoint: Path
) -> None:
    command: dict[str, Any] = {"data": str(archive), "encoder": str(checkpoint)}
    Run(**command, out=tmp_path / "counted").run()
    assert EmbeddingSet.open(tmp_path / "counted").declared_classes == ()
    Run(**command, out=tmp_path / "declared", num_classes=5).run()
    assert EmbeddingSet.open(tmp_path / "declared").declared_classes == tuple("01234")
    Run(**command, out=tmp_path / "named", class_names=("a", "b", "c")).run()
    assert EmbeddingSet.open(tmp_path / "named").declared_classes == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"label must be >= 0 and < 2, got 2 in row 2 of y_train"):
        Run(**command, out=tmp_path / "few", num_classes=2).run()


def test_one_hot_labels_and_missing_users(tmp_path: Path) -> None:
    write_reference(tmp_path / "reference")
    np.save(tmp_path / "reference" / "labels_train.npy", np.eye(3)[np.arange(6) % 3])
    (tmp_path / "reference" / "userid_test.npy").unlink()
    ImportReference(source=tmp_path / "reference", out=tmp_path / "out").run()
    opened = EmbeddingSet.open(tmp_path / "out")
    assert opened.labels[4:].tolist() == [0, 1, 2, 0, 1, 2]
    assert opened.users is None


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("labels_train", np.zeros(5), "labels must be 6 integers"),
        ("labels_train", np.full(6, np.nan), "must be whole numbers"),
        ("labels_train", np.ones((6, 3)), "must be labels or one-hot rows"),
        ("code_space_train", np.zeros((6, 4)), r"one dimension, got \[4, 5\]"),
        ("code_space_train", np.array([{}], dtype=object), "must be a complete npy file"),
    ],
)
def test_bad_reference_files(tmp_path: Path, name: str, values: np.ndarray, rule: str) -> None:
    source = tmp_path / "reference"
    write_reference(source)
    np.save(source / f"{name}.npy", values, allow_pickle=True)
    with pytest.raises(ValueError, match=rule):
        ImportReference(source=source, out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()
