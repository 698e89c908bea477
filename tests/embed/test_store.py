"""Sets of embeddings: on disk, without labels, compared, divided, and of several encoders."""

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
from embed.hold_out import HoldOut, random_keys, with_held_out
from embed.identity import false_positives, found, in_both, known_rows, refuse_leak, row_hashes
from embed.run import Exclude, FitTransform, Run
from pretrain.datasets import concatenate, decode_name
from pretrain.encoder import build_encoder, encoder_hash
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images
from tests.embed.conftest import embed
from tests.pretrain.conftest import encoded, put


def small_set(**changes: object) -> EmbeddingSet:
    fields: dict[str, object] = {
        "embeddings": np.arange(12, dtype=np.float32).reshape(4, 3),
        "labels": np.array([0, 1, 1, 0]),
        "users": np.array([7, 7, 8, 8]),
        "split": np.array([0, 0, 0, 1], np.uint8),
        "meta": {"class_names": ["a", "b"]},
    }
    return EmbeddingSet(**(fields | changes))  # pyright: ignore[reportArgumentType]


def test_a_saved_set_opens_the_same_and_is_kept(tmp_path: Path) -> None:
    original = small_set()
    original.save(tmp_path / "set")
    opened = EmbeddingSet.open(tmp_path / "set")
    assert isinstance(opened.embeddings, np.memmap)
    for name in ("embeddings", "labels", "users", "split"):
        assert np.array_equal(getattr(opened, name), getattr(original, name))
    assert opened.meta["class_names"] == ["a", "b"]
    assert opened.content_hash() == original.content_hash()
    with pytest.raises(FileExistsError, match="must not exist"):
        small_set().save(tmp_path / "set")
    small_set(users=None).save(tmp_path / "set", overwrite=True)
    assert EmbeddingSet.open(tmp_path / "set").users is None
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_subset_by_mask_and_slice() -> None:
    whole = small_set(meta={"content_hash": small_set().content_hash()})
    part = whole.subset(whole.split == 0)
    assert len(part) == 3
    assert np.asarray(part.users).tolist() == [7, 7, 8]
    assert part.content_hash() != whole.content_hash()
    assert np.shares_memory(whole.subset(slice(1, 3)).embeddings, whole.embeddings)


def test_the_content_hash_is_that_of_rows_however_they_are_stored(tmp_path: Path) -> None:
    half = small_set(embeddings=np.arange(12, dtype=np.float16).reshape(4, 3))
    assert half.content_hash() == small_set().content_hash()
    half.save(tmp_path / "set")
    np.save(tmp_path / "set" / "embeddings.npy", half.embeddings + 1)
    words = r"those of the content_hash in meta\.json, .* got changed"
    with pytest.raises(ValueError, match=words):
        EmbeddingSet.open(tmp_path / "set").content_hash()


NO_LABELS = "labels must be >= 0, or -1 in every row, got -"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"embeddings": np.zeros(4, np.float32)}, "embeddings must be a float"),
        ({"labels": [0, 1, 0, 1]}, "labels must be a NumPy array, got a list"),
        ({"labels": np.zeros(4)}, "labels must be 4 integers, got float64"),
        ({"users": np.array([[0, 0, 0, 0]])}, "users must be 4 integers"),
        ({"names": np.arange(4)}, r"names must be 4 strings, got int64 \(4,\)"),
        ({"names": np.array(["a", "b"])}, r"names must be 4 strings, got <U1 \(2,\)"),
        *[({"labels": np.array(few)}, NO_LABELS) for few in ([-1, -1, -1, 0], [0, -1, 0, 0])],
        ({"labels": np.full(4, -2)}, NO_LABELS),
    ],
)
def test_arrays_that_do_not_fit(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        small_set(**change)


def unlabelled(rows: int = 8, **changes: Any) -> EmbeddingSet:
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    names = np.array([f"ward/{k} ü.png" for k in range(rows)])
    fields = {"embeddings": x, "labels": np.full(rows, -1), "names": names}
    return EmbeddingSet(**(fields | changes))


def test_names_go_to_disk_and_back_and_follow_their_rows(tmp_path: Path) -> None:
    original = unlabelled()
    original.save(tmp_path / "set")
    opened = EmbeddingSet.open(tmp_path / "set")
    assert isinstance(opened.names, np.memmap)
    assert opened.names.dtype.kind == "S"
    assert [opened.name(k) for k in range(8)] == [f"ward/{k} ü.png" for k in range(8)]
    assert opened.place(3) == f"row 3 of {tmp_path}/set/embeddings.npy (ward/3 ü.png)"
    part = opened.subset(np.array([6, 1]))
    assert (part.name(0), part.place(1)) == ("ward/6 ü.png", "row 1 (ward/1 ü.png)")
    part.save(tmp_path / "again")
    assert EmbeddingSet.open(tmp_path / "again").name(1) == "ward/1 ü.png"
    assert unlabelled(names=None).name(5) == "row 5"


def test_public_rows_need_no_labels(tmp_path: Path) -> None:
    public = unlabelled()
    assert not public.labelled
    assert unlabelled(labels=np.zeros(8, np.int64)).labelled
    public.save(tmp_path / "public")
    command = FitTransform(public=tmp_path / "public", out=tmp_path / "out", components=2)
    command.run()
    loaded = PublicTransform.load(tmp_path / "out" / "transform.safetensors")
    assert loaded.between_class is None
    assert loaded.identifier == PublicTransform.fit(public, components=2).identifier
    assert loaded.fitted_on == public.content_hash()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["dim"] == 3
    with pytest.raises(FileExistsError):
        command.run()


def test_nan_names_file_row_and_image(tmp_path: Path) -> None:
    x = np.ones((8, 3), np.float32)
    x[5, 1] = np.nan
    unlabelled(embeddings=x).save(tmp_path / "set")
    opened = EmbeddingSet.open(tmp_path / "set")
    place = r"got nan in row 5 of .*set/embeddings\.npy \(ward/5 ü\.png\)"
    with pytest.raises(ValueError, match=f"public must be finite, {place}"):
        PublicTransform.fit(opened)
    with pytest.raises(ValueError, match=f"embeddings must be finite, {place}"):
        opened.check_finite()


def test_an_archive_without_labels(tmp_path: Path, row_numbers: Any) -> None:
    pixels = np.zeros((6, 8, 8), np.uint8)
    pixels[:, 0, 0] = range(6)
    np.savez(tmp_path / "set.npz", x_train=pixels, x_test=pixels[:2])
    images = open_npz(tmp_path / "set.npz")
    done = embed(images, row_numbers, tmp_path / "out")
    assert (done.labelled, done.meta["classes"], done.declared_classes) == (False, "none", ())
    assert done.embeddings[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


def test_files_of_a_folder_are_named_below_it(tmp_path: Path, row_numbers: Any) -> None:
    for value, file in enumerate(("train/a/1.png", "train/b/0.png", "test/a/1.png")):
        put(tmp_path / "pictures" / file, encoded(np.full((8, 8, 3), value, np.uint8)))
    images = open_images(str(tmp_path / "pictures"))
    assert concatenate([images, images]).take(np.array([4, 0])).image_name(0) == "train/b/0.png"
    done = embed(images.take(np.array([2, 1])), row_numbers, tmp_path / "out")
    assert [decode_name(name) for name in done.names] == ["test/a/1.png", "train/b/0.png"]


def user_rows(sizes: list[int], *, tests: int = 4, seed: int = 0) -> EmbeddingSet:
    draw, count = np.random.default_rng(seed), sum(sizes) + tests
    return EmbeddingSet(
        embeddings=draw.standard_normal((count, 5)).astype(np.float32),
        labels=draw.integers(0, 3, count),
        users=np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(tests, 99)]),
        split=np.repeat(np.array([0, 1], np.uint8), [sum(sizes), tests]),
        meta={"class_names": ["a", "b", "c"]},
    )


def counts(rows: EmbeddingSet, of: np.ndarray) -> list[int]:
    assert rows.users is not None
    return np.bincount(np.asarray(rows.users)[of]).tolist()


def test_every_user_gives_its_share_or_whole_users_go() -> None:
    source = user_rows([10, 3, 1, 2])
    held = with_held_out(source, 0.5)
    assert counts(source, held.split == 2) == [5, 2, 0, 1]
    assert np.array_equal(held.split == 1, source.split == 1)
    assert np.array_equal(held.embeddings, source.embeddings)
    assert with_held_out(user_rows([10], tests=0), 0.25).split.sum() == 2 * 3  # 2.5, rounded up
    whole = with_held_out(user_rows([4] * 10), 0.3, by="user")
    assert sorted(counts(whole, whole.split == 2))[-3:] == [4, 4, 4]
    assert (whole.split == 2).sum() == 3 * 4


def test_neither_content_nor_order_of_rows_changes_which_are_held_out() -> None:
    """A record that another class folder puts at another place takes its number with it."""
    source, draw = user_rows([6, 9, 5]), np.random.default_rng(5)
    keys, moved = random_keys(len(source)), draw.permutation(len(source))
    held = with_held_out(source, 0.4, keys=keys)
    shuffled = with_held_out(source.subset(moved), 0.4, keys=keys[moved])
    assert np.array_equal(shuffled.split, held.split[moved])
    other = user_rows([6, 9, 5], seed=1)
    drawn, same, new = (
        with_held_out(rows, 0.4, seed=seed).split
        for rows, seed in ((source, 0), (other, 0), (source, 1))
    )
    assert np.array_equal(drawn, same)
    assert not np.array_equal(drawn, new)


def test_the_operating_system_draws_every_row_alike() -> None:
    """Nobody can say beforehand which rows are held out: each is in a fifth of the draws."""
    source = user_rows([10], tests=0)
    found = np.stack([with_held_out(source, 0.2).split == 2 for _ in range(2000)])
    assert (found.sum(1) == 2).all()
    assert np.abs(found.mean(0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 2000)
    together = found[:, :, None] & found[:, None]  # pairs: 1 of 45
    pairs = together.mean(0)[np.triu_indices(10, 1)]
    assert np.abs(pairs - 1 / 45).max() < 5 * np.sqrt(1 / 45 / 2000)


def test_what_cannot_be_divided() -> None:
    once = with_held_out(user_rows([5, 5]), 0.4)
    for source, share, by, rule in (
        (user_rows([10, 10]), 0.5, "row", "by must be one of record, user"),
        (user_rows([10, 10]), 0.9, "user", r"and leave some, got 0\.9 by user"),
        (once.subset(once.split == 1), 0.4, "record", r"must hold training rows .*, got none"),
    ):
        with pytest.raises(ValueError, match=rule):
            with_held_out(source, share, by=by)  # pyright: ignore[reportArgumentType]


def test_the_command_holds_rows_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = user_rows([10, 10])
    mine.save(tmp_path / "mine")
    command = HoldOut(embeddings=tmp_path / "mine", share=0.2, out=tmp_path / "held")
    command.run()
    assert "16 rows to train on, 4 held out, in" in capsys.readouterr().out
    held = EmbeddingSet.open(tmp_path / "held")
    assert held.meta["held_out"] == {"share": 0.2, "by": "record", "seed": None}
    assert held.content_hash() == mine.content_hash()
    with pytest.raises(FileExistsError):
        command.run()


def fifty(seed: int = 0, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((50, dim)).astype(np.float32)


def held(x: np.ndarray) -> EmbeddingSet:
    return EmbeddingSet(embeddings=x, labels=np.zeros(len(x), np.int64))


@pytest.mark.parametrize("length", [1e-30, 1e-5, 2.0**-6, 1.0, 1000.0, 2.0**15, 1e6, 1e30])
def test_a_row_is_the_same_in_every_precision_and_order(length: float) -> None:
    x = fifty() * np.float32(length)
    expected = row_hashes(x)
    assert len(np.unique(expected)) == len(x)
    assert (row_hashes(x.astype(np.float64)) == expected).all()
    assert (row_hashes(x[::-1].copy())[::-1] == expected).all()
    assert (row_hashes(np.asfortranarray(x)) == expected).all()
    assert (row_hashes(x[:, ::1][7:9]) == expected[7:9]).all()


def test_rows_stored_as_float16_are_recognised() -> None:
    """Also those whose small entries float16 rounds to its subnormal numbers."""
    x = fifty(dim=64) * np.logspace(-6, 4, 64, dtype=np.float32)
    assert (row_hashes(x.astype(np.float16)) == row_hashes(x)).all()
    edge = np.array([[2**15 - 1e-3, 1], [2**-6 - 1e-10, 2**-9], [2**-6, 1e-7]], np.float32)
    assert (row_hashes(edge.astype(np.float16)) == row_hashes(edge)).all()


def test_rows_that_differ_by_more_than_the_sign_of_zero_are_others() -> None:
    """A computed-again row differs somewhere by more than half precision: nothing can tell."""
    x = fifty()
    x[:, 3] = 0.0
    negative = x.copy()
    negative[:, 3] = -0.0
    assert (row_hashes(x) == row_hashes(negative)).all()
    assert row_hashes(np.zeros((1, 4))) == row_hashes(np.array([[0, -0.0, 0, -0.0]], np.float16))
    scaled = np.array([[1.0, 2.0]]) * 2.0 ** np.arange(-60, 60)[:, None]
    for other in (scaled.astype(np.float32), scaled * 2.0**-900):
        assert len(np.unique(row_hashes(other))) == len(scaled)
    assert not found(row_hashes(fifty() * np.float32(1.01)), known_rows([fifty()])).any()


def test_what_was_found_is_what_is_there() -> None:
    known = known_rows([fifty(1), fifty(2)])
    both = row_hashes(np.concatenate([fifty(3), fifty(2)]))
    assert found(both, known).tolist() == [False] * 50 + [True] * 50
    assert not found(row_hashes(fifty(3)), known[:0]).any()
    assert false_positives(2**20, 2**24) == 2.0**-20


def test_no_private_row_passes_for_public_in_any_precision_or_company() -> None:
    """No share is tolerated: the row goes before the fit, or there is no fit."""
    private, public = held(fifty(1)), held(fifty(0))
    mixed = held(np.concatenate([public.embeddings, fifty(1)[3:4]]))
    others = [held(private.embeddings.astype(dtype)) for dtype in (np.float64, np.float16)]
    for other in (private, private.subset(slice(0, 5)), mixed, *others):
        with pytest.raises(ValueError, match=r"public must be another set .* rows in both"):
            refuse_leak(other, private)
    assert [in_both(other, private).sum() for other in others] == [50, 50]
    refuse_leak(public, private)
    refuse_leak(held(fifty(0, dim=4)), private)
    for made_by in ({"compared": True}, {"compared": False}, {}):
        transformed = replace(public, meta={"transform": made_by})
        assert transformed.is_compared is made_by.get("compared", False)
    words = r"without any of its rows .*embed exclude.* takes them .* got 1 of 51 rows in both"
    with pytest.raises(ValueError, match=words):
        refuse_leak(mixed, private)


def test_exclude_writes_private_rows_that_are_not_public(tmp_path: Path) -> None:
    private = np.concatenate([fifty(0), fifty(1)[::3].astype(np.float16)])
    for name, x in (("private", private), ("public", fifty(1)), ("blank", fifty(0)[:4])):
        held(x).save(tmp_path / name)
    out = tmp_path / "out"
    public = (tmp_path / "public", tmp_path / "blank")
    Exclude(embeddings=tmp_path / "private", public=public, out=out).run()
    kept = EmbeddingSet.open(out)
    assert len(kept) == 46
    assert np.array_equal(kept.embeddings, fifty(0)[4:])
    refuse_leak(held(np.concatenate([fifty(1), fifty(0)[:4]])), kept)


NAME = "concat:timm:resnet10t@32+simclr-small@16"


def embedded(data: Path, out: Path, encoder: str, **options: object) -> EmbeddingSet:
    weights = "random" if "timm" in encoder else None
    Run(data=str(data), encoder=encoder, weights=weights, out=out, **options).run()  # type: ignore[arg-type]
    return EmbeddingSet.open(out)


def joined(sets: list[Path], out: Path) -> EmbeddingSet:
    return EmbeddingSet.open(Concat(sets=tuple(sets), out=out).run())


@pytest.fixture
def both(tmp_path: Path, archive: Path) -> list[Path]:
    """A set of each encoder of `NAME`."""
    for number, name in enumerate(("timm:resnet10t@32", "simclr-small@16")):
        embedded(archive, tmp_path / f"{number}", name)
    return [tmp_path / "0", tmp_path / "1"]


def test_sets_joined_later_are_those_made_at_once(tmp_path: Path, archive: Path, both) -> None:
    """Bit for bit, with the same encoding, by which both serve one model."""
    once = embedded(archive, tmp_path / "once", NAME)
    later = joined(both, tmp_path / "later")
    for name in ("embeddings", "labels", "users", "split"):
        assert np.array_equal(getattr(once, name), getattr(later, name))
    assert once.encoding == later.encoding
    assert once.encoding is not None
    assert once.encoding.encoder_hash == encoder_hash(build_encoder(NAME, weights="random"))
    assert (once.encoding.encoder, once.encoding.weights) == (NAME, "random+shipped")
    assert once.parts == later.parts == (512, 1280)
    assert once.content_hash() == later.content_hash()


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


def test_what_cannot_be_joined_is_named(tmp_path: Path, archive: Path, both) -> None:
    first, second = both
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
    how = {"encoder": "simclr-small", "encoder_hash": "a", "weights": "shipped"}
    known = Encoding.from_json(how | {"preprocess": {"invert": True}})
    made = Encoding.joined([known, known])
    assert made.preprocess.invert
    assert json.loads(made.metadata()["encoding"])["weights"] == "shipped+shipped"
    plain = replace(known, preprocess=replace(known.preprocess, invert=False))
    assert Encoding.joined([plain, plain]).encoder_hash == made.encoder_hash
    with pytest.raises(ValueError, match="inverted pictures, or none"):
        Encoding.joined([known, plain])
