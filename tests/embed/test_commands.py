import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from embed.identity import in_both, refuse_leak
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
