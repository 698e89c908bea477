"""A bad field of a federation's file is named in one line, without what is secret."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation.folders.homes import initiate
from tests.train_distributed.federation.folders.windows import SETTINGS, Home
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.federation.model_task import ModelTask

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
    invitation = fed / "invitation"
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
    }


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
