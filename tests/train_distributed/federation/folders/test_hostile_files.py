"""Whatever a file holds, its reader returns or refuses it by a ValueError that names the file."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation.folders.homes import initiate
from tests.train_distributed.federation.folders.windows import SETTINGS, Home
from train_distributed.federation.documents.certificates import read_certificates, serving
from train_distributed.federation.documents.document import LARGE, read_as
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.terms import read_transform
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.federation.model_task import ModelTask

VALUES = [
    *(None, True, False, 0, -1, 1, 2**31, 2**64, 1.5, -0.0, 1e300, 5e-324),
    *("", "0", "a" * 300, "\x1b[2J", "\x00", "\ud800", "é", "../../x", "0" * 64, "f" * 128),
    *([], {}, [[]], [1, "a", None], {"a": {"b": [1]}}, {"0": 1, "01": 2}, {"-1": "x"}),
]
RAW = [
    *("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 400, "00", "'a'"),
    *(
        '"\\ud800"',
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"a":1,"a":2}',
        '"\\u0000"',
        "1.0",
        "1e2",
        "[1,]",
        "",
    ),
]


PRIVATE, PARTY = "user0/private.json", "user0/hospital-0.party.json"
FEDERATION, OPERATOR = "fed/federation.json", "fed/invitation/operator.json"
INVITED, WINDOW = "fed/invitation/federation.json", "shares/window/window.json"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a federation, and of another one that has a window; tests leave them as found."""
    home = initiate(tmp_path_factory.mktemp("hostile"))
    (home / "shares").mkdir()
    Home(initiate(home / "shares", **SETTINGS))
    return home


def _readers(home: Path) -> dict[Path, Callable[[], object]]:
    fed, user = home / "fed", home / "user0"
    invitation, tls = fed / "invitation", fed / "tls"
    transform = fed / "transform.safetensors"

    def federation() -> None:
        found = Federation.load(fed / "federation.json")
        found.session(bytes(32))
        ModelTask.of(found, transform)

    return {
        home / PARTY: lambda: Party.load(home / PARTY),
        home / FEDERATION: federation,
        home / PRIVATE: lambda: read_private(user),
        home / OPERATOR: lambda: Invitation.read(invitation),
        home / INVITED: lambda: Invitation.read(invitation),
        home / WINDOW: lambda: WindowFile.load(home / WINDOW),
        invitation / "ca.pem": lambda: read_certificates(invitation / "ca.pem"),
        tls / "server.pem": lambda: serving(tls, invitation / "ca.pem"),
        tls / "server.key": lambda: serving(tls, invitation / "ca.pem"),
        transform: lambda: read_transform(transform),
    }


def _mutated(content: bytes, name: str, draw: random.Random) -> bytes:
    if name.endswith(".json") and draw.random() < 0.8:
        return _mutated_json(json.loads(content), draw)
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at, kind = draw.randrange(len(changed) + 1), draw.randrange(5)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at:at] = draw.randbytes(draw.choice([1, 3, 100]))
        elif kind == 2:
            del changed[at : at + draw.choice([1, 8, 64])]
        elif kind == 3:
            changed[at:at] = changed[: draw.choice([1, 8, 64])]
        elif at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _mutated_json(document: Any, draw: random.Random) -> bytes:
    marker = "replace me 61f1"
    holder, key = _somewhere(document, draw)
    kind = draw.randrange(4)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[draw.choice(["", "x", "01", "-1", "4294967296", "1e3", "\x1b[1m"])] = holder[key]
    elif kind == 2:
        holder[key] = draw.choice(VALUES)
    else:
        holder[key] = marker
    text = json.dumps(document).replace(json.dumps(marker), draw.choice(RAW))
    if draw.random() < 0.05:  # a field twice
        text = text[:-1] + ", " + text[1:]
    return text.encode("utf-16" if draw.random() < 0.02 else "utf-8")


def _somewhere(document: Any, draw: random.Random) -> tuple[Any, Any]:
    holder, key = document, draw.choice(list(document))
    while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.75:
        holder = holder[key]
        key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
    return holder, key


@pytest.mark.parametrize("cases", [1_200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_files_are_refused_by_name(home: Path, cases: int) -> None:
    draw, readers, refused = random.Random(cases), _readers(home), 0
    for read in readers.values():
        read()  # all are read as they are
    for number in range(cases):
        path = list(readers)[number % len(readers)]
        content = path.read_bytes()
        path.write_bytes(_mutated(content, path.name, draw))
        try:
            readers[path]()
        except ValueError as error:
            refused, message = refused + 1, str(error)
            assert path.name in message or "task" in message or "federation" in message, message
            assert message.isprintable(), message
            assert len(message) < 1000, message
        finally:
            path.write_bytes(content)
    assert refused > 0.5 * cases


def test_what_is_no_file_is_refused_by_name(home: Path) -> None:
    for path, read in _readers(home).items():
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(ValueError, match=path.name):
            read()
        path.mkdir()
        with pytest.raises(ValueError, match=path.name):
            read()
        path.rmdir()
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=path.name):
            read()
        path.write_bytes(content)


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a file, got something else"):
        read_as(Path("/dev/zero"), dict)
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(LARGE + 1)
    with pytest.raises(ValueError, match=f"must be at most {LARGE} bytes, got more"):
        read_as(tmp_path / "long.json", dict)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (FEDERATION, {"version": 2}, "version must be one of 3, got 2"),
        (FEDERATION, {"sessions": True}, "sessions must be a whole number, got True"),
        (FEDERATION, {"sessions": 0}, "sessions must be a whole number >= 1, got 0"),
        (FEDERATION, {"dimension": 2**40}, "dimension must be a whole number <= 268435456"),
        (FEDERATION, {"dimension": 2.5}, "dimension must be a whole number, got 2.5"),
        (FEDERATION, {"protocol": "plain"}, "protocol must be one of shares, secagg, got plain"),
        (FEDERATION, {"users": {"0": "x"}}, "users.0 must be 32 bytes in hexadecimal, got x"),
        (FEDERATION, {"users": {"0": "a" * 64 + "\n"}}, "users.0 must be 32 bytes in hexadecimal"),
        (FEDERATION, {"users": {"1_0": "a" * 64}}, "users.1_0 must be a whole number, got 1_0"),
        (FEDERATION, {"users": {"01": "a" * 64}}, "users.01 must be a whole number, got 01"),
        (FEDERATION, {"servers": []}, "servers must be"),
        (FEDERATION, {"servers": [{"verifying": "0" * 64}]}, "servers.0.sealing must be given"),
        (FEDERATION, {"names": {"0": "ab", "1": "A b"}}, "names.1 must be 1 to 40 of a-z"),
        (FEDERATION, {"names": {"9": "h-9"}}, "names must be of parties of the federation, got 9"),
        (FEDERATION, {"extra": 1}, "extra must be left out"),
        (FEDERATION, {"\x1b[1m": 1}, r"\\x1b\[1m must be left out"),
        ("task", {"sizes": {"0": 9, "1": 9, "2": 0}}, "task.sizes.2 must be a whole number >= 1"),
        ("task", {"sizes": {"0": 9, "1": 9}}, "task.sizes must be of the federation's users"),
        ("task", {"epsilon": "1"}, "task.epsilon must be a number, got 1"),
        ("task", {"epsilon": 0}, "task.epsilon must be > 0, got 0"),
        ("task", {"options": 5}, "task.options must be an object, got 5"),
        ("task", {"options": {"edges": "/etc"}}, "task.options.edges must be left out"),
        ("task", {"options": {"solver": "guess"}}, "task.options.solver must be one of exact, sgd"),
        ("task", {"unit": "people"}, "task.unit must be one of record, user, got people"),
        ("task", {"method": "admm"}, "task.method must be one of discriminant"),
        ("task", {"honest_fraction": None}, "task.honest_fraction must be given where users add"),
        ("task", {"noise_by": "servers"}, "task.honest_fraction must be left out"),
        ("task", {"class_names": ["a", "a", "b"]}, "task.class_names must be 3 distinct names"),
        ("task", {"class_names": ["a", "b", "\u202e"]}, "task.class_names must be 3 distinct na"),
        ("task", {"num_classes": 10**9}, "task.num_classes must be a whole number"),
        (PRIVATE, {"signing": "secret"}, "signing must be 32 bytes in hexadecimal, is not"),
        (PRIVATE, {"signing": 1234}, "signing must be text, got something"),
        (PARTY, {"rows": 0}, "rows of a user must be >= 1, got 0"),
        (PARTY, {"role": "server"}, "rows of a server must be 0, got"),
        (PARTY, {"sealing": "00" * 32}, "sealing must be a key of full order"),
        (PARTY, {"rows": 99}, "signature must be the party's own"),
        (PARTY, {"name": "hospital-1"}, "signature must be the party's own"),
        (PARTY, {"verifying": "58" + 31 * "66"}, "signature must be the party's own"),
        (PARTY, {"sealing": "09" + 31 * "00"}, "signature must be the party's own"),
        (PARTY, {"signature": "0"}, "signature must be 64 bytes in hexadecimal, got 0"),
        (OPERATOR, {"address": "nowhere"}, "address must be HOST:PORT, got nowhere"),
        (OPERATOR, {"address": "elsewhere:1"}, "signature must be the operator's"),
        (OPERATOR, {"signature": ""}, "signature must be the operator's"),
        (INVITED, {"minimum": 2}, "digest that operator.json says"),
        (WINDOW, {"noise_std": 0.5}, "must"),
        (WINDOW, {"minimum": 4}, "must"),
        (WINDOW, {"closes": 1}, "must"),
        (WINDOW, {"nonce": "00"}, "nonce must"),
        (WINDOW, {"roll": None}, "roll must"),
        (WINDOW, {"sizes": {"12": [3]}}, "sizes.12 must"),
        (WINDOW, {"sizes": {"12": [3, 2**32]}}, "sizes"),
        (WINDOW, {"sizes": {"012": [3, 9]}}, "sizes.012 must"),
        (WINDOW, {"sizes": {"12": [1, 9]}}, "must"),
        (WINDOW, {"context": "0"}, "context must"),
        (WINDOW, {"aggregators": []}, "aggregators must"),
        (WINDOW, {"dimension": 2**40}, "dimension must"),
        (WINDOW, {"more": 1}, "more must be left out"),
    ],
)
def test_a_bad_field_is_named(name: str, change: dict[str, Any], message: str, home: Path) -> None:
    path = home / (FEDERATION if name == "task" else name)
    content = path.read_bytes()
    fields = json.loads(content)
    fields |= {"task": fields["task"] | change} if name == "task" else change
    if name == WINDOW:
        fields["signature"] = ""  # or it would be refused for that alone
    path.write_text(json.dumps(fields))
    try:
        with pytest.raises(ValueError, match=message) as caught:
            _readers(home)[path]()
    finally:
        path.write_bytes(content)
    assert "\n" not in str(caught.value)
    assert name == "task" or str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_signature_is_of_the_values_and_not_of_the_bytes(home: Path) -> None:
    """Of a name that is there twice the last value counts: only that one is signed."""
    path = home / PARTY
    text = path.read_text()
    try:
        path.write_text(text.replace("{", '{"rows": 99,', 1))
        assert Party.load(path).fields == json.loads(text)
        path.write_text(text.rstrip().removesuffix("}") + ', "rows": 99}')
        with pytest.raises(ValueError, match="signature must be the party's own"):
            Party.load(path)
    finally:
        path.write_text(text)
