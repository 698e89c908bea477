"""Pictures of a federation's users, and new ones for its model: encoder and size are agreed on."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.encoding import refuse_other
from embed.hold_out import with_held_out
from embed.run import Run as Embed
from pretrain.sources import open_images
from tests.train_distributed.federation.folders.homes import digest_of, embeddings, init_of, join
from tests.train_distributed.sized_pictures import COLOURS, SAME, draw, embedded
from train_distributed import Privacy, Release, release
from train_distributed.commands.exporting import Export
from train_distributed.commands.federation import Join, Start
from train_distributed.commands.federation.embedding import Pictures, own_set
from train_distributed.commands.using import Predict
from train_distributed.federation.documents.party import Party
from train_distributed.ledger.ledger import NONE
from train_distributed.released.export import run_torch

CLASSES, ROWS, USERS = tuple(COLOURS), 24, 3
OWN = ("resize", "image-size", "as stored")  # spellings of one size, of a user each


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private sets of one size and of another, public transforms of a network and the default."""
    root = tmp_path_factory.mktemp("sizes")
    for number, name in enumerate(OWN):
        embedded(root, name, number, **SAME[name])
    embedded(root, "other", 20, resize=24)
    public = EmbeddingSet.open(embedded(root, "public", 40, resize=32))
    ours = PublicTransform.fit(public, components=4)
    ours.save(root / "ours.safetensors")
    assert ours.encoding is not None
    unsized = replace(ours.encoding, preprocess=replace(ours.encoding.preprocess, pictures=None))
    replace(ours, encoding=unsized).save(root / "earlier.safetensors")
    Embed(data=str(root / "public pictures"), resize=32, out=root / "shipped").run()
    shipped = PublicTransform.fit(EmbeddingSet.open(root / "shipped"), components=4)
    shipped.save(root / "shipped.safetensors")
    draw(root / "photos", 3, 7, (70, 51))
    return root


def federation(home: Path, servers: int = 0, **settings: Any) -> Path:
    files = join(home, USERS, servers, rows=settings.pop("rows", ROWS))
    fixed = {"protocol": ("secagg", "shares")[servers], "class_names": CLASSES, "epsilon": 8.0}
    fixed |= {"honest_fraction": None if servers else 0.8, "minimum": USERS}
    init_of(home, files, **fixed | settings).run()
    return home


def check_size(home: Path, own: Path, other: Path) -> None:
    invitation, accept = home / "fed" / "invitation", digest_of(home)
    with pytest.raises(ValueError, match="federation and embeddings must be emb") as caught:
        Start(home / "user0", invitation, other, accept=accept).run()
    assert "; 32 x 32 px)" in str(caught.value)
    assert "; 24 x 24 px)" in str(caught.value)
    assert Start(home / "user0", invitation, own, accept=accept).run() == 0


def test_a_session_takes_sets_of_one_size(engine, place, tmp_path) -> None:
    home = federation(tmp_path, transform=place / "ours.safetensors")
    for name in OWN:
        check_size(home, place / name, place / "other")
    assert len(engine.parties) == len(OWN)


def test_an_evaluation_takes_sets_of_one_size(engine, place, tmp_path) -> None:
    own = EmbeddingSet.open(place / OWN[0])
    own = replace(own, users=np.arange(len(own)) % 4)
    public = PublicTransform.load(place / "ours.safetensors")
    model = release(own, "discriminant", Privacy(9.0, 1e-5), transform=public, sums=1)
    model.save(tmp_path / "model")
    for name in (OWN[1], "other"):
        with_held_out(EmbeddingSet.open(place / name), 0.5).save(tmp_path / "held" / name)
    given = {"transform": None, "class_names": (), "model": tmp_path / "model"}
    home = federation(tmp_path, rows=ROWS // 2, **given)
    check_size(home, tmp_path / "held" / OWN[1], tmp_path / "held" / "other")
    assert len(engine.parties) == 1


def join_with(folder: Path, name: str, images: dict[str, Any], **more: Any) -> None:
    Join(folder, name, images=Pictures(**images), **more).run()


def test_pictures_become_the_rows_that_are_counted_and_sent(place: Path, tmp_path: Path) -> None:
    network, photos = str(place / "network.safetensors"), place / "photos"
    for name, encoder, more in (
        ("default", {}, {"transform": place / "shipped.safetensors"}),
        ("size", {"encoder": network}, {"transform": place / "ours.safetensors", "resize": 32}),
        ("network", {"encoder": network}, {"transform": place / "ours.safetensors"}),
        ("named", {"encoder": "simclr-small"}, {"resize": 32}),
    ):
        folder = tmp_path / name
        by_hand: dict[str, Any] = {"data": str(photos), "class_names": CLASSES, **encoder}
        Embed(**by_hand, resize=32, out=tmp_path / f"{name} by hand").run()
        expected = EmbeddingSet.open(tmp_path / f"{name} by hand")
        given = {"pictures": photos, "class_names": CLASSES, **encoder, **more}
        for _ in range(2):  # a set that is there is taken
            join_with(folder, name, given)
        assert Party.load(folder / f"{name}.party.json").rows == 9
        assert own_set(folder, None) == folder / "embeddings"
        found = EmbeddingSet.open(folder / "embeddings")
        np.testing.assert_array_equal(found.embeddings, expected.embeddings)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert found.encoding == expected.encoding
        assert found.meta["class_names"] == list(CLASSES)
        for field in ("encoder", "encoder_hash", "weights", "preprocess"):
            assert found.meta[field] == expected.meta[field]
        assert own_set(folder, tmp_path / "other") == tmp_path / "other"
    assert own_set(tmp_path, None) is None


def test_bits_in_use_are_those_of_the_public_pictures(place: Path, tmp_path: Path) -> None:
    public = PublicTransform.load(place / "shipped.safetensors")
    assert public.encoding is not None
    replace(public, encoding=replace(public.encoding, bits=12)).save(tmp_path / "public")
    for name in CLASSES:
        (tmp_path / "scans" / name).mkdir(parents=True)
        scan = Image.fromarray(np.full((40, 40), 3000, np.uint16))
        scan.save(tmp_path / "scans" / name / "0.png")
    given = {"pictures": tmp_path / "scans", "class_names": CLASSES}
    join_with(tmp_path / "me", "me", given | {"transform": tmp_path / "public"})
    assert EmbeddingSet.open(tmp_path / "me" / "embeddings").meta["bits"] == 12


def test_what_join_refuses_writes_no_party(place: Path, tmp_path: Path) -> None:
    photos, network = place / "photos", str(place / "network.safetensors")
    given: dict[str, Any] = {"pictures": photos, "class_names": CLASSES}
    ours = {"transform": place / "ours.safetensors", "encoder": network}
    earlier = ours | {"transform": place / "earlier.safetensors", "resize": 32}
    shipped = {"transform": place / "shipped.safetensors"}
    for images, more, words in (
        ({"pictures": photos, **ours}, {}, "class_names must be given"),
        (given, {}, "encoder or transform must be given"),
        (given | shipped | {"encoder": "timm:resnet18"}, {}, "weights must be"),
        (given, {"embeddings": tmp_path}, "embeddings must be left out with pictures"),
        (given, {"server": True}, "pictures must be left out for a server"),
        (given | ours | {"resize": 64}, {}, r"resize must be .* \(32 x 32 px\), got 64"),
        (given | earlier, {}, "say of what size its pictures were, .* earlier version"),
        ({"resize": 32}, {"embeddings": place / "public"}, "resize must be left out without pict"),
    ):
        with pytest.raises(ValueError, match=words):
            join_with(tmp_path / "me", "me", images, **more)
        assert not (tmp_path / "me" / "me.party.json").exists()
        assert not (tmp_path / "me" / "embeddings").exists()
    join_with(tmp_path / "me", "me", given | {"encoder": network, "resize": 64})
    for images, words in ((ours, r"32 x 32 px.* and .*64 x 64 px"), ({"resize": 32}, "got 32")):
        with pytest.raises(ValueError, match=words):  # of the set that is there
            join_with(tmp_path / "me", "again", given | images)


def test_another_order_of_the_classes_is_found_when_one_joins(knowing, tmp_path, capsys) -> None:
    good, kept, counted = (tmp_path / name / "embeddings" for name in "abc")
    meta = {"class_names": ["b", "a", "c"], "classes": "inferred"}
    replace(embeddings(0), meta=meta).save(counted)
    for place, names in ((good, ("a", "b", "c")), (kept, ("b", "a", "c"))):
        replace(embeddings(0), meta={"class_names": list(names)}).save(place)
        Join(place.parent, "me", embeddings=place).run()
        assert f"classes in this order: {', '.join(names)}\n" in capsys.readouterr().out
    pictures = {"pictures": tmp_path, "class_names": ("a", "b", "c"), "encoder": "simclr-small"}
    for images, own, words in (
        ({"class_names": ("a", "b", "c")}, kept, r"class_names must be .*'b', 'a'"),
        ({"class_names": ("a", "b", "c")}, counted, r"class_names must be .*'b', 'a'"),
        ({"transform": knowing}, kept, r"names must be those .* guesses of"),
        (pictures, None, r"class_names must be .*'b', 'a'"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            join_with(kept.parent, "again", images, embeddings=own)
        assert "\n" not in str(refused.value)
        assert not (kept.parent / "again.party.json").exists()
    known = {"class_names": ("a", "b", "c"), "transform": knowing}
    join_with(good.parent, "again", known, embeddings=good)


def predicted(model: Path, out: Path, **source: Any) -> tuple[list[list[str]], dict[str, Any]]:
    Predict(model=model, out=out, evaluate=True, **source).run()
    with (out / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = [row[1:] for row in csv.reader(file)]
    return rows, json.loads((out / "metrics.json").read_text())


def check_new_pictures(model: Path, network: Path, folder: Path, size: Any) -> None:
    """`predict` and `export` give the numbers of rows that `embed run` makes."""
    data, rows = str(draw(folder / "pictures", 12, 8, size)), folder / "rows"
    given: dict[str, Any] = {"data": data, "encoder": str(network)}
    Embed(**given, class_names=CLASSES, resize=32, out=rows).run()
    shown = predicted(model, folder / "shown", **given)
    assert shown == predicted(model, folder / "expected", embeddings=rows)
    assert predicted(model, folder / "asked", **given, resize=32) == shown
    asked = None if size == 32 else (size, size) if isinstance(size, int) else size
    exported: dict[str, Any] = {"format": "torch-export", "encoder": str(network)}
    Export(model=model, **exported, input_size=asked, out=folder / "exported").run()
    pixels = open_images(data, size=32 if asked is None else None).images(slice(None))
    classes, shares = run_torch(folder / "exported" / "model.pt2")(pixels)
    expected = Release.load(model).predict_proba(EmbeddingSet.open(rows).embeddings).numpy()
    assert np.abs(shares - expected).max() < 1e-5
    assert np.mean(classes == expected.argmax(1)) > 0.97


def test_a_model_takes_pictures_of_any_size(place, tmp_path, opened) -> None:
    own, ledger = [place / name for name in OWN], Path(NONE)
    made = opened(federation(tmp_path, 1, transform=place / "ours.safetensors"))
    with pytest.raises(ValueError, match="federation and embeddings must be embedded"):
        made.report(0, embeddings=place / "other").run()
    for _ in range(2):  # sums
        for user, at in enumerate(own):
            made.report(user, embeddings=at, ledger=ledger, patience=0.2).run()
        made.collect(ledger=ledger).run()
    released = Release.load(made.model)
    assert released.encoding is not None
    refuse_other(released.encoding, EmbeddingSet.open(own[0]).encoding)
    assert released.encoding.preprocess.pictures == 32
    assert released.class_names == CLASSES
    network = place / "network.safetensors"
    for size in (32, 64, (90, 77)):
        check_new_pictures(made.model, network, tmp_path / str(size), size)
    source = {"data": str(place / "photos"), "encoder": str(network)}
    with pytest.raises(ValueError, match=r"the model's pictures \(32 x 32 px\), got 64"):
        predicted(made.model, tmp_path / "no", **source, resize=64)
    assert not (tmp_path / "no").exists()
