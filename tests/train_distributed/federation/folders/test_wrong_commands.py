"""What newcomers type wrong: one line with argument, rule, value and remedy; nothing is changed."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command_lines import typed
from tests.train_distributed.commands.bad_inputs.case import (
    Case,
    as_folder,
    gone,
    put,
    state,
    table,
)
from tests.train_distributed.federation.folders.homes import digest_of, initiate
from tests.train_distributed.federation.folders.windows import SETTINGS, Home
from train_distributed.__main__ import main

REPORT = "federation report --folder a/user0 --invitation a/fed/invitation --patience 0 --accept D"
HERE = f"{REPORT} --window a/window"
JOIN = "federation join --folder new --name me"
INIT = "federation init --folder new --transform a/public.safetensors --num-classes 3 --hosts h"
WINDOW = "federation window --folder a/fed --out new --aggregators"
SERVE = "federation aggregator --folder a/fed --window a/window"
COLLECT = "federation collect --folder a/fed --window a/window --out new --patience 0"
START = "federation start --folder s/user0 --invitation s/fed/invitation --accept S"
NONE = "must be a file, got nothing there; "
TLS = "a/fed/tls"


def other_key(folder: Path) -> None:
    shutil.copyfile(folder / "b/fed/tls/server.key", folder / TLS / "server.key")


def other_authority(folder: Path) -> None:
    shutil.copyfile(folder / "b/fed/tls/server.pem", folder / "a/window/ca.pem")


def without_tls(folder: Path) -> None:
    shutil.rmtree(folder / TLS)


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
    (f"{HERE} --folder a/user0", "private.json must", put("a/user0/private.json", "{")),
    (f"{HERE} --invitation nowhere", f"operator.json {NONE}the operator's `federation init`, in"),
    (f"{HERE} --invitation a/fed", f"a/fed/operator.json {NONE}.* the folder `invitation` of its"),
    (f"{HERE} --invitation s/fed/invitation", "must have the digest that you were told"),
    (f"{HERE} --invitation ftp://h:1/invitations/D", "link must be https://HOST:PORT/.* got 'ftp"),
    (f"{HERE} --invitation h:1/invitations/D", "link must be https://HOST:PORT/.* got 'h:1/inv"),
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
    (
        f"{JOIN} --embeddings a/user0/embeddings --class-names c b a",
        r"must be \('c', 'b', 'a'\) in the embedding set, as given, got \('a', 'b', 'c'\)",
    ),
    (f"{JOIN} --embeddings a/user0/embeddings --resize 9", "resize must be left out without pict"),
    (f"{JOIN} --server --class-names a b", "class_names must be left out for a server"),
    (f"{JOIN} --rows 3 --hosts h", r"hosts must be left out for a user, got \('h',\)"),
    (f"{JOIN} --server --hosts h:1", "hosts must be names .* without a port, got"),
    # init
    (f"{INIT} --parties nowhere", "nowhere must be a file, got nothing there"),
    (f"{INIT} --parties a/user0 a/user1 --hosts h:1", "hosts must be names .* without a port, got"),
    (f"{INIT} --parties a/user0 a/user1 --hosts 'h h'", "hosts must be names .*, got 'h h'"),
    (f"{INIT} --parties a/user0 a/server1", "servers .* of secagg, must be 0, got 1"),
    (f"{INIT} --parties a/user0 --transform nowhere", "nowhere must be a file, got nothing"),
    (f"{INIT} --parties a/user0 --folder a/fed", "directory must not exist, got a/fed"),
    # window
    (f"{WINDOW} h:1", "aggregators must be 2, got 1"),
    (f"{WINDOW} h:1 h", "address must be HOST:PORT, got 'h'"),
    (f"{WINDOW} h:1 h:2 --hours nan", r"hours must be in \(0, 100000\), got nan"),
    (f"{WINDOW} h:1 h:2 --folder s/fed", "must be of protocol shares, got secagg"),
    (f"{WINDOW} h:1 h:2 --folder a/user0", f"federation.json {NONE}the operator's `federation in"),
    (f"{WINDOW} h:1 h:2 --out a/window", "directory must not exist, got a/window"),
    (f"{WINDOW} h:1 h:2", "roll must have the hash", put("a/fed/roll", bytes(240))),
    # aggregator
    (f"{SERVE} --window nowhere", f"nowhere/window.json {NONE}the operator's `federation window`"),
    (f"{SERVE} --folder a/user0", "keys in .*user0 must be those of an aggregator of the window"),
    (f"{SERVE} --folder b/fed", "keys in .*b/fed must be those of an aggregator of the window"),
    (f"{SERVE} --listen 9100", "address must be HOST:PORT, got '9100'"),
    (f"{SERVE} --metrics 9200", "address must be HOST:PORT, got '9200'"),
    (f"{SERVE} --proxies mine", "proxies must be addresses or networks: 'mine'"),
    (f"{SERVE} --store mysql://me:hush@h/x", "store must begin with postgresql://, got 'mysql'$"),
    (SERVE, "roll must have the hash", put("a/window/roll", bytes(240))),
    (SERVE, "must hold lines of 80 bytes", put("a/window/roll", bytes(239))),
    (SERVE, "server.key must be the key of server.pem: ", put(f"{TLS}/server.key", "x")),
    (SERVE, "server.key must be the key of server.pem", other_key),
    (SERVE, "tls/server.pem must be certificates, got", put(f"{TLS}/server.pem", "x")),
    (SERVE, "tls/server.pem must be agreed on in a/window/ca.pem, is not: the o", other_authority),
    (SERVE, f"a/window/ca.pem {NONE}".removesuffix("; "), gone("a/window/ca.pem")),
    (SERVE, "a/fed/tls must hold an agreed certificate, is not there", without_tls),
    # collect
    (f"{COLLECT} --folder a/user0", f"federation.json {NONE}the operator's `federation init`"),
    (f"{COLLECT} --folder s/fed", "must be of protocol shares, got secagg"),
    (f"{COLLECT} --folder b/fed", "window must be of federation [0-9a-f]{64}, is not"),
    (f"{COLLECT} --window nowhere", f"nowhere/window.json {NONE}the operator's"),
    (f"{COLLECT} --out a/window", "output directory must not exist, got a/window"),
    (f"{COLLECT} --patience -1", r"patience must be in \[0, inf\), got -1"),
    (f"{COLLECT} --ledger no/x.ledger", "ledger must be in a folder that exists, got no/x.ledger"),
    (f"{COLLECT} --ledger l", "ledger must be a file, got l", as_folder("l")),
    (COLLECT, r"aggregator 0 at 127\.0\.0\.1:9 must answer: \[Errno 111\] Connection refused"),
    # start, invite, status
    ("federation start --folder a/fed", "of protocol secagg; of shares, make a window and collect"),
    (f"{START} --folder a/user0 --invitation a/fed/invitation --accept D", "a user reports"),
    ("federation start --folder nowhere", f"federation.json {NONE}the operator's"),
    ("federation start --folder s/fed --port 70000", r"port must be in \[1, 65535\], got 70000"),
    (f"{START} --operator h", "address must be HOST:PORT, got 'h'"),
    (f"{START} --folder s/fed", "s/fed must be a party's, is the operator's: leave out invitation"),
    ("federation invite --folder a/fed --listen 9100", "address must be HOST:PORT, got '9100'"),
    ("federation invite --folder a/user0 --listen h:1", f"operator.json {NONE}"),
    ("federation status --folder nowhere", f"nowhere/private.json {NONE}a party's `federation jo"),
    # ledger
    ("ledger show --embeddings a/user0/embeddings", "ledger must exist, got .*embeddings.ledger"),
    (
        "ledger limit --embeddings nowhere --epsilon 1 --delta 1e-5",
        "embeddings must be an embedding set, or have been one with a ledger, got nowhere",
    ),
    ("ledger limit --embeddings a/window --epsilon 1 --delta 1e-5", "be an embedding set.*a/wind"),
    ("ledger merge --ledger l.ledger --other l.ledger", "must be another ledger that exists, got"),
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


@pytest.fixture
def say(monkeypatch, capsys) -> Iterator[Callable[..., tuple[int, str, str]]]:
    with typed("blind-averaging", main, monkeypatch, capsys) as run:
        yield run


def kept(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All but logs of what was begun, and what was agreed to."""
    begun = re.compile("/(runs|state)")
    return {path: held for path, held in state(folder).items() if not begun.search(path)}


@pytest.mark.parametrize("case", CASES, ids=[case.typed for case in CASES])
def test_a_wrong_command_is_one_line_and_changes_nothing(
    say, world, before, tmp_path, monkeypatch, case: Case
) -> None:
    folder = world
    if case.spoil is not None:
        folder = shutil.copytree(world, tmp_path / "copy")
        case.spoil(folder)
        before = kept(folder)
    monkeypatch.chdir(folder)
    told = {"D": digest_of(world / "a"), "S": digest_of(world / "s")}
    words = [re.sub("(?<=/)D$|^[DS]$", lambda m: told[m[0]], word) for word in case.arguments]
    code, _, error = say(*words)
    assert code == 2, error
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert re.search(case.says, error), error
    if "http" in case.typed:  # what a link names is put there; the folder is made before
        shutil.rmtree("a/user0/invitations", ignore_errors=True)
    assert kept(folder) == before
