"""Pictures in, classes out: as of their embeddings, by the right encoder, and by exported files."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embed import EmbeddingSet
from embed.run import Run
from tests.train_distributed.commands.bad_inputs.world import COLOURS, SIZE, draw
from train_distributed import Release
from train_distributed.ledger.ledger import Ledger
from train_distributed.released.export import _Head, run_torch
from train_distributed.released.predictions import HEADER

PREDICT = "predict --model model --out"
ROWS = 60
MEDMNIST = {"train": slice(0, 40), "val": slice(40, 50), "test": slice(50, 60)}


@pytest.fixture(scope="module")
def place(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with `new` pictures: as files, as MedMNIST has them, and embedded."""
    root = tmp_path_factory.mktemp("place")
    shutil.copytree(world, root, dirs_exist_ok=True, symlinks=True)
    pixels, labels = np.stack(draw(root / "new", ROWS, 5)), np.arange(ROWS) % 3
    arrays = {f"{part}_images": pixels[rows] for part, rows in MEDMNIST.items()}
    arrays |= {f"{part}_labels": labels[rows, None] for part, rows in MEDMNIST.items()}
    np.savez(root / "medmnist.npz", **arrays)  # pyright: ignore[reportArgumentType]
    Run(data=str(root / "new"), encoder=str(root / "network.safetensors"), out=root / "set").run()
    return root


@pytest.fixture(autouse=True)
def here(place: Path, tmp_path: Path) -> None:
    for each in place.iterdir():
        (tmp_path / each.name).symlink_to(each)


def table(path: str) -> list[dict[str, str]]:
    with Path(path, "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def metrics(path: str) -> dict:
    return json.loads(Path(path, "metrics.json").read_text())


def test_pictures_are_classified_as_their_embeddings_are(say) -> None:
    said = say.done(f"{PREDICT} one --data new")
    assert f"rows                       {ROWS}" in said
    say.done(f"{PREDICT} two --embeddings set")
    assert [path.name for path in Path("one").iterdir()] == ["predictions.csv"]
    first, second = table("one"), table("two")
    assert list(first[0]) == list(HEADER)
    for pictures, rows in zip(first, second, strict=True):
        assert {**pictures, "path": ""} == {**rows, "path": ""}
        assert Path(pictures["path"]).name == Path(rows["path"]).name
    released, rows = Release.load(Path("model")), EmbeddingSet.open("set").embeddings
    shares, scores = released.predict_proba(rows), released.scores(rows)
    for row, p, score in zip(first, shares, scores, strict=True):
        order = score.argsort(descending=True)  # probabilities that round to 0 have none
        names = [released.class_names[k] for k in order]
        assert [row["class"], row["second"], row["third"]] == names
        found = [row[c] for c in ("probability", "second_probability", "third_probability")]
        assert np.allclose([float(x) for x in found], p[order], atol=1e-6)
    right = [row["class"] == Path(row["path"]).parent.name for row in first]
    assert np.mean(right) > 0.9


def test_labels_that_are_there_are_compared_by_name(say) -> None:
    said = say.done(f"{PREDICT} out --evaluate --data new")
    names = {"confusion.png", "metrics.json", "predictions.csv"}
    assert {path.name for path in Path("out").iterdir()} == names
    found = metrics("out")
    assert (found["rows"], found["rows_by_split"]) == (ROWS, {"train": ROWS})
    assert found["majority_baseline"] == pytest.approx(1 / 3)
    assert found["accuracy"] > 0.9
    assert "no epsilon covers" in found["of"]
    assert f"accuracy                   {found['accuracy']:.4f}" in said
    rows = EmbeddingSet.open("set")
    turned = rows.meta | {"class_names": ["red", "blue", "green"], "classes": "declared"}
    replace(rows, labels=np.array([1, 2, 0])[rows.labels], meta=turned).save(Path("turned"))
    counted = replace(EmbeddingSet.open("turned"), meta=turned | {"classes": "inferred"})
    counted.save(Path("counted"))
    for source in ("set", "turned", "counted"):
        say.done(f"{PREDICT} of_{source} --evaluate --embeddings {source}")
        assert metrics(f"of_{source}") == found
    some = sorted(Path("new").glob("[!b]*/*.png"))  # none of the first class
    lines = [f"{path},{path.parent.name}" for path in some]
    Path("some.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    say.done(f"{PREDICT} of_some --evaluate --data csv:some.csv")
    assert metrics("of_some")["accuracy"] > 0.9


def test_every_layout_of_embed_is_read(say) -> None:
    sources = {
        "users": "people --layout user-class",
        "table": "csv:table.csv --columns path=path,label=label",
        "medmnist": "medmnist.npz",
        "val": "medmnist.npz --splits val",
    }
    Path("people").mkdir()
    Path("people", "user").symlink_to(Path("new").resolve())
    for name, source in sources.items():
        say.done(f"{PREDICT} {name} --evaluate --data {source}")
    rows = {name: len(table(name)) for name in sources}
    assert rows == {"users": ROWS, "table": 9, "medmnist": ROWS, "val": 10}
    assert metrics("users")["accuracy"] == metrics("medmnist")["accuracy"]  # the same pictures


def test_evaluate_takes_pictures_and_keeps_a_ledger(say) -> None:
    for user in range(4):
        for name in COLOURS:
            own = Path("people", f"user{user}", name)
            own.mkdir(parents=True)
            for path in sorted(Path("new", name).iterdir())[user::4]:
                shutil.copy(path, own)
    line = "evaluate --model model --data people --layout user-class"
    assert "majority_baseline" in say.done(f"{line} --epsilon 50 --ledger held.ledger --out e")
    report = json.loads(Path("e/evaluation.json").read_text())
    assert (report["rows"], report["users"], report["suitable_for_release"]) == (ROWS, 4, True)
    assert report["accuracy"]["estimate"] > report["majority_baseline"]["estimate"]
    assert len(Ledger(Path("held.ledger")).state().records) == 1
    assert say(line) == (2, "", "error: ledger must be given, got none\n")


def test_unreadable_pictures_have_a_line_of_their_own(say) -> None:
    draw(Path("drawn"), 12, 5)
    say.done(f"{PREDICT} whole --data drawn --evaluate")
    damaged = ("blue/0.png", "green/1.png", "red/3.png")  # the first and the last as well
    for name, content in zip(damaged, (b"", b"no picture", b"\x89PNG\r\n\x1a\n"), strict=True):
        Path("drawn", name).write_bytes(content)
    say.refused(f"{PREDICT} some --data drawn --evaluate", "blue/0.png must be a readable image")
    said = say.done(f"{PREDICT} some --data drawn --evaluate --skip-unreadable")
    assert f"{'rows':26} 12\n{'unreadable':26} 3\n" in said
    first, second = table("whole"), table("some")
    assert list(second[0]) == [*HEADER, "unreadable"]
    for before, after in zip(first, second, strict=True):
        reason = after.pop("unreadable")
        if after["path"] in damaged:
            assert f"{after['path']} must be a readable image" in reason
            assert after == dict.fromkeys(HEADER, "") | {"path": before["path"]}
        else:
            assert (after, reason) == (before, "")
    assert (metrics("some")["rows"], metrics("some")["rows_by_split"]) == (9, {"train": 9})
    assert np.sum(metrics("some")["confusion"]) == 9


def test_dark_pictures_of_16_bits_after_others_are_refused(say) -> None:
    pixels = np.stack(draw(Path("mixed"), 3, 5))[..., 0].astype(np.uint16)
    for number, values in enumerate(pixels << 4):  # 12 bits in use
        Image.fromarray(values).save(f"mixed/wide{number}.png")
    given = "--data mixed --layout flat"
    say.refused(f"{PREDICT} out {given}", "must use 1/16 of their range")
    assert not Path("out").exists()
    assert say.done(f"{PREDICT} out {given} --bits 12")
    known = Release.load("model")
    assert known.encoding
    replace(known, encoding=replace(known.encoding, bits=12)).save(Path("of-12"))
    shutil.copy("model/encoder.safetensors", "of-12")
    assert say.done(f"predict --model of-12 --out of-its-own {given}")
    assert table("of-its-own") == table("out")


def test_a_model_of_rows_of_an_unknown_encoder_takes_embeddings_only(say) -> None:
    shutil.copytree("model", "unknown")
    with safe_open("unknown/model.safetensors", "pt") as file:
        metadata = {name: text for name, text in file.metadata().items() if name != "encoding"}
    tensors = load_file("model/model.safetensors")
    save_file(tensors, "unknown/model.safetensors", metadata)
    predict = "predict --model unknown --out out"
    say.refused(f"{predict} --data new", "release must say which encoder its embeddings came from")
    say.done(f"{predict} --embeddings set")


def test_names_that_need_quotes_survive_and_labels_are_not_needed(say) -> None:
    odd = ['comma, "quote".png', "new\nline.png", "=1+1.png", "ü.png"]
    Path("odd/red").mkdir(parents=True)
    for name in odd:
        shutil.copy("new/red/0.png", Path("odd/red", name))
    say.done(f"{PREDICT} out --data odd")
    assert {Path(row["path"]).name for row in table("out")} == set(odd)
    np.savez("bare.npz", x_test=np.tile(np.array(COLOURS["green"], np.uint8), (7, SIZE, SIZE, 1)))
    say.done(f"{PREDICT} unlabelled_out --data bare.npz")
    assert [row["class"] for row in table("unlabelled_out")] == ["green"] * 7


SIMULATE = "simulate --components 4 --users 6 --epsilon 9"


@pytest.mark.parametrize(
    ("encoder", "weights"),
    [
        ("mirrored:network.safetensors", ""),  # the prefix is of the name
        ("concat:network.safetensors@12+timm:resnet10t@32", "random"),  # each with its own size
    ],
)
def test_a_model_carries_its_encoder_and_takes_it_by_name(
    say, no_pictures, encoder: str, weights: str
) -> None:
    for kind in ("new", "pictures"):
        Run(data=kind, encoder=encoder, weights=weights or None, out=Path(f"of_{kind}")).run()
    carried = "network.safetensors" + (f"+{weights}" if weights else "")
    learn = f"{SIMULATE} --embeddings of_new --public of_pictures --out learned --with-encoder"
    assert "error: encoder must be given by name and weights" in say(learn)[2]
    say.done(f"{learn} {carried}")
    predict = "predict --model learned --data new --out"
    say.done(f"{predict} one")
    say.done("card --model learned --out card")
    assert encoder in Path("card/card.html").read_text()
    Path("learned/encoder.safetensors").unlink()
    say.done(f"{predict} two --encoder {encoder}" + (f" --weights {weights}" if weights else ""))
    assert table("one") == table("two")
    other = f"encoder must be the one that the model learned with, {encoder[:21]}"
    say.refused(f"{predict} three --encoder network.safetensors", other)
    mixed = f"{SIMULATE} --embeddings set --public of_pictures"
    say.refused(mixed, "must be embedded by one encoder")


EXPORT = "export --out out --format"


def test_a_file_is_written_and_compared(call, monkeypatch) -> None:
    assert "warning" not in call.done(f"{EXPORT} torch-export --model model")
    assert sorted(p.name for p in Path("out").iterdir()) == ["export.json", "model.pt2"]
    told = json.loads(Path("out/export.json").read_text())
    assert told["largest_difference"] < 1e-5
    assert told["classes_that_differ"] == 0
    assert told["class_names"] == ["blue", "green", "red"]
    encoding = Release.load(Path("model")).encoding
    assert encoding is not None
    assert told["encoding"] == encoding.to_json()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8), np.uint8)
    assert run_torch(Path("out/model.pt2"))(pixels)[1].shape == (9, 3)
    whole = _Head.forward
    monkeypatch.setattr(_Head, "forward", lambda head, rows: whole(head, rows + 1e-2))
    said = call.done(f"{EXPORT} torch-export --model model --overwrite")
    assert "differs from predict by more than 1e-05" in said


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(call, monkeypatch, package: str) -> None:
    if package == "onnxruntime":
        monkeypatch.setattr("train_distributed.released.export.save_onnx", lambda *_: None)
    monkeypatch.setitem(sys.modules, package, None)
    needed = f"must have {package} installed: pip install 'blind-averaging[export]'"
    call.refused(f"{EXPORT} onnx --model model", needed)
    assert not Path("out").exists()
