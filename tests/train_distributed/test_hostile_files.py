"""Whatever a file holds, its reader refuses it in one line that names it, or reads what it says."""

import csv
import gzip
import io
import json
import random
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from embed.known_classes import ClassGuess, KnownClasses
from embed.partial import ResumeKey
from pretrain.encoder import load_encoder, save_encoder
from pretrain.preprocess import Preprocess
from pretrain.resnet import ResNetConfig, SmallResNet
from pretrain.sources import open_federated_emnist, open_images
from tests.changed_bytes import changed
from tests.embedding_sets import clusters
from tests.train_distributed.federation.folders import homes
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed import Privacy, release
from train_distributed.commands.comparing import Plot
from train_distributed.commands.counting import Show
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.commands.federation.enrolling import parties_of
from train_distributed.commands.options import RunConfig
from train_distributed.federation.documents.certificates import read_certificates, serving
from train_distributed.federation.documents.document import LARGE, read_as
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.place import at_place, with_roll
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.terms import read_transform
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.federation.model_task import ModelTask
from train_distributed.federation.record import LEFT_OUT, SessionLog
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot.class_prior import read_shares
from train_distributed.one_shot.model import Release
from train_distributed.research.experiments import catalogue
from train_distributed.research.protection.mechanisms import StudySettings
from train_distributed.secure_sum.journal import DurableJournal

DIM, CLASSES, SESSION = 6, ("a", "b", "c"), b"s" * 32
RESULTS = Path(__file__).parents[2] / "results" / "frontier_lite0" / "results.json.gz"
MARK = "replace me 61f1"
VALUES = [
    *(None, True, False, 0, -1, 1, 2**31, 2**64, 10**25, 1.5, -0.0, 1e300, 5e-324),
    *("", "0", "1_0", "a" * 300, "\x1b[2J", "\x00", "\ud800", "é", "\u202e", "../../x", "f" * 128),
    *([], {}, [[]], [1, "a", None], {"a": {"b": [1]}}, {"0": 1, "01": 2}, {"-1": "x"}),
]
NAMES = ["", "x", "01", "-1", "4294967296", "1e3", "\x1b[1m"]
WORDS = [  # most are no JSON, or more than a stack or a double holds
    *("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 400, "00", "'a'", "[1,]"),
    *("[" * 200_000, '{"a":' * 100_000, '{"a":' * 50_000 + "0" + "}" * 50_000, '{"a":1,"a":2}'),
    *("", '"\\ud800"', '"\\u0000"', "1.0", "1e2"),
]


@dataclass(frozen=True)
class Document:
    """A file that the product reads, or JSON that is in one."""

    name: str  # expression of what an error names
    valid: bytes
    write: Callable[[bytes], object]  # puts other bytes in their place
    read: Callable[[], Any]  # gives what is believed; a dictionary: the values of the JSON
    fixed: bool = False  # whether nothing but the valid content is believed
    ours: bool = False  # whether no other party has written it
    path: Path | None = None  # without which there is nothing to read

    def check(self, content: bytes, original: Any) -> None:
        """Writes these bytes: they are read as what they say, or refused in one line."""
        self.write(content)
        try:
            found, error = self.read(), None
        except ValueError as refusal:
            found, error = None, refusal
        if error:
            message = str(error)
            assert not isinstance(error, json.JSONDecodeError | UnicodeError), repr(error)
            assert re.search(self.name, message), message
            assert message.isprintable() or self.ours, message
            assert len(message) < 1000, message
        elif self.fixed:
            assert found == original or len(content) < 2  # SQLite makes an empty file a new one
        elif isinstance(found, dict):
            assert agrees(json.loads(json.dumps(found)), json.loads(content)), found


def agrees(found: Any, said: Any) -> bool:
    """Whether all that is said was found; what is left out has defaults."""
    if isinstance(found, dict) and isinstance(said, dict):
        return all(agrees(found.get(name, MARK), value) for name, value in said.items())
    return bool(found == said)


def of_file(path: Path, read: Callable[[], Any], name: str = "", **more: bool) -> Document:
    return Document(name or path.name, path.read_bytes(), path.write_bytes, read, path=path, **more)


def in_tensors(path: Path, read: Callable[[Path], Any], *fields: str) -> Iterator[Document]:
    """JSON in the metadata of a safetensors file."""
    tensors = {name: values.clone() for name, values in load_file(path).items()}  # not mapped
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    for field in fields:

        def write(content: bytes, field: str = field) -> None:
            text = content.decode("utf-8", "replace")
            path.write_bytes(save(tensors, metadata | {field: text}))

        valid = metadata[field].encode()
        yield Document(path.name, valid, write, lambda: bool(read(path)), ours=True)


def embeddings(rows: int, seed: int) -> EmbeddingSet:
    return clusters(rows, len(CLASSES), DIM, noise=1.0, seed=seed, users=2)


def of_federations(home: Path) -> list[Document]:
    """What the parties of two federations, one of them with a window, give to each other."""
    for name, servers in (("a", 0), ("b", 1)):
        (home / name).mkdir()
        homes.initiate(home / name, servers=servers, minimum=2)
    fed, shares = home / "a" / "fed", home / "b" / "fed"
    MakeWindow(shares, ("127.0.0.1:7001", "127.0.0.1:7002"), home / "window", 24.0).run()
    user, invitation, tls = home / "a" / "user0", fed / "invitation", fed / "tls"
    placed = Federation.load(shares / "federation.json")
    key = read_private(home / "b" / "user1").public.verifying
    (place,) = (shares / "invitation" / "places").glob(f"{key.hex()[:32]}.json")

    def agreed() -> dict[str, Any]:
        found = Federation.load(fed / "federation.json")
        ModelTask.of(found, fed / "transform.safetensors")
        return found.fields

    def invited() -> tuple[bytes, str]:
        found = Invitation.read(invitation)
        return found.federation.digest, found.address

    def private() -> dict[str, str]:
        found = read_private(user)
        return {"signing": found.signing.hex(), "opening": found.opening.hex()}

    def of(path: Path, read: Callable[[Path], Any], **more: Any) -> Document:
        return of_file(path, lambda: read(path), **more)

    window, table = home / "window" / "window.json", home / "parties.csv"
    fields = Party.load(user / "hospital-0.party.json").fields
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([list(fields), list(fields.values())])
    return [
        replace(of(table, lambda path: bool(list(parties_of((path,))))), path=None),  # or a folder
        of(user / "hospital-0.party.json", lambda path: Party.load(path).fields, fixed=True),
        of(fed / "federation.json", lambda _: agreed(), name="federation"),
        of(user / "private.json", lambda _: private()),
        of(invitation / "operator.json", lambda _: invited(), fixed=True),
        of(invitation / "federation.json", lambda _: invited(), fixed=True),
        of(invitation / "ca.pem", lambda path: bool(read_certificates(path))),
        of(tls / "server.pem", lambda _: bool(serving(tls, invitation / "ca.pem"))),
        of(tls / "server.key", lambda _: bool(serving(tls, invitation / "ca.pem"))),
        of(fed / "transform.safetensors", lambda path: bool(read_transform(path))),
        of(window, lambda path: WindowFile.load(path).fields),
        of(window, lambda path: WindowFile.load(path, signed=True).fields),
        of(shares / "roll", lambda _: with_roll(placed, shares).holder(key.hex()), fixed=True),
        of(place, lambda path: at_place(placed, path, key).holder(key.hex()), fixed=True),
    ]


def of_releases(home: Path) -> list[Document]:
    """Sets, transforms, encoders and models, and the settings with which they are made."""
    rows, plain = embeddings(48, 0), PublicTransform.fit(embeddings(50, 1))
    rows.save(home / "set")
    transform, network = home / "known.safetensors", home / "network.safetensors"
    means = torch.zeros(DIM, len(CLASSES), dtype=torch.float64)
    guess = ClassGuess("names of 200 public classes", means, plain.public.covariance)
    encoding = Encoding(
        encoder="simclr-small", encoder_hash="e" * 64, weights="shipped", preprocess=Preprocess()
    )
    known = KnownClasses(CLASSES, (guess,))
    replace(plain, known=known, encoding=encoding, options={"seed": 1}).save(transform)
    save_encoder(SmallResNet(ResNetConfig((4, 6), (1, 1)), torch.Generator()), network)
    promise = Privacy(50.0, 1e-5)
    model = release(rows, "discriminant", promise, transform=plain, sums=1)
    replace(model, prior=(0.5, 0.25, 0.25)).save(home / "model")
    weights = home / "model" / "model.safetensors"
    results = json.loads(gzip.decompress(RESULTS.read_bytes()))
    texts = {
        "config.json": RunConfig("discriminant", {"sums": 1}, promise, encoding=encoding).text(),
        "prior.json": json.dumps({"a": 0.5, "b": 0.25, "c": 0.25}),
        "study.json": json.dumps({"rows": 500, "threshold": 0.9, "victims": None}),
        "results.json": json.dumps(results | {"cells": results["cells"][:2]}),
        "new.partial/meta.json": json.dumps({"rows": 5, "encoder": "simclr-small"}),
    }
    (home / "new.partial").mkdir()
    for name, text in texts.items():
        (home / name).write_text(text)

    def opened(_: Path) -> dict[str, Any]:
        found = EmbeddingSet.open(home / "set")
        found.content_hash()
        return dict(found.meta)

    def resumed(_: Path) -> dict[str, Any]:
        key = ResumeKey.of_unfinished(home / "new")
        assert key is not None
        return key.entries

    def of(file: str, read: Callable[[Path], Any], **more: Any) -> Document:
        return of_file(home / file, lambda: read(home / file), ours=True, **more)

    def settled(path: Path) -> dict[str, Any]:
        found = RunConfig.read(path)
        read_again = {"encoding": found.encoding and found.encoding.to_json()}
        return vars(found) | {"privacy": vars(found.privacy)} | read_again

    def prior(path: Path) -> dict[str, float]:
        return dict(zip(CLASSES, read_shares(path, CLASSES), strict=True))

    return [
        of("set/meta.json", opened, name="set"),
        of("set/embeddings.npy", opened, name="set", fixed=True),
        of("set/labels.npy", lambda path: bool(opened(path)), name="set"),
        of("new.partial/meta.json", resumed),
        of("known.safetensors", lambda path: bool(PublicTransform.load(path))),
        of("network.safetensors", lambda path: bool(load_encoder(path))),
        of("model/model.safetensors", lambda _: bool(Release.load(home / "model"))),
        of("model/report.json", lambda _: dict(Release.load(home / "model").report)),
        of("config.json", settled),
        of("prior.json", prior),
        of("study.json", lambda at: msgspec.structs.asdict(StudySettings.read(at, images=False))),
        of("results.json", lambda path: bool(Plot(path).run()), name="results"),
        *in_tensors(network, load_encoder, "architecture"),
        *in_tensors(transform, PublicTransform.load, "encoding", "known_classes", "options"),
        *in_tensors(weights, Release.load_file, "class_names", "temperature", "prior"),
    ]


def of_records(home: Path) -> list[Document]:
    """What commands and services keep for themselves, and a report that names a ledger's entry."""
    ledger, journal, state = Ledger(home / "rows.ledger"), home / "journal", home / "state"
    ledger.spend(ledger.reserve(GAUSSIAN))
    told = home / "told.json"
    told.write_text(json.dumps({"ledger": ledger.report(ledger.reserve(GAUSSIAN))}))
    shows = Show(ledger=ledger.path, reports=(told,))
    DurableJournal(journal).claim(SESSION, "open", b"set")
    (kept,) = (path for path in journal.rglob("*") if path.is_file())
    with SessionLog(state) as record:
        record.begin(b"session")
        record.add(record.call({0: b"asked"}), 0, b"answer")
    (state / LEFT_OUT).write_text(json.dumps({"left_out": {"3": "sent nothing"}}))

    def session() -> tuple[object, ...]:
        with SessionLog(state) as record:
            return record.session, list(record.answers(record.call({0: b"asked"})))

    def left_out() -> dict[str, Any]:
        with SessionLog(state) as record:
            return {"left_out": {str(user): fault for user, fault in record.left_out.items()}}

    return [
        of_file(ledger.path, ledger.state, fixed=True, ours=True),
        of_file(told, shows.run, name="told.json|rows.ledger", ours=True),
        of_file(kept, lambda: DurableJournal(journal).detail(SESSION, "open"), fixed=True),
        of_file(state / "session", session, fixed=True),
        of_file(state / LEFT_OUT, left_out),
    ]


def of_pictures(home: Path) -> list[Document]:
    """What lies beside pictures, or holds them."""
    shard, leaf, picture = home / "shard-0.tar", home / "train" / "leaf.json", io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    leaf.parent.mkdir()
    leaf.write_text(json.dumps({"user_data": {"w": {"x": [[0.5] * 784], "y": [3]}}}))
    valid = b'{"label": 1, "user": "u"}'

    def write(content: bytes) -> None:
        with tarfile.open(shard, "w") as tar:
            for name, data in (("0.png", picture.getvalue()), ("0.json", content)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))

    write(valid)
    return [
        Document("shard-0.tar", valid, write, lambda: bool(open_images(f"wds:{shard}")), ours=True),
        of_file(leaf, lambda: bool(open_federated_emnist(home, ["train"])), str(home), ours=True),
    ]


@st.composite
def altered(draw: st.DrawFn, content: bytes) -> bytes:
    """Other bytes; of JSON mostly with other values."""
    if content[:1] in b"{[" and draw(st.integers(0, 4)):
        return draw(altered_json(json.loads(content)))
    drawn = random.Random(draw(st.integers(0, 2**64)))
    for _ in range(draw(st.sampled_from([1, 1, 2, 5]))):
        content = changed(content, drawn)
    return content


@st.composite
def altered_json(draw: st.DrawFn, document: Any) -> bytes:
    """A value is gone, there twice, has another type, size or depth, or another name as well."""
    holder: Any = [document]
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 5)):
        holder = holder[key]
        key = draw(
            st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder)))
        )
    kind, word = draw(st.sampled_from(["value", "word", "extra", "missing", "twice"])), ""
    if kind == "missing":
        del holder[key]
    elif kind == "extra" and isinstance(holder, dict):
        holder[draw(st.sampled_from(NAMES))] = holder[key]
    elif kind == "value":
        holder[key] = draw(st.sampled_from(VALUES))
    else:
        word = draw(st.sampled_from(WORDS))
        if kind == "twice" and isinstance(holder, dict):
            word = f"{json.dumps(holder[key])}, {json.dumps(key)}: {word}"
        holder[key] = MARK
    text = json.dumps(document).replace(json.dumps(MARK), word)
    return text.encode(draw(st.sampled_from(["utf-8"] * 9 + ["utf-16"])), "surrogatepass")


def hold(document: Document, examples: int) -> None:
    original = document.read()

    phases = [Phase.explicit, Phase.generate, Phase.shrink]

    @settings(derandomize=True, database=None, deadline=None, max_examples=examples, phases=phases)
    @given(altered(document.valid))
    @example(b"\xff\xfe\0")
    def check(content: bytes) -> None:
        if content != document.valid:
            document.check(content, original)

    try:
        check()
    except BaseException as error:
        error.add_note(f"in {document.name}")
        raise
    finally:
        document.write(document.valid)


@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")
@pytest.mark.parametrize("make", [of_federations, of_releases, of_records, of_pictures])
@pytest.mark.parametrize("examples", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_file_is_refused_in_one_line_or_read_as_what_it_says(
    make, examples, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(catalogue, "draw", lambda result, path: None)
    for document in make(tmp_path):
        hold(document, examples)


@pytest.mark.parametrize("make", [of_federations, of_releases])
def test_what_is_no_file_is_refused_by_name(make, tmp_path: Path) -> None:
    for document in make(tmp_path):
        if (path := document.path) is None or path.parent.suffix == ".partial":
            continue
        path.unlink()
        with pytest.raises((ValueError, OSError), match=path.name):
            document.read()
        path.mkdir()
        with pytest.raises((ValueError, OSError), match=path.name):
            document.read()
        path.rmdir()
        document.write(document.valid)


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a file, got something else"):
        read_as(Path("/dev/zero"), dict)
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(LARGE + 1)
    with pytest.raises(ValueError, match=f"must be at most {LARGE} bytes, got more"):
        read_as(tmp_path / "long.json", dict)
