"""Sets, transforms, models and configurations meet only where a picture becomes one thing."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.concat import Concat
from embed.hold_out import with_held_out
from embed.run import Run
from pretrain.encoder import load_encoder
from pretrain.preprocess import pair
from tests.train_distributed.sized_pictures import (
    OTHER,
    SAME,
    draw,
    embedded,
    tiny_encoder,
)
from train_distributed import Privacy, Release, release
from train_distributed.commands.options import RunConfig

Call = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every spelling as a public and a private set, with a transform, a model, a configuration."""
    root = tmp_path_factory.mktemp("sizes")
    for kind, spellings in (("same", SAME), ("other", OTHER)):
        for number, (name, spelling) in enumerate(spellings.items()):
            at = root / f"{kind} {name}"
            at.mkdir()
            (at / "network.safetensors").symlink_to(root / "network.safetensors")
            if not (root / "network.safetensors").exists():
                tiny_encoder(root / "network.safetensors")
            of = 100 * len(kind) + 10 * number
            public, private = (
                EmbeddingSet.open(embedded(at, part, of + seed, **spelling))
                for seed, part in enumerate(("public", "private"))
            )
            transform = PublicTransform.fit(public, components=4)
            transform.save(at / "transform.safetensors")
            owned = EmbeddingSet(
                embeddings=private.embeddings,
                labels=private.labels,
                users=np.arange(len(private)) % 4,
                meta=private.meta,
            )
            owned.save(at / "owned")
            with_held_out(owned, 0.5).save(at / "held")
            found = release(owned, "discriminant", Privacy(9.0, 1e-5), transform=transform, sums=1)
            found.save(at / "model")
            chosen = RunConfig(
                "discriminant",
                {"components": 4},
                Privacy(9.0, 1e-5),
                encoding=public.encoding,
            )
            (at / "config.json").write_text(chosen.text())
    return root


RUN = ("run", "--epsilon", "9", "--ledger", "none")
DOORS: dict[str, Callable[[Path, Path], list[str]]] = {
    "set and set: run": lambda a, b: [
        *(*RUN, "--method", "discriminant", "--sums", "1", "--components", "4"),
        *("--public", f"{a}/public", "--embeddings", f"{b}/owned"),
    ],
    "set and set: exclude": lambda a, b: [
        *("embed", "exclude", "--public", f"{a}/public", "--embeddings", f"{b}/owned"),
    ],
    "set and set: examples": lambda a, b: [
        *(*RUN, "--public", f"{b}/public", "--embeddings", f"{b}/owned"),
        *("--components", "2", "--examples", f"{a}/private"),
    ],
    "set and set: evaluate, training": lambda a, b: [
        *("evaluate", "--model", f"{b}/model", "--embeddings", f"{b}/held", "--ledger", "none"),
        *("--training", f"{a}/public"),
    ],
    "transform and set: run": lambda a, b: [
        *(*RUN, "--method", "discriminant", "--sums", "1"),
        *("--public", f"{a}/transform.safetensors", "--embeddings", f"{b}/owned"),
    ],
    "transform and set: join": lambda a, b: [
        *("federation", "join", "--folder", "party", "--name", "clinic"),
        *("--transform", f"{a}/transform.safetensors", "--embeddings", f"{b}/owned"),
    ],
    "model and set: predict": lambda a, b: [
        *("predict", "--model", f"{a}/model", "--embeddings", f"{b}/owned"),
    ],
    "model and set: evaluate": lambda a, b: [
        *("evaluate", "--model", f"{a}/model", "--embeddings", f"{b}/held", "--ledger", "none"),
    ],
    "configuration and sets: run": lambda a, b: [
        *(*RUN, "--config", f"{a}/config.json"),
        *("--public", f"{b}/public", "--embeddings", f"{b}/owned"),
    ],
}


def described(root: Path, name: str) -> str:
    encoding = EmbeddingSet.open(root / name / "public").encoding
    assert encoding is not None
    return str(encoding.preprocess)


@pytest.mark.parametrize("other", OTHER)
@pytest.mark.parametrize("door", DOORS)
def test_two_that_differ_are_refused_and_both_named(
    say: Call, place: Path, tmp_path: Path, door: str, other: str
) -> None:
    ours, theirs = "same resize", f"other {other}"
    for a, b in ((ours, theirs), (theirs, ours)):
        code, _, error = say(*DOORS[door](place / a, place / b))
        assert code == 2
        assert error.count("\n") == 1
        assert "must be embedded with one preprocessing" in error
        assert described(place, a) + ")" in error
        assert described(place, b) + ")" in error
    assert described(place, ours) == "32 x 32 px"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("same", list(SAME)[1:])
@pytest.mark.parametrize("door", DOORS)
def test_one_thing_in_other_words_is_accepted(
    say: Call, place: Path, tmp_path: Path, door: str, same: str
) -> None:
    for a, b in (("same resize", f"same {same}"), (f"same {same}", "same resize")):
        code, _, error = say(*DOORS[door](place / a, place / b))
        assert (code, error) == (0, "")


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


def test_a_configuration_says_what_it_was_chosen_on(place: Path, tmp_path: Path) -> None:
    path = place / "same resize" / "config.json"
    assert json.loads(path.read_text())["encoding"]["preprocess"]["pictures"] == 32
    chosen = RunConfig.read(path)
    assert chosen.encoding == EmbeddingSet.open(place / "same resize" / "public").encoding
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
    Run(
        data=data,
        encoder="concat:simclr-small@24+mirrored:simclr-small@32",
        out=tmp_path / "once",
    ).run()
    once = EmbeddingSet.open(tmp_path / "once")
    assert np.array_equal(joined.embeddings, once.embeddings)
    assert joined.encoding == once.encoding


@pytest.mark.parametrize("name", OTHER)
def test_pictures_of_any_shapes_meet_one_model(
    call: Call, place: Path, tmp_path: Path, name: str
) -> None:
    """Side by side in one folder; each is scaled until it covers the size, then cut to it."""
    for number, shape in enumerate([(70, 51), (33, 90), (20, 20)]):
        for path in draw(tmp_path / f"{number}", 2, number, shape).rglob("*.png"):
            (tmp_path / "mixed" / path.parent.name).mkdir(parents=True, exist_ok=True)
            path.rename(tmp_path / "mixed" / path.parent.name / f"{number}{path.name}")
    model, network = place / f"other {name}" / "model", place / "network.safetensors"
    given = ("--model", str(model), "--data", str(tmp_path / "mixed"), "--encoder", str(network))
    assert call("predict", *given, "--out", str(tmp_path / "out"))[0] == 0
    released, encoder = Release.load(model), load_encoder(network)
    assert released.encoding is not None
    preprocess = released.encoding.preprocess
    rows, columns = pair(preprocess.pictures or 0)
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 18
    for row in found:
        picture = Image.open(tmp_path / "mixed" / row["path"])
        scale = max(rows / picture.height, columns / picture.width)
        size = (
            max(columns, round(picture.width * scale)),
            max(rows, round(picture.height * scale)),
        )
        left, top = (size[0] - columns) // 2, (size[1] - rows) // 2
        cut = picture.resize(size, Image.Resampling.BICUBIC).crop(
            (left, top, left + columns, top + rows)
        )
        pixels = torch.from_numpy(np.array(cut).transpose(2, 0, 1)[None].copy())
        with torch.inference_mode():
            shares = released.predict_proba(encoder(preprocess(pixels)))[0]
        assert row["class"] == released.class_names[int(shares.argmax())]
        assert abs(float(row["probability"]) - float(shares.max())) < 1e-4
