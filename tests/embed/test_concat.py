"""Rows of several encoders side by side, made at once or joined later, and their transforms."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.concat import Concat
from embed.encoding import Encoding
from embed.run import Run
from pretrain.encoder import build_encoder, encoder_hash

NAME = "concat:timm:resnet10t@32+simclr-small@16"


def embedded(data: Path, out: Path, encoder: str, **options: object) -> EmbeddingSet:
    weights = "random" if "timm" in encoder else None
    Run(data=str(data), encoder=encoder, weights=weights, out=out, **options).run()  # type: ignore[arg-type]
    return EmbeddingSet.open(out)


def both(data: Path, folder: Path) -> list[Path]:
    parts = {"timm:resnet10t": 32, "simclr-small": 16}
    for number, (name, size) in enumerate(parts.items()):
        embedded(data, folder / f"{number}", f"{name}@{size}")
    return [folder / "0", folder / "1"]


def joined(sets: list[Path], out: Path) -> EmbeddingSet:
    return EmbeddingSet.open(Concat(sets=tuple(sets), out=out).run())


def test_sets_joined_later_are_those_made_at_once(tmp_path: Path, archive: Path) -> None:
    """Bit for bit, with the same encoding, by which both serve one model."""
    once = embedded(archive, tmp_path / "once", NAME)
    later = joined(both(archive, tmp_path), tmp_path / "later")
    assert np.array_equal(once.embeddings, later.embeddings)
    for name in ("labels", "users", "split"):
        assert np.array_equal(getattr(once, name), getattr(later, name))
    assert once.encoding == later.encoding
    assert once.encoding is not None
    built = build_encoder(NAME, weights="random")
    assert once.encoding.encoder_hash == encoder_hash(built)
    assert (once.encoding.encoder, once.encoding.weights) == (NAME, "random+shipped")
    assert once.parts == later.parts == (512, 1280)
    assert once.content_hash() == later.content_hash()


def test_one_picture_changes_its_own_row_alone(tmp_path: Path, archive: Path) -> None:
    held = dict(np.load(archive))
    held["x_train"] = held["x_train"].copy()
    held["x_train"][7] = 255 - held["x_train"][7]
    neighbour = tmp_path / "neighbour.npz"
    np.savez(neighbour, **held)
    first, second = (
        np.asarray(embedded(place, tmp_path / place.stem, NAME).embeddings)
        for place in (archive, neighbour)
    )
    assert (first != second).any(1).nonzero()[0].tolist() == [7]


def test_a_transform_gives_each_encoder_the_same_public_variance() -> None:
    """So the unit of an encoder makes no difference."""
    options: dict[str, Any] = {"components": 6, "clip_quantile": 0.4}
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((20, 20)) * np.geomspace(1, 0.05, 20)[:, None]
    public, private = sets = [
        EmbeddingSet(embeddings=x, labels=np.arange(len(x)) % 5, meta={"parts": [12, 8]})
        for x in (rng.standard_normal((n, 20)) @ mixing + 3 for n in (300, 50))
    ]
    expected = PublicTransform.fit(public, **options)(private.embeddings)
    unit = np.repeat([100.0, 1.0], [12, 8])
    other = [replace(each, embeddings=each.embeddings * unit) for each in sets]
    found = PublicTransform.fit(other[0], **options)(other[1].embeddings)
    same = (found * expected).sum(0).sign()  # that of a direction hangs on its largest entry
    torch.testing.assert_close(found * same, expected, atol=2e-5, rtol=0)
    one = [replace(each, meta={}) for each in other]  # as of one encoder, whose first part rules
    ruled = PublicTransform.fit(one[0], **options)(one[1].embeddings)
    assert (ruled - expected).abs().max() > 0.1


def test_what_cannot_be_joined_is_named(tmp_path: Path, archive: Path) -> None:
    first, second = both(archive, tmp_path)
    half, whole = tmp_path / "half", tmp_path / "joined"
    assert len(embedded(archive, half, "simclr-small", splits=("train",))) < 100
    joined([first, second], whole)
    bare = [tmp_path / "bare0", tmp_path / "bare1"]
    for place in bare:
        replace(EmbeddingSet.open(second), meta={}).save(place)
    for given, rule in (
        ([first], "two of one encoder each"),
        ([first, half], "the same pictures in the same order"),
        ([first, whole], "two of one encoder each"),
        ([second, bare[0]], "the same pictures"),
        (bare, r"must say which encoder made them, got none in .*bare0"),
    ):
        with pytest.raises(ValueError, match=rule):
            joined(given, tmp_path / "out")
    with pytest.raises(ValueError, match="parts must be whole and come to 1280 columns"):
        _ = replace(EmbeddingSet.open(second), meta={"parts": [500, 13]}).parts


def test_inverted_pictures_are_inverted_once() -> None:
    known = Encoding.from_json(
        {
            "encoder": "simclr-small",
            "encoder_hash": "a",
            "weights": "shipped",
            "preprocess": {"invert": True},
        }
    )
    made = Encoding.joined([known, known])
    assert made.preprocess.invert
    assert json.loads(made.metadata()["encoding"])["weights"] == "shipped+shipped"
    plain = replace(known, preprocess=replace(known.preprocess, invert=False))
    assert Encoding.joined([plain, plain]).encoder_hash == made.encoder_hash
    with pytest.raises(ValueError, match="inverted pictures, or none"):
        Encoding.joined([known, plain])
