"""Writers of the public set are in no part of the private one."""

from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.benchmarks.split_by_writer import SplitByWriter


def test_every_other_test_writer_donates_all_of_their_rows(tmp_path: Path) -> None:
    rows, users = np.arange(24, dtype=np.float32)[:, None], np.arange(24) // 3
    split = (users >= 4).astype(np.uint8)
    source = EmbeddingSet(embeddings=rows, labels=np.arange(24) % 2, users=users, split=split)
    source.save(tmp_path / "source")
    places = [tmp_path / name for name in ("source", "private", "public")]
    SplitByWriter(*places).run()
    private, public = (EmbeddingSet.open(place) for place in places[1:])
    assert set(np.asarray(public.users).tolist()) == {4, 6}
    assert not public.split.any()
    assert set(np.asarray(private.users).tolist()) == {0, 1, 2, 3, 5, 7}
    assert private.split.tolist() == [0] * 12 + [1] * 6
    both = np.concatenate([private.embeddings, public.embeddings])
    assert sorted(both[:, 0].tolist()) == rows[:, 0].tolist()


def test_a_set_without_writers_is_refused(tmp_path: Path) -> None:
    rows = np.eye(4, dtype=np.float32)
    EmbeddingSet(embeddings=rows, labels=np.arange(4) % 2).save(tmp_path / "source")
    with pytest.raises(ValueError, match="source must name its users, got none"):
        SplitByWriter(tmp_path / "source", tmp_path / "private", tmp_path / "public").run()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
