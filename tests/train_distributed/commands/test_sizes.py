"""Sets, transforms, models and configurations meet only where a picture becomes one thing."""

import functools
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from embed.concat import Concat
from embed.hold_out import with_held_out
from embed.run import Run
from tests.train_distributed.sized_pictures import OTHER, SAME, draw, embedded, tiny_encoder
from train_distributed import Privacy, release
from train_distributed.commands.options import RunConfig

pytestmark = pytest.mark.usefixtures("no_pictures")


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
DOORS = {  # of two folders, A and B
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
    return DOORS[door].replace("A/", f"'{a}'/").replace("B/", f"'{b}'/")


PREDICT = "model and set: predict"


def described(folder: Path) -> str:
    encoding = EmbeddingSet.open(folder / "public").encoding
    assert encoding is not None
    return str(encoding.preprocess)


@pytest.mark.parametrize(
    ("door", "other"),
    [
        *((door, other) for door in DOORS for other in ("resize", "as stored")),
        *((PREDICT, other) for other in OTHER if other not in ("resize", "as stored")),
    ],
)
def test_two_that_differ_are_refused_and_both_named(
    say, place: Place, tmp_path: Path, door: str, other: str
) -> None:
    ours, theirs = place("same resize"), place(f"other {other}")
    for a, b in ((ours, theirs), (theirs, ours)):
        both = (f"{described(each)})" for each in (a, b))
        say.refused(line(door, a, b), "must be embedded with one preprocessing", *both)
    assert described(ours) == "32 x 32 px"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("door", "same"),
    [*((door, "image-size") for door in DOORS), *((PREDICT, same) for same in list(SAME)[2:])],
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
        for name, after, resize in (("a", "", size), ("b", f"@{size}", None)):
            out = tmp_path / f"{shape} {name}"
            Run(data=data, encoder=encoder + after, out=out, resize=resize).run()
            rows.append(EmbeddingSet.open(out).embeddings)
        assert np.array_equal(*rows)


def test_a_configuration_says_what_it_was_chosen_on(place: Place, tmp_path: Path) -> None:
    path = place("same resize") / "config.json"
    assert json.loads(path.read_text())["encoding"]["preprocess"]["pictures"] == 32
    chosen = RunConfig.read(path)
    assert chosen.encoding == EmbeddingSet.open(place("same resize") / "public").encoding
    older = json.loads(path.read_text())
    del older["encoding"]
    (tmp_path / "old.json").write_text(json.dumps(older))
    assert RunConfig.read(tmp_path / "old.json").encoding is None


def test_sets_of_pictures_brought_to_two_sizes_are_not_joined(tmp_path: Path) -> None:
    """The encoder that they would name is another; with --resize it is the one."""
    data, names = str(draw(tmp_path / "pictures", 3, 0)), ("simclr-small", "mirrored:simclr-small")
    for folder, resize in (("bare", None), ("sized", 40)):
        for size, name in zip((24, 32), names, strict=True):
            out = tmp_path / folder / str(size)
            Run(data=data, encoder=f"{name}@{size}", out=out, resize=resize).run()
    sets = [tmp_path / "bare" / size for size in ("24", "32")]
    with pytest.raises(ValueError, match=r"one size \(with one --resize.* 24 x 24 px.* 32 x 32 px"):
        Concat(sets=tuple(sets), out=tmp_path / "joined").run()
    sets = [tmp_path / "sized" / size for size in ("24", "32")]
    joined = EmbeddingSet.open(Concat(sets=tuple(sets), out=tmp_path / "joined").run())
    together = "concat:simclr-small@24+mirrored:simclr-small@32"
    Run(data=data, encoder=together, out=tmp_path / "once").run()
    once = EmbeddingSet.open(tmp_path / "once")
    assert np.array_equal(joined.embeddings, once.embeddings)
    assert joined.encoding == once.encoding
