import json
from dataclasses import replace
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


def test_fit_transform_writes_a_transform(tmp_path: Path, public: Path) -> None:
    out = tmp_path / "out"
    FitTransform(public=public, out=out, components=4).run()
    fitted = PublicTransform.fit(EmbeddingSet.open(public), components=4)
    assert PublicTransform.load(out / "transform.safetensors").identifier == fitted.identifier
    assert fitted.fitted_on == EmbeddingSet.open(public).content_hash()
    assert json.loads((out / "report.json").read_text())["dim"] == 5
    with pytest.raises(FileExistsError):
        FitTransform(public=public, out=out).run()


def test_the_private_set_nor_a_part_of_it_nor_another_precision_may_pass_for_public() -> None:
    private = random_set(1)
    with pytest.raises(ValueError, match="public must be another set"):
        refuse_leak(private, private)
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


def test_neither_may_a_single_row_of_it(tmp_path: Path, private: Path) -> None:
    """No share is tolerated: the row goes before the fit, or there is no fit."""
    one = random_set(1).embeddings[3:4]
    mixed = EmbeddingSet(
        embeddings=np.concatenate([random_set(0).embeddings, one]), labels=np.zeros(201, np.int64)
    )
    with pytest.raises(ValueError, match="got 1 of 201 rows in both"):
        refuse_leak(mixed, random_set(1))
    mixed.save(tmp_path / "mixed")
    with pytest.raises(ValueError, match=r"without any of its rows .*embed exclude.* takes them"):
        refuse_leak(mixed, EmbeddingSet.open(private))
    Exclude(embeddings=private, public=(tmp_path / "mixed",), out=tmp_path / "rest").run()
    refuse_leak(mixed, EmbeddingSet.open(tmp_path / "rest"))
    assert len(EmbeddingSet.open(tmp_path / "rest")) == 199


def test_transformed_rows_of_0_2_say_whether_they_were_compared() -> None:
    whole = random_set(1)
    for made_by in ({"compared": True}, {"compared": False}, {}):
        rows = replace(whole, meta=whole.meta | {"transform": made_by})
        assert rows.is_compared is made_by.get("compared", False)


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
