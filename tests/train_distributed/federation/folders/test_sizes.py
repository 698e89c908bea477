"""A federation knows how its pictures become rows: who joins, what its model does with new ones."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from embed.encoding import refuse_other
from embed.hold_out import with_held_out
from embed.run import Run as Embed
from pretrain.datasets import EVALUATION
from pretrain.sources import open_images
from tests.train_distributed.federation.folders.engine import Engine, digest_of
from tests.train_distributed.federation.folders.windows import Home, running
from tests.train_distributed.sized_pictures import COLOURS, OTHER, SAME, draw, embedded
from train_distributed import Privacy, Release, release
from train_distributed.commands.exporting import Export
from train_distributed.commands.federation import Init, Join, Start, hosting
from train_distributed.commands.federation.aggregating import Aggregate
from train_distributed.commands.federation.embedding import Pictures
from train_distributed.commands.using import Evaluate, Predict
from train_distributed.federation import operation
from train_distributed.federation.operation import Operation
from train_distributed.federation.progress import Log
from train_distributed.ledger.ledger import NONE
from train_distributed.released.export import run_torch
from train_distributed.secure_sum.opening import Opened

CLASSES, ROWS, USERS = tuple(COLOURS), 24, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private sets under every spelling, and a public transform."""
    root = tmp_path_factory.mktemp("sizes")
    for number, (name, spelling) in enumerate(SAME.items()):
        embedded(root, f"same {name}", number, **spelling)
    for number, (name, spelling) in enumerate(OTHER.items()):
        embedded(root, f"other {name}", 20 + number, **spelling)
    public = EmbeddingSet.open(embedded(root, "public", 40, **SAME["resize"]))
    PublicTransform.fit(public, components=4).save(root / "ours.safetensors")
    return root


def federation(home: Path, servers: int, **settings: Any) -> Path:
    """Folders of three users and an operator below `home`; the sets are chosen later."""
    files = []
    for user in range(USERS):
        Join(home / f"user{user}", f"clinic-{user}", rows=settings.pop(f"rows{user}", ROWS)).run()
        files.append(home / f"user{user}" / f"clinic-{user}.party.json")
    for server in range(1, servers + 1):
        Join(home / f"server{server}", f"adder-{server}", server=True, hosts=("127.0.0.1",)).run()
        files.append(home / f"server{server}" / f"adder-{server}.party.json")
    fixed: dict[str, Any] = {
        "folder": home / "fed",
        "hosts": ("127.0.0.1",),
        "protocol": ("secagg", "shares")[servers],
        "epsilon": 8.0,
        "honest_fraction": None if servers else 0.8,
        "minimum": USERS,
    }
    Init(parties=tuple(files), **fixed | settings).run()
    return home


def start(home: Path, own: Path) -> int:
    invitation = home / "fed" / "invitation"
    return Start(home / "user0", invitation, own, accept=digest_of(home)).run()


def said(own: Path) -> str:
    encoding = EmbeddingSet.open(own).encoding
    assert encoding is not None
    return str(encoding.preprocess)


def test_a_session_takes_sets_of_one_size(engine: Engine, place: Path, tmp_path: Path) -> None:
    home = federation(tmp_path, 0, transform=place / "ours.safetensors", class_names=CLASSES)
    for name in OTHER:
        with pytest.raises(ValueError, match="federation and embeddings must be emb") as caught:
            start(home, place / f"other {name}")
        assert "; 32 x 32 px)" in str(caught.value)
        assert f"; {said(place / f'other {name}')})" in str(caught.value)
    assert not engine.parties
    for number, name in enumerate(SAME):
        assert start(home, place / f"same {name}") == 0
        assert len(engine.parties) == number + 1


def test_an_evaluation_takes_sets_of_one_size(engine: Engine, place: Path, tmp_path: Path) -> None:
    def held(name: str) -> Path:
        found = with_held_out(EmbeddingSet.open(place / name), 0.5)
        found.save(tmp_path / "held" / name)
        return tmp_path / "held" / name

    own = EmbeddingSet.open(place / "same resize")
    own = replace(own, users=np.arange(len(own)) % 4)
    public = PublicTransform.load(place / "ours.safetensors")
    release(own, "discriminant", Privacy(9.0, 1e-5), transform=public, sums=1).save(
        tmp_path / "model"
    )
    rows = {f"rows{user}": ROWS // 2 for user in range(USERS)}
    home = federation(tmp_path, 0, model=tmp_path / "model", **rows)
    for name in OTHER:
        with pytest.raises(ValueError, match="federation and embeddings must be emb") as caught:
            start(home, held(f"other {name}"))
        assert f"; {said(place / f'other {name}')})" in str(caught.value)
    for name in SAME:
        assert start(home, held(f"same {name}")) == 0


def test_join_takes_the_size_of_the_transform(place: Path, tmp_path: Path) -> None:
    """Pictures of any shape become its rows; another size is refused before one is read."""
    photos = draw(tmp_path / "photos", 3, 7, (70, 51))
    network = str(place / "network.safetensors")
    transform = place / "ours.safetensors"
    by_hand = tmp_path / "by hand"
    Embed(data=str(photos), class_names=CLASSES, encoder=network, resize=32, out=by_hand).run()
    expected = EmbeddingSet.open(by_hand)
    given = Pictures(pictures=photos, class_names=CLASSES, transform=transform, encoder=network)
    for name, size in {"default": None, "same": 32}.items():
        Join(tmp_path / name, "clinic", images=replace(given, resize=size)).run()
        found = EmbeddingSet.open(tmp_path / name / "embeddings")
        assert np.array_equal(found.embeddings, expected.embeddings)
        assert found.encoding == expected.encoding
    words = r"resize must be left out, or that of the transform's pictures \(32 x 32 px\), got 64"
    with pytest.raises(ValueError, match=words):
        Join(tmp_path / "me", "clinic", images=replace(given, resize=64)).run()
    assert not (tmp_path / "me" / "embeddings").exists()
    with pytest.raises(ValueError, match="got 64"):
        Join(tmp_path / "same", "clinic", images=replace(given, transform=None, resize=64)).run()
    before = PublicTransform.load(transform)
    assert before.encoding is not None
    prepared = replace(before.encoding.preprocess, pictures=None)
    earlier = tmp_path / "earlier.safetensors"
    replace(before, encoding=replace(before.encoding, preprocess=prepared)).save(earlier)
    with pytest.raises(ValueError, match=r"say of what size its pictures were, .* earlier version"):
        Join(tmp_path / "me", "clinic", images=replace(given, transform=earlier, resize=32)).run()
    larger = replace(given, transform=None, resize=64)
    Join(tmp_path / "larger", "clinic", images=larger).run()
    with pytest.raises(ValueError, match=r"32 x 32 px.* and .*64 x 64 px"):  # it is there already
        Join(tmp_path / "larger", "clinic", images=given).run()
    with pytest.raises(ValueError, match="resize must be left out without pictures, got 32"):
        Join(tmp_path / "me", "clinic", embeddings=by_hand, images=Pictures(resize=32)).run()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, list[Path]], Path]:
    """Runs a session whose carrier is a plain sum of what the users send; returns the model."""

    def run(home: Path, own: list[Path]) -> Path:
        from train_distributed.federation.evaluation_task import task_of
        from train_distributed.federation.model_task import ModelTask

        def operate(operation: Operation) -> tuple[list[Opened], Log]:
            task = task_of(operation.federation, home / "fed" / "transform.safetensors")
            assert isinstance(task, ModelTask)
            everybody, sets = frozenset(range(USERS)), [EmbeddingSet.open(at) for at in own]
            sent = [task.noised(task.encoded(user, rows)) for user, rows in enumerate(sets)]
            first = Opened(np.asarray(np.sum(sent, 0, np.uint64)), everybody)
            centre = task.publish(first)
            sent = [task.at_centre(user, rows)(centre)() for user, rows in enumerate(sets)]
            second = Opened(np.asarray(np.sum(sent, 0, np.uint64)), everybody)
            log = Log()
            log.session, log.bytes_of = "ab" * 32, dict.fromkeys(range(USERS), 1)
            return [first, second], log

        monkeypatch.setattr(operation, "operate", operate)
        monkeypatch.setattr(hosting, "settle", lambda state: None)
        assert Start(home / "fed", out=home / "model").run() == 0
        return home / "model"

    return run


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, list[Path]], Path]]:
    """Runs a window over real lines, after it has refused a set of another size."""
    with ExitStack() as stack:

        def run(home: Path, own: list[Path]) -> Path:
            made = Home(home)
            for folder in made.aggregators:
                stack.enter_context(running(Aggregate(folder, made.window), monkeypatch))
            for name in OTHER:
                with pytest.raises(ValueError, match="federation and embeddings must be") as caught:
                    made.report(0, embeddings=own[0].with_name(f"other {name}")).run()
                assert f"; {said(own[0].with_name(f'other {name}'))})" in str(caught.value)
            for _ in range(2):  # sums
                for user, at in enumerate(own):
                    given = {"embeddings": at, "ledger": Path(NONE), "patience": 1.0}
                    made.report(user, **given).run()
                made.collect(ledger=Path(NONE)).run()
            return home / "model"

        yield run


def by_run(home: Path, place: Path, own: list[Path]) -> Path:
    """The model of `run` from the same rows."""
    from train_distributed.commands.releasing import Run

    sets = [EmbeddingSet.open(at) for at in own]
    together = EmbeddingSet(
        embeddings=np.concatenate([each.embeddings for each in sets]),
        labels=np.concatenate([each.labels for each in sets]),
        users=np.repeat(np.arange(USERS), ROWS),
        meta=sets[0].meta_of_rows,
    )
    together.save(home / "together")
    out, transform = home / "by run", place / "ours.safetensors"
    given: dict[str, Any] = {"public": transform, "ledger": Path(NONE), "out": out}
    Run(home / "together", epsilon=8.0, **given).run()
    return out


def predicted(model: Path, out: Path, **source: Any) -> tuple[list[list[str]], dict[str, Any]]:
    Predict(model=model, out=out, evaluate=True, **source).run()
    with (out / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = [row[1:] for row in csv.reader(file)]
    return rows, json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize("way", ["run", "session", "window"])
def test_a_model_takes_pictures_of_any_size(
    place: Path,
    tmp_path: Path,
    way: str,
    session: Callable[..., Path],
    window: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`predict`, `evaluate` and `export` give the numbers of rows that `embed run` makes."""
    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", lambda *_: None)
    own = [place / f"same {name}" for name in ("resize", "image-size", "as stored")]
    if way == "run":
        model = by_run(tmp_path, place, own)
    else:
        servers = int(way == "window")
        given = {"transform": place / "ours.safetensors", "class_names": CLASSES}
        home = federation(tmp_path, servers, **given)
        model = (window if servers else session)(home, own)
    released = Release.load(model)
    assert released.encoding is not None
    refuse_other(released.encoding, EmbeddingSet.open(own[0]).encoding)
    assert released.encoding.preprocess.pictures == 32
    assert released.class_names == CLASSES
    network = str(place / "network.safetensors")
    for size in (32, 64, (90, 77)):
        folder = tmp_path / str(size)
        data, rows = str(draw(folder / "pictures", 12, 8, size)), folder / "rows"
        Embed(data=data, encoder=network, class_names=CLASSES, resize=32, out=rows).run()
        found, held = EmbeddingSet.open(rows), folder / "held"
        replace(found, split=np.full(len(found), EVALUATION, np.uint8)).save(held)
        shown = predicted(model, folder / "shown", data=data, encoder=network)
        assert shown == predicted(model, folder / "expected", embeddings=rows)
        assert predicted(model, folder / "asked", data=data, encoder=network, resize=32) == shown
        reports = []
        sources: list[dict[str, Any]] = [{"data": data, "encoder": network}, {"embeddings": held}]
        for source in sources:
            at = folder / f"evaluated {len(reports)}"
            fixed: dict[str, Any] = {"users": 1, "seed": 3, "ledger": Path(NONE), "out": at}
            Evaluate(model=model, **fixed, **source).run()
            reports.append(json.loads((at / "evaluation.json").read_text())["accuracy"])
        assert reports[0] == reports[1]
        sides = (size, size) if isinstance(size, int) else size
        for asked in {None, sides}:
            at = folder / f"exported {asked}"
            Export(
                model=model, format="torch-export", encoder=network, input_size=asked, out=at
            ).run()
            pixels = open_images(data, size=32 if asked is None else None).images(slice(None))
            classes, shares = run_torch(at / "model.pt2")(pixels)
            expected = released.predict_proba(EmbeddingSet.open(rows).embeddings).numpy()
            assert np.abs(shares - expected).max() < 1e-5
            assert np.mean(classes == expected.argmax(1)) > 0.97
    with pytest.raises(ValueError, match=r"the model's pictures \(32 x 32 px\), got 64"):
        predicted(model, tmp_path / "no", data=data, encoder=network, resize=64)
    assert not (tmp_path / "no").exists()
