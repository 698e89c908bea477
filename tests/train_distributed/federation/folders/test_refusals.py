"""Wrong commands and bad fields of files are refused in one line, and nothing is changed."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command_lines import typed
from tests.train_distributed.commands.bad_inputs.cases import Spoil, gone, put, table
from tests.train_distributed.commands.bad_inputs.world import state
from tests.train_distributed.federation.folders.homes import SETTINGS, Home, digest_of, initiate
from train_distributed.__main__ import main
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import Invitation
from train_distributed.federation.documents.party import Party
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WindowFile
from train_distributed.federation.model_task import ModelTask

REPORT = "federation report --folder a/user0 --invitation a/fed/invitation --patience 0 --accept D"
HERE = f"{REPORT} --window a/window"
JOIN = "federation join --folder new --name me"
INIT = "federation init --folder new --transform a/public.safetensors --num-classes 3 --hosts h"
WINDOW = "federation window --folder a/fed --out new --aggregators"
SERVE = "federation aggregator --folder a/fed --window a/window"
COLLECT = "federation collect --folder a/fed --window a/window --out new --patience 0"
START = "federation start --folder s/user0 --invitation s/fed/invitation --accept S"
LIMIT = "ledger limit --epsilon 1 --delta 1e-5"
NONE = "must be a file, got nothing there; "
TLS, KEY, AUTHORITY = "a/fed/tls", "a/fed/tls/server.key", "a/window/ca.pem"
PRIVATE, PARTY = "s/user0/private.json", "s/user0/hospital-0.party.json"
FEDERATION, OPERATOR = "s/fed/federation.json", "s/fed/invitation/operator.json"
INVITED, OPENED = "s/fed/invitation/federation.json", "a/window/window.json"
SMALL_ORDER = {"verifying": 64 * "0", "sealing": 64 * "0"}  # anyone opens what is sealed to it


def of_b(name: str, to: str) -> Spoil:
    return lambda folder: shutil.copyfile(folder / "b/fed/tls" / name, folder / to)


def without(name: str) -> Spoil:
    return lambda folder: shutil.rmtree(folder / name)


CASES = table(
    # report
    (REPORT, "window must be given where a/fed/invitation holds none, got none"),
    (f"{REPORT} --window nowhere", f"^error: nowhere {NONE}".removesuffix("; ")),
    (f"{REPORT} --window b/window", "window must be of federation [0-9a-f]{64}, is not"),
    (f"{REPORT} --window a/fed", f"a/fed/window.json {NONE}the operator's `federation window`"),
    (f"{HERE} --folder b/user0", "keys in b/user0 must be registered in .*: ask the operator"),
    (f"{HERE} --folder a/fed", "a/fed must be a party's, is the operator's"),
    (f"{HERE} --folder a/server1", "folder must be a user's, is of computation server 1"),
    (f"{HERE} --folder nowhere", f"nowhere/private.json {NONE}a party's `federation join`"),
    (f"{HERE} --invitation nowhere", f"operator.json {NONE}the operator's `federation init`, in"),
    (f"{HERE} --invitation a/fed", f"a/fed/operator.json {NONE}.* the folder `invitation` of its"),
    (f"{HERE} --invitation ftp://h:1/invitations/D", "link must be https://HOST:PORT/.* got 'ftp"),
    (f"{HERE} --invitation http://h:1", "link must be https://HOST:PORT/invitations/DIGEST, got"),
    (f"{HERE} --invitation https://no.such.invalid/invitations/D", "no host has this name"),
    (f"{HERE} --invitation https://127.0.0.1:9/invitations/D", r"127\.0\.0\.1:9.* Connection ref"),
    (f"{HERE} --embeddings nowhere", "embeddings must be an existing directory, got nowhere"),
    (f"{HERE} --embeddings a/window", "meta.json"),
    (f"{HERE} --patience nan", r"patience must be in \[0, inf\), got nan"),
    (f"{HERE} --ledger no/x.ledger", "ledger must be in a folder that exists, got no/x.ledger"),
    (f"{HERE} --ledger a/fed", "ledger must be a file, got a/fed"),
    # join
    (f"{JOIN} --rows 3 --class-names a b", r"class_names must be left out with rows, got \('a'"),
    (f"{JOIN} --server --class-names a b", "class_names must be left out for a server"),
    (f"{JOIN} --rows 3 --hosts h", r"hosts must be left out for a user, got \('h',\)"),
    # init
    (f"{INIT} --parties nowhere", "nowhere must be a file, got nothing there"),
    (f"{INIT} --parties a/user0 a/server1", "servers .* of secagg, must be 0, got 1"),
    (f"{INIT} --parties a/user0 --folder a/fed", "directory must not exist, got a/fed"),
    # window
    (f"{WINDOW} h:1", "aggregators must be 2, got 1"),
    (f"{WINDOW} h:1 h", "address must be HOST:PORT, got 'h'"),
    (f"{WINDOW} h:1 h:2 --hours nan", r"hours must be in \(0, 100000\), got nan"),
    (f"{WINDOW} h:1 h:2 --folder s/fed", "must be of protocol shares, got secagg"),
    (f"{WINDOW} h:1 h:2 --out a/window", "directory must not exist, got a/window"),
    # aggregator
    (f"{SERVE} --folder b/fed", "keys in .*b/fed must be those of an aggregator of the window"),
    (f"{SERVE} --listen :9100", "address must be HOST:PORT, got ':9100'"),
    (f"{SERVE} --metrics 9200", "address must be HOST:PORT, got '9200'"),
    (f"{SERVE} --proxies mine", "proxies must be addresses or networks: 'mine'"),
    (f"{SERVE} --store mysql://me:hush@h/x", "store must begin with postgresql://, got 'mysql'$"),
    (SERVE, "roll must have the hash", put("a/window/roll", bytes(240))),
    (SERVE, "server.key must be the key of server.pem", of_b("server.key", KEY)),
    (SERVE, f"a/window/ca.pem {NONE}".removesuffix("; "), gone(AUTHORITY)),
    (SERVE, "a/fed/tls must hold an agreed certificate, is not there", without(TLS)),
    # collect
    (f"{COLLECT} --folder s/fed", "must be of protocol shares, got secagg"),
    (f"{COLLECT} --folder b/fed", "window must be of federation [0-9a-f]{64}, is not"),
    (f"{COLLECT} --out a/window", "output directory must not exist, got a/window"),
    (COLLECT, r"aggregator 0 at 127\.0\.0\.1:9 must answer: \[Errno 111\] Connection refused"),
    # start, invite, status
    (f"{LIMIT} --embeddings nowhere", "embeddings must be an embedding set, or .* got nowhere"),
    ("federation start --folder a/fed", "of protocol secagg; of shares, make a window and collect"),
    (f"{START} --folder a/user0 --invitation a/fed/invitation --accept D", "a user reports"),
    ("federation start --folder s/fed --port 70000", r"port must be in \[1, 65535\], got 70000"),
    (f"{START} --out x", "out must be left out with an invitation"),
    (f"{START} --most-epsilon -1", "most_epsilon must be > 0"),
    (f"{START} --patience 0", "patience must be in"),
    ("federation start --folder s/fed --accept S", "accept must be left out without an invitation"),
    (START, r"embeddings must be given for user 0 \(hospital-0\)", without("s/user0/embeddings")),
    (f"{START} --operator h:65536", "address must be HOST:PORT, got 'h:65536'"),
    (f"{START} --folder s/fed", "s/fed must be a party's, is the operator's: leave out invitation"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two federations with a window each, and one of sessions."""
    root = tmp_path_factory.mktemp("federations")
    for name in ("a", "b", "s"):
        (root / name).mkdir()
        home = initiate(root / name, **({"minimum": 2} if name == "s" else SETTINGS))
        if name != "s":
            Home(home, addresses=("127.0.0.1:9", "127.0.0.1:10"))
    return root


@pytest.fixture(scope="module")
def before(world: Path) -> dict[str, tuple[int, bytes]]:
    return kept(world)


def kept(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All but logs of what was begun, and what was agreed to."""
    begun = re.compile("/(runs|state)")
    return {path: held for path, held in state(folder).items() if not begun.search(path)}


@pytest.mark.parametrize("case", CASES, ids=[case.typed for case in CASES])
def test_a_wrong_command_is_one_line(world, before, tmp_path, monkeypatch, capsys, case) -> None:
    folder = world
    if case.spoil is not None:
        folder = shutil.copytree(world, tmp_path / "copy")
        case.spoil(folder)
        before = kept(folder)
    monkeypatch.chdir(folder)
    told = {"D": digest_of(world / "a"), "S": digest_of(world / "s")}
    words = [re.sub("(?<=/)D$|^[DS]$", lambda m: told[m[0]], word) for word in case.arguments]
    with typed("blind-averaging", main, monkeypatch, capsys) as say:
        code, _, error = say(*words)
    assert code == 2, error
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert re.search(case.says, error), error
    if "http" in case.typed:  # what a link names is put there; the folder is made before
        shutil.rmtree("a/user0/invitations", ignore_errors=True)
    assert kept(folder) == before


def read(world: Path, name: str) -> None:
    """As whoever gets this file reads it."""
    home = world / "s"
    if name == FEDERATION:
        found = Federation.load(world / FEDERATION)
        found.session(bytes(32))
        ModelTask.of(found, home / "fed" / "transform.safetensors")
    elif name in (OPERATOR, INVITED):
        Invitation.read(home / "fed" / "invitation")
    elif name == PRIVATE:
        read_private(home / "user0")
    else:
        {PARTY: Party, OPENED: WindowFile}[name].load(world / name)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (FEDERATION, {"version": 2}, "version must be one of 3, got 2"),
        (FEDERATION, {"sessions": True}, "sessions must be a whole number, got True"),
        (FEDERATION, {"sessions": 0}, "sessions must be a whole number >= 1, got 0"),
        (FEDERATION, {"dimension": 2**40}, "dimension must be a whole number <= 268435456"),
        (FEDERATION, {"protocol": "plain"}, "protocol must be one of shares, secagg, got plain"),
        (FEDERATION, {"users": {"0": "x"}}, "users.0 must be 32 bytes in hexadecimal, got x"),
        (FEDERATION, {"users": {"0": "a" * 64 + "\n"}}, "users.0 must be 32 bytes in hexadecimal"),
        (FEDERATION, {"users": {"01": "a" * 64}}, "users.01 must be a whole number, got 01"),
        (FEDERATION, {"servers": []}, "servers must be"),
        (FEDERATION, {"names": {"0": "ab", "1": "A b"}}, "names.1 must be 1 to 40 of a-z"),
        (FEDERATION, {"names": {"9": "h-9"}}, "names must be of parties of the federation, got 9"),
        (FEDERATION, {"extra": 1}, "extra must be left out"),
        (FEDERATION, {"users": {}}, "users must be on a roll with protocol shares, listed with"),
        (FEDERATION, {"roll": {"root": 64 * "0", "sizes": {"3": 5}}}, "users must be on a roll wi"),
        (FEDERATION, {"minimum": 99}, "minimum must be <= "),
        (FEDERATION, {"servers": [SMALL_ORDER]}, r"servers\.0\.sealing must be a key of full ord"),
        ("task", {"sizes": {"0": 9, "1": 9, "2": 0}}, "task.sizes.2 must be a whole number >= 1"),
        ("task", {"sizes": {"0": 9, "1": 9}}, "task.sizes must be of the federation's users"),
        ("task", {"epsilon": 0}, "task.epsilon must be > 0, got 0"),
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
        (OPERATOR, {"address": "elsewhere:1"}, "signature must be the operator's"),
        (OPERATOR, {"signature": ""}, "signature must be the operator's"),
        (INVITED, {"minimum": 3}, "digest that operator.json says"),
        (OPENED, {"noise_std": 0.5}, "must"),
        (OPENED, {"minimum": 4}, "must"),
        (OPENED, {"closes": 1}, "must"),
        (OPENED, {"nonce": "00"}, "nonce must"),
        (OPENED, {"roll": None}, "roll must"),
        (OPENED, {"sizes": {"12": [3]}}, "sizes.12 must"),
        (OPENED, {"sizes": {"12": [3, 2**32]}}, "sizes"),
        (OPENED, {"sizes": {"012": [3, 9]}}, "sizes.012 must"),
        (OPENED, {"sizes": {"12": [1, 9]}}, "must"),
        (OPENED, {"context": "0"}, "context must"),
        (OPENED, {"aggregators": []}, "aggregators must"),
        (OPENED, {"dimension": 2**40}, "dimension must"),
        (OPENED, {"more": 1}, "more must be left out"),
    ],
)
def test_a_bad_field_is_named(name: str, change: dict[str, Any], message: str, world: Path) -> None:
    file = FEDERATION if name == "task" else name
    path = world / file
    content = path.read_bytes()
    fields = json.loads(content)
    fields |= {"task": fields["task"] | change} if name == "task" else change
    if name == OPENED:
        fields["signature"] = ""  # or it would be refused for that alone
    path.write_text(json.dumps(fields))
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read(world, file)
    finally:
        path.write_bytes(content)
    assert "\n" not in str(caught.value)
    assert name == "task" or str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    assert "secret" not in str(caught.value)
