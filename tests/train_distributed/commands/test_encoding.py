"""Rows of two encoders or of two sizes never meet: not by any door, and the message names both."""

import functools
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from embed import EmbeddingSet, PublicTransform
from embed.concat import Concat
from embed.encoding import Encoding, refuse_other
from embed.hold_out import with_held_out
from embed.identity import refuse_leak
from embed.run import Run
from pretrain.preprocess import Preprocess, Size, pair
from tests.embedding_sets import clusters
from tests.train_distributed.sized_pictures import OTHER, SAME, draw, embedded, tiny_encoder
from train_distributed import Privacy, release
from train_distributed.commands.options import RunConfig
from train_distributed.one_shot.source import validate

pytestmark = pytest.mark.usefixtures("no_pictures")
SHIPPED: Any = {"encoder": "simclr-small", "encoder_hash": "a" * 64, "weights": "shipped"}
OURS = Encoding(**SHIPPED, preprocess=Preprocess())
OTHERS = {
    "encoder": replace(OURS, encoder="timm:resnet18", encoder_hash="b" * 64, weights="hub"),
    "size": replace(OURS, preprocess=Preprocess(image_size=64)),
    "crop": replace(OURS, preprocess=Preprocess(crop=0.875)),
    "invert": replace(OURS, preprocess=Preprocess(invert=True)),
}


def rows(seed: int, encoding: Encoding | None, **meta: Any) -> EmbeddingSet:
    made = clusters(40, 2, 5, noise=1.0, seed=seed, test=8, users=10)
    known = {} if encoding is None else encoding.to_json()
    return replace(made, meta=made.meta | meta | known)


def test_a_set_says_what_made_it() -> None:
    assert rows(0, OURS).encoding == OURS
    assert rows(0, OURS).subset(slice(0, 4)).encoding == OURS
    assert rows(0, None).encoding is None
    assert rows(0, None, encoder="reference implementation").encoding is None
    assert rows(0, OURS, transform={"compared": True}).encoding is None  # other rows than those


def test_sets_of_older_versions_stay_comparable_and_paths_are_not_compared() -> None:
    """They do not say which weights, and their preprocessing has fewer fields."""
    refuse_other(None, None)
    refuse_other(OURS, replace(OURS, encoder="/elsewhere/encoder.safetensors", weights="file e"))
    old = OURS.to_json() | {"preprocess": {"image_size": None, "crop": 1.0, "invert": False}}
    del old["weights"]
    read = Encoding.of(old)
    assert read is not None
    assert (read.weights, read.preprocess) == ("unknown", OURS.preprocess)
    refuse_other(read, OURS)
    with pytest.raises(ValueError, match="one encoder"):
        refuse_other(read, OTHERS["encoder"])
    sizes = ("as in the paper", {"sizes": 3}, {"crop": "most"}, {"crop": 2.0})
    broken = [{"preprocess": each} for each in sizes]
    for each in (*broken, {"encoder_hash": 3}, {"weights": ["hub"]}):
        with pytest.raises(ValueError, match=r"must (be|have)"):
            Encoding.of(OURS.to_json() | each)


def test_a_transform_keeps_it(tmp_path: Path) -> None:
    fitted, old = PublicTransform.fit(rows(0, OURS)), tmp_path / "old.safetensors"
    fitted.save(tmp_path / "t.safetensors")
    loaded = PublicTransform.load(tmp_path / "t.safetensors")
    assert fitted.encoding == loaded.encoding == OURS
    assert fitted.same_rows(replace(loaded, encoding=None))
    save_file(loaded.tensors(), old)
    assert PublicTransform.load(old).encoding is None
    for unknown in (rows(0, None), rows(0, OURS).embeddings):
        assert PublicTransform.fit(unknown).encoding is None
    save_file(loaded.tensors(), old, {"encoding": "null"})
    with pytest.raises(ValueError, match=r"old\.safetensors: encoding must be readable"):
        PublicTransform.load(old)


def of(pictures: Size | None, **given: Any) -> Encoding:
    return replace(OURS, preprocess=Preprocess(pictures=pictures, **given))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (of(32), of(32, image_size=32)),
        (of(32), of(32, image_size=32, fit="longest", border=(0.5, 0.5, 0.5))),
        (of((32, 48)), of((32, 48), image_size=(32, 48), fit="squash", interpolation="nearest")),
        (of(64, image_size=56, crop=0.875), of(64, image_size=56, fit="shortest", resize=64)),
        (of(64, image_size=32), of(64, image_size=32, fit="squash")),
        (of(10, crop=0.99), of(10)),
    ],
)
def test_what_does_the_same_is_the_same(one: Encoding, other: Encoding) -> None:
    """Also to the pixels, of which these are the rows."""
    refuse_other(one, other)
    refuse_other(other, one)
    size = one.preprocess.pictures
    assert size is not None
    pixels = torch.randint(0, 256, (2, 3, *pair(size)), dtype=torch.uint8)
    assert torch.equal(one.preprocess(pixels), other.preprocess(pixels))
    assert Encoding.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (of(32), of(33)),
        (of(32, image_size=32), of(64, image_size=32)),
        (of((32, 48)), of((48, 32))),
        (of(64, image_size=128), of(64, image_size=128, fit="squash")),  # another kernel
        (of(64, image_size=32), of(64, image_size=32, interpolation="bilinear")),
        (of(64, image_size=80, fit="longest", resize=64), of(64, image_size=80)),
        *((OURS, other) for other in OTHERS.values()),
    ],
)
def test_what_does_another_thing_is_another(one: Encoding, other: Encoding) -> None:
    how = "with one preprocessing" if one.encoder == other.encoder else "by one encoder"
    with pytest.raises(ValueError, match=f"theirs and mine must be embedded {how}") as caught:
        refuse_other(one, other, ("theirs", "mine"))
    assert {str(one), str(other)} == set(str(caught.value).partition(", got ")[2].split(" and "))
    assert str(one) != str(other)


@pytest.mark.parametrize("size", [None, 32])
def test_what_does_not_say_its_size_must_be_made_again(size: Size | None, tmp_path: Path) -> None:
    """A transform of an earlier version: nothing is taken for granted. Two of them as before."""
    public = PublicTransform.fit(rows(0, of(None, image_size=size)))
    private = rows(1, of(32, image_size=size))
    with pytest.raises(ValueError, match=r"transform must say of what size .*fit it again") as told:
        validate(private, public, None, discrete=True)
    assert "\n" not in str(told.value)
    validate(rows(1, of(None, image_size=size)), public, None, discrete=True)
    for shape in ([3, 32, 32], [3, 30, 32]):  # an earlier set says it by its pictures' shape
        older = rows(2, of(None, image_size=size), image_shape=shape)
        assert older.encoding == of((shape[1], shape[2]), image_size=size)


def test_a_size_that_contradicts_itself_is_refused() -> None:
    for shape in ([3, 24, 24], [3, 32], [3, 32, 32.0], "32", [3, 0, 32]):
        with pytest.raises(ValueError, match=r"pictures must be 32 x 32 px|three sizes > 0"):
            _ = rows(0, of(32), image_shape=shape).encoding
    sizes: list[Any] = [0, -1, 1.5, (3,), (3, 4, 5), True]
    for size in sizes:
        with pytest.raises(ValueError, match="pictures must be >= 1"):
            Preprocess(pictures=size)


def by_release(public: EmbeddingSet, private: EmbeddingSet) -> None:
    transform = PublicTransform.fit(public)
    release(private, "discriminant", Privacy(1.0, 1e-5), transform=transform, sums=1)


@pytest.mark.parametrize("door", [by_release, refuse_leak])
def test_no_function_lets_them_meet(door: Callable[[EmbeddingSet, EmbeddingSet], None]) -> None:
    for known, other in ((OURS, OURS), (None, OURS), (OURS, None)):  # what is unknown may meet all
        door(rows(0, known), rows(1, other))
    for other in ("encoder", "size"):
        with pytest.raises(ValueError, match="must be embedded") as caught:
            door(rows(0, OTHERS[other]), rows(1, OURS))
        assert str(OTHERS[other]) in str(caught.value)
        assert str(OURS) in str(caught.value)


Place = Callable[[str], Path]


def build(root: Path, name: str) -> Path:
    """Public and private sets of one spelling, a transform, a model and a configuration."""
    kind, _, spelling = name.partition(" ")
    at, seed = root / name, len(list(root.iterdir()))
    at.mkdir()
    (at / "network.safetensors").symlink_to(root / "network.safetensors")
    given = {"same": SAME, "other": OTHER}[kind][spelling]
    embedded(at, "public", 10 * seed, **given)
    private = EmbeddingSet.open(embedded(at, "private", 10 * seed + 1, **given))
    public = EmbeddingSet.open(at / "public")
    transform = PublicTransform.fit(public, components=4)
    transform.save(at / "transform.safetensors")
    owned = replace(private, users=np.arange(len(private)) % 4)
    owned.save(at / "owned")
    with_held_out(owned, 0.5).save(at / "held")
    promise = Privacy(9.0, 1e-5)
    release(owned, "discriminant", promise, transform=transform, sums=1).save(at / "model")
    options = {"components": 4}
    chosen = RunConfig("discriminant", options, promise, encoding=public.encoding)
    (at / "config.json").write_text(chosen.text())
    return at


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """(KIND SPELLING) -> folder of what is built of it, once."""
    root = tmp_path_factory.mktemp("sizes")
    tiny_encoder(root / "network.safetensors")

    @functools.cache
    def made(name: str) -> Path:
        with redirect_stdout(io.StringIO()):
            return build(root, name)

    return made


RUN = "run --epsilon 9 --ledger none"
SUMS = "--method discriminant --sums 1"
EVALUATE = "evaluate --ledger none"
LINES = {  # of two folders, A and B
    "set and set: run": f"{RUN} {SUMS} --components 4 --public A/public --embeddings B/owned",
    "set and set: exclude": "embed exclude --public A/public --embeddings B/owned",
    "set and set: examples": f"{RUN} --public B/public --embeddings B/owned --components 2 "
    "--examples A/private",
    "set and set: evaluate, training": f"{EVALUATE} --model B/model --embeddings B/held "
    "--training A/public",
    "transform and set: run": f"{RUN} {SUMS} --public A/transform.safetensors --embeddings B/owned",
    "transform and set: join": "federation join --folder party --name clinic "
    "--transform A/transform.safetensors --embeddings B/owned",
    "model and set: predict": "predict --model A/model --embeddings B/owned",
    "model and set: evaluate": f"{EVALUATE} --model A/model --embeddings B/held",
    "configuration and sets: run": f"{RUN} --config A/config.json --public B/public "
    "--embeddings B/owned",
}


def line(door: str, a: Path, b: Path) -> str:
    return LINES[door].replace("A/", f"'{a}'/").replace("B/", f"'{b}'/")


PREDICT = "model and set: predict"


@pytest.mark.parametrize(
    ("door", "other"),
    [
        *((door, other) for door in LINES for other in ("resize", "as stored")),
        *((PREDICT, other) for other in OTHER if other not in ("resize", "as stored")),
    ],
)
def test_two_that_differ_are_refused_and_both_named(say, place, tmp_path, door, other) -> None:
    ours, theirs = place("same resize"), place(f"other {other}")
    encodings = [EmbeddingSet.open(each / "public").encoding for each in (ours, theirs)]
    both = [f"{each.preprocess})" for each in encodings if each]
    assert both[0] == "32 x 32 px)"
    for a, b in ((ours, theirs), (theirs, ours)):
        say.refused(line(door, a, b), "must be embedded with one preprocessing", *both)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("door", "same"),
    [*((door, "image-size") for door in LINES), *((PREDICT, same) for same in list(SAME)[2:])],
)
def test_one_thing_in_other_words_is_accepted(say, place: Place, door: str, same: str) -> None:
    ours, theirs = place("same resize"), place(f"same {same}")
    for a, b in ((ours, theirs), (theirs, ours)):
        say.done(line(door, a, b))


@pytest.mark.parametrize("size", [32, 24, 40])
def test_equal_spellings_give_equal_rows(tmp_path: Path, size: int) -> None:
    """To the bit, so that a picture in both sets is found, whatever its shape."""
    encoder = str(tiny_encoder(tmp_path / "network.safetensors"))
    for shape in ((40, 40), (40, 57), (61, 40)):
        data = str(draw(tmp_path / str(shape), 3, 5, shape))
        rows = []
        for after, resize in (("", size), (f"@{size}", None)):
            out = tmp_path / f"{shape} {resize}"
            Run(data=data, encoder=encoder + after, out=out, resize=resize).run()
            rows.append(EmbeddingSet.open(out).embeddings)
        assert np.array_equal(*rows)


def test_sets_of_pictures_brought_to_two_sizes_are_not_joined(tmp_path: Path) -> None:
    """The encoder that they would name is another; with --resize it is the one."""
    data, names = str(draw(tmp_path / "pictures", 3, 0)), ("simclr-small@24", "simclr-small@32")
    sets = {resize: tuple(tmp_path / f"{resize} {name}" for name in names) for resize in (None, 40)}
    for resize, folders in sets.items():
        for name, out in zip(names, folders, strict=True):
            Run(data=data, encoder=name, out=out, resize=resize).run()
    with pytest.raises(ValueError, match=r"one size \(with one --resize.* 24 x 24 px.* 32 x 32 px"):
        Concat(sets=sets[None], out=tmp_path / "joined").run()
    joined = EmbeddingSet.open(Concat(sets=sets[40], out=tmp_path / "joined").run())
    Run(data=data, encoder=f"concat:{'+'.join(names)}", out=tmp_path / "once").run()
    once = EmbeddingSet.open(tmp_path / "once")
    assert np.array_equal(joined.embeddings, once.embeddings)
    assert joined.encoding == once.encoding
