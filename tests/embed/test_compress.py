"""A transform fitted on public coordinates gives the rows of one fitted on whole embeddings."""

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.compress import Compression


@pytest.fixture
def sets() -> tuple[EmbeddingSet, EmbeddingSet]:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((20, 20)) * np.geomspace(1, 0.05, 20)[:, None]
    public, private = (
        EmbeddingSet(
            embeddings=(rng.standard_normal((n, 20)) @ mixing + 3).astype(np.float32),
            labels=np.zeros(n, np.int64),
        )
        for n in (300, 50)
    )
    return public, private


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(("components", "shrinkage"), [(8, 0.01), (5, 0.3), (8, 0.0), (8, 1.0)])
def test_rows_are_those_of_the_whole_embeddings(sets, whiten, components, shrinkage, exact):
    public, private = sets
    options = {"components": components, "whiten": whiten, "shrinkage": shrinkage}
    whole = PublicTransform.fit(public, clip_quantile=0.4, **options)
    compression = Compression.fit(public, 8, exact=exact)
    small = compression.fit_transform(compression.apply(public), clip_quantile=0.4, **options)
    expected = whole(private.embeddings)
    found = small(compression.apply(private).embeddings)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(small.covariance, whole.covariance, atol=1e-4, rtol=0)


def test_split_users_and_labels_stay(sets):
    public, _ = sets
    named = EmbeddingSet(
        embeddings=public.embeddings,
        labels=np.arange(300) % 3,
        users=np.arange(300) % 7,
        split=(np.arange(300) % 2).astype(np.uint8),
        meta={"class_names": list("abc"), "content_hash": "of the whole"},
    )
    small = Compression.fit(public, 4).apply(named)
    for name in ("labels", "users", "split"):
        np.testing.assert_array_equal(getattr(small, name), getattr(named, name))
    assert small.meta == {"class_names": list("abc")}
    assert small.content_hash() != "of the whole"


def test_refuses_too_many_components_and_bad_rows(sets):
    public, private = sets
    with pytest.raises(ValueError, match=r"components must be in \[1, 20\], got 21"):
        Compression.fit(public, 21)
    broken = private.embeddings.copy()
    broken[3, 4] = np.nan
    with pytest.raises(ValueError, match="embeddings must be finite, got nan in row 3"):
        Compression.fit(public, 4).apply(EmbeddingSet(embeddings=broken, labels=private.labels))
