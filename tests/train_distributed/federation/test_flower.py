"""The Flower app, over a stand-in and in Flower itself: exact sums whatever it loses."""

import contextlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import train_distributed.federation.flower_app as flower_app
from tests.ports import free_port
from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import in_thread
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.attendance import Attendance, Away, Foreign, attend
from train_distributed.federation.documents.federation import Deadlines
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.flower_app import party
from train_distributed.federation.flower_app.party import NodeLine
from train_distributed.federation.orders import NO_QUESTION, Poll, read_poll
from train_distributed.federation.progress import Log

HERE = Path(flower_app.__file__).parent  # the app
APPS = ["client_app", "server_app"]
DEADLINES = Deadlines(come=6.0, answer=4.0, goodbye=2.0, again=0.0)
FIRST_NODE = 2**63 + 7  # Flower's are 64 bits without a sign
EMPTY = Poll(0, NO_QUESTION, b"")


class Message:
    """As `flwr.app.Message`, in what the apps use."""

    def __init__(self, content: Any, **given: Any) -> None:
        self.content, self.given = content, given
        replied = given.get("reply_to")
        self.metadata = types.SimpleNamespace(reply_to_message_id=replied and replied.name)
        self.error, self.name = types.SimpleNamespace(reason="the node is gone"), ""

    def has_error(self) -> bool:
        return self.content is None


def registered(name: str) -> type:
    def register(self: Any) -> Callable[[Any], Any]:
        return lambda function: self.__dict__.setdefault("function", function)

    return type("App", (), {name: register})


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Both modules, on the stand-in."""
    names = {
        "app": {
            "ConfigRecord": dict,
            "Context": types.SimpleNamespace,
            "Message": Message,
            "RecordDict": lambda records: types.SimpleNamespace(config_records=records),
        },
        "clientapp": {"ClientApp": registered("query")},
        "serverapp": {"Grid": object, "ServerApp": registered("main")},
    }
    for name, contents in {"": {}, **names}.items():
        module = types.ModuleType(f"flwr.{name}".rstrip("."))
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    made = []
    for name in APPS:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        made.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(made[-1])
    for name, seconds in {"RETRY": 0.3, "AGAIN": 0.01, "LOOK": 0.01}.items():
        monkeypatch.setattr(made[1], f"{name}_SECONDS", seconds)
    return made


class Grid:
    """As `flwr.serverapp.Grid`: every message in a thread of its own."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.folder, self.sent = client, folder, 0
        self.replies: dict[str, Message] = {}
        self.turn: Callable[[int], str] = lambda count: "carry"
        self.garble: Callable[[int, Any], Any] = lambda node, reply: reply

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + user for user in range(fake.W)]

    def push_messages(self, messages: list[Message]) -> list[str]:
        return [self.push(message) for message in messages]

    def push(self, message: Message) -> str:
        self.sent += 1
        message.name, turn = f"message {self.sent}", self.turn(self.sent)
        if turn == "error":
            self.replies[message.name] = Message(None, reply_to=message)
        for _ in range({"twice": 2, "carry": 1}.get(turn, 0)):
            in_thread(self.carry, message.given["dst_node_id"] - FIRST_NODE, message)
        return "" if turn == "fail" else message.name

    def carry(self, node: int, message: Message) -> None:
        config = {"partition-id": node}, {"sockets": str(self.folder)}
        context = types.SimpleNamespace(node_config=config[0], run_config=config[1])
        reply = self.garble(node, self.client.carry(message, context))
        self.replies.setdefault(message.name, reply)

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self.replies.pop(name) for name in names if name in self.replies]


class Field(fake.Site):
    """An operator's service, parties at their sockets, and the two apps between them."""

    def __init__(self, folder: Path, apps: list[Any]) -> None:
        super().__init__(folder, deadlines=DEADLINES, dropout_fraction=0.4)
        self.client, self.server = apps
        self.grid = Grid(self.client, folder)
        self.codes: dict[int, int] = {}
        self.log = Log()

    def attendance(self, user: int, patience: float = 60) -> Attendance:
        vector, journal = lambda: fake.VECTORS[user], VolatileJournal()
        endpoint = UserEndpoint(self.federation, user, fake.KEYS[user], vector, journal)
        address = f"unix:{self.folder}/{user}.sock"
        return self.party(endpoint, user, address=address, certificates=None, patience=patience)

    def take_part(self, user: int, patience: float = 60) -> None:
        at = self.attendance(user, patience)
        self.codes[user] = attend(at, NodeLine(at))

    def run(self) -> None:
        ca = str(self.folder / "server.pem")
        config = {"operator": f"https://127.0.0.1:{self.port}", "ca": ca, "patience": 3.0}
        self.server.main(self.grid, types.SimpleNamespace(run_config=config))

    def sum(self, users: set[int], bystanders: frozenset[int] = frozenset()) -> set[int]:
        """Users whose sum is opened, which must be exact, where these take part."""
        threads = [in_thread(self.take_part, user) for user in users]
        threads += [in_thread(self.take_part, user, 6) for user in bystanders]
        with self.relay() as relay:
            carrier = in_thread(self.run)
            relay.federation = self.federation
            opened = fake.operate(relay, self.log)
        for thread in [*threads, carrier]:
            thread.join(60)
            assert not thread.is_alive()
        assert {user: self.codes[user] for user in users} == dict.fromkeys(users, 0)
        return opened


@pytest.fixture
def field(tmp_path: Path, apps: list[Any]) -> Field:
    return Field(tmp_path, apps)


@pytest.mark.parametrize("turns", [["carry"], ["twice", "error", "carry", "fail", "carry"]])
def test_the_sum_of_all_whatever_flower_loses(turns: list[str], field: Field, monkeypatch) -> None:
    """What is lost is sent again before anybody looks whether there are new nodes."""
    if "error" in turns:
        monkeypatch.setattr(field.server, "RETRY_SECONDS", 6.0)
    field.grid.turn = lambda count: turns[count % len(turns)]
    assert field.sum(set(fake.ALL)) == fake.ALL


FORGERIES: list[Callable[[bytes], Any]] = [
    lambda poll: {"refused": "\x1b[31mno party answers"},
    lambda poll: {"poll": 5},
    lambda poll: {"poll": poll[:100]},
    lambda poll: {"poll": poll[:36] + b"\1" + poll[37:]},  # of the next party
    lambda poll: {"poll": poll + b"x"},
]


def test_a_node_that_forges_or_whose_party_has_ended_is_one_party_less(field, capsys) -> None:
    """Its party's polls do not arrive, and no other party's are touched."""
    count, others = itertools.count(), {2, 3, 4}

    def garble(node: int, reply: Message) -> Message:
        relay = reply.content.config_records["relay"]
        if node == 0 and "poll" in relay:
            forged = FORGERIES[next(count) % len(FORGERIES)](relay["poll"])
            reply.content.config_records["relay"] = forged
        return reply

    field.grid.garble = garble
    assert field.sum(others, bystanders=frozenset({0})) == others
    assert field.log.missing == {0: "be present", 1: "be present"}
    assert next(count) > len(FORGERIES)
    shown, path = capsys.readouterr().out, field.folder / "1.sock"
    assert "\x1b" not in shown
    assert f"node {FIRST_NODE + 1}: no party answers at {path}: No such file" in shown


def test_a_carrier_without_an_operator_says_so(field: Field) -> None:
    with pytest.raises(ValueError, match=r"operator must be https://HOST:PORT, got 'sum:1'"):
        field.server.Operator("sum:1", "", 1.0)
    operator = field.server.Operator(f"http://127.0.0.1:{field.port}", "", 0.2)
    with pytest.raises(ConnectionError, match=r"operator must answer, did not: .*refused"):
        field.server.Carrier(field.grid, operator, ThreadPoolExecutor(1)).run()


def line(field: Field, patience: float = 30.0) -> NodeLine:
    return NodeLine(field.attendance(0, patience))


def ask(path: Path, content: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as node:
        node.connect(str(path))
        node.sendall(content)
        node.shutdown(socket.SHUT_WR)
        node.settimeout(20)
        return b"".join(iter(lambda: node.recv(4096), b""))


def test_only_its_owner_may_ask_or_the_group_of_a_folder_that_says_so(field: Field) -> None:
    path = field.folder / "0.sock"
    for mode, expected in ((0o700, 0o600), (0o2750, 0o660)):
        field.folder.chmod(mode)
        with line(field):
            assert stat.S_IMODE(path.stat().st_mode) == expected
        assert not path.exists()


def test_a_path_that_is_taken_is_left_alone(field: Field) -> None:
    path = field.folder / "0.sock"
    taken = f"operator must be a free path, got {path}: Address already in use"
    with line(field), pytest.raises(ValueError, match=taken), line(field):
        pass
    path.write_text("a file")
    with pytest.raises(ValueError, match=taken), line(field):
        pass
    assert path.read_text() == "a file"
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(path))
    with line(field):  # what a killed process has left is replaced
        assert path.is_socket()
    field.folder = field.folder / ("x" * 100)
    with (
        pytest.raises(ValueError, match="operator must be unix: and <= 107 bytes, got"),
        line(field),
    ):
        pass


def test_a_party_answers_what_it_is_asked_and_nothing_else(field: Field) -> None:
    path, found = field.folder / "0.sock", list[bytes]()
    with line(field) as opened:

        def asking(content: bytes) -> threading.Thread:
            return in_thread(lambda: found.append(ask(path, content)))

        def drop(hostile: bytes) -> None:
            with suppress(OSError):
                ask(path, hostile)

        thread = asking((200).to_bytes(2, "big") + b"question")
        assert opened(EMPTY) == (200, b"question")
        second = asking((204).to_bytes(2, "big"))
        answer = Poll(0, bytes(32), b"answer")
        assert opened(answer) == (204, b"")
        thread.join()
        told, head = found.pop(), field.server.HEAD_BYTES
        assert (told[0], told[1:33]) == (0, field.federation.digest)
        assert read_poll(field.federation, told[head:]) == answer
        assert told[33:head] == party.write_poll(field.federation, answer, fake.KEYS[0])[1]
        most = 2 + 32 + field.federation.largest_frame
        for hostile in (b"", b"x", bytes(most + 1)):
            third = in_thread(drop, hostile)
            with pytest.raises(Foreign, match=f"question must be of 2 to {most} bytes, got"):
                opened(EMPTY)
            third.join()
        second.join()


def test_a_silent_node_is_away(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "BROKEN_SECONDS", 0.1)
    with line(field, patience=0.2) as opened:
        with pytest.raises(Away, match=r"no Flower node asks at .*timed out"):
            opened(EMPTY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stuck:
            stuck.connect(str(field.folder / "0.sock"))
            stuck.sendall(b"x")
            with pytest.raises(Away, match=r"no Flower node asks at .*timed out"):
                opened(EMPTY)


def test_the_two_apps_need_nothing_but_flower_and_nothing_else_needs_it() -> None:
    for name in APPS:
        text = (HERE / f"{name}.py").read_text()
        found = set(re.findall(r"^ *(?:from|import) (\S+)", text, re.MULTILINE))
        of_flower = {module for module in found if module.split(".")[0] == "flwr"}
        assert of_flower <= {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
        assert {m.split(".")[0] for m in found - of_flower} <= sys.stdlib_module_names
    others = set(HERE.parents[1].rglob("*.py")) - set(HERE.rglob("*"))
    assert not [path for path in others if "flwr" in path.read_text()]


TIMEOUT = 120.0  # that parties have to come, and to answer
HTTP = (1, 42)  # from this version on one port has all of the SuperLink


class Flower:
    """A SuperLink of one test, and what is connected to it."""

    def __init__(self, field: Any) -> None:
        self.field, self.home = field, field.folder / "flower"
        self.home.mkdir()
        told = subprocess.run(["flwr", "--version"], check=True, capture_output=True, text=True)
        found = re.findall(r"\d+", told.stdout)
        self.version = int(found[0]), int(found[1])
        quiet = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0"}
        self.environment = os.environ | quiet | {"FLWR_HOME": str(self.home)}
        self.environment.pop("PYTHONPATH", None)  # the apps need nothing of this project

    def configure(self, *lines: str) -> None:
        text = "\n".join(['[superlink]\ndefault = "here"\n[superlink.here]', *lines])
        (self.home / "config.toml").write_text(text)

    def spawn(self, *command: Any) -> subprocess.Popen[bytes]:
        folder, environment = self.field.folder, self.environment
        with (folder / f"{command[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [*map(str, command)], env=environment, stdout=log, stderr=log, cwd=folder
            )
        self.field.running.append(process)
        return process

    def run(self) -> subprocess.Popen[bytes]:
        operator, folder = f"https://127.0.0.1:{self.field.port}", self.field.folder
        told = f'operator="{operator}" ca="{folder}/tls/server.pem" sockets="{folder}"'
        return self.spawn("flwr", "run", HERE, "--stream", "--run-config", f"{told} patience=20.0")

    def simulate(self) -> None:
        resources = "options.backend.client-resources"
        self.configure(
            *('address = ":local:"', "options.num-supernodes = 10"),
            *(f"{resources}.num-cpus = 1", f"{resources}.num-gpus = 0.0"),
        )

    def deploy(self) -> None:
        """A SuperLink with TLS that lets in nodes with registered keys, and three of them."""
        tls, field = self.field.folder / "tls", self.field
        ports = [free_port() for _ in range(3 + len(field.users))]
        at, http = [f"127.0.0.1:{port}" for port in ports], self.version >= HTTP
        here = ["--host", "127.0.0.1", "--port", ports[0]]
        if not http:
            names = ["serverappio", "fleet", "control"]
            pairs = zip(names, at, strict=False)
            here = [part for name, to in pairs for part in (f"--{name}-api-address", to)]
        files = {"certfile": "server.pem", "keyfile": "server.key", "ca-certfile": "server.pem"}
        ssl = [part for name, file in files.items() for part in (f"--ssl-{name}", tls / file)]
        self.spawn("flower-superlink", "--enable-supernode-auth", *ssl, *here)
        fleet, control = (at[0], at[0]) if http else at[1:3]
        authority = tls / "server.pem"
        self.configure(f'address = "{control}"', f'root-certificates = "{authority}"')
        for user, port in enumerate(ports[3:]):
            key = ec.generate_private_key(ec.SECP384R1())
            own, known = serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH
            pem, openssh = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
            private, public = self.home / f"{user}.key", self.home / f"{user}.pub"
            private.write_bytes(key.private_bytes(pem, own, serialization.NoEncryption()))
            public.write_bytes(key.public_key().public_bytes(openssh, known))
            self.ask("supernode", "register", public, "here")
            api = ["--port", port] if http else ["--clientappio-api-address", f"127.0.0.1:{port}"]
            self.spawn(
                *("flower-supernode", "--superlink", fleet, *api),
                *("--root-certificates", authority, "--auth-supernode-private-key", private),
                *("--node-config", f'socket="{field.folder}/{user}.sock"'),
            )

    def ask(self, *command: Any) -> None:
        """Repeats a command until the SuperLink listens."""
        deadline = time.monotonic() + 60
        while True:
            asked = ["flwr", *map(str, command)]
            done = subprocess.run(asked, env=self.environment, capture_output=True, text=True)
            if done.returncode == 0 and "rror" not in done.stdout + done.stderr:
                return
            assert time.monotonic() < deadline, done.stdout + done.stderr + self.field.logs()
            time.sleep(1)

    @property
    def processes(self) -> list[Path]:
        """Those of Flower, which leaves its local SuperLink and its executors running."""
        found = []
        for line in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"FLWR_HOME={self.home}\0".encode() in line.read_bytes():
                    found.append(line.parent)
        return found

    def watch(self, operator: subprocess.Popen[bytes]) -> str:
        """Waits for the operator; the most that Flower took, processes that ended included."""
        deadline, most = time.monotonic() + 400, (0, 0)
        while operator.poll() is None and time.monotonic() < deadline:
            ticks = kilobytes = 0
            for process in self.processes:
                with suppress(OSError):
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    ticks += sum(map(int, fields[11:15]))
                    memory = (process / "smaps_rollup").read_text()
                    kilobytes += int(memory.split("Pss:")[1].split()[0])
            most = max(most[0], ticks), max(most[1], kilobytes)
            time.sleep(0.5)
        assert operator.wait(1) == 0, self.field.logs()
        seconds = most[0] / os.sysconf("SC_CLK_TCK")
        return f"Flower took {seconds:.0f} s of the processor, {most[1] / 1024:.0f} MiB (PSS)"

    def end(self) -> None:
        for process in self.processes:
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture
def make_flower(make_field) -> Iterator[Callable[[int], Flower]]:
    with contextlib.ExitStack() as ends:

        def make(users: int) -> Flower:
            made = Flower(make_field(users, seconds=TIMEOUT, dropout_fraction=0.34))
            ends.callback(made.end)
            return made

        yield make


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("flwr"), reason="flwr is not installed")
@pytest.mark.parametrize("strike", [None, "deliver inbox"])
@pytest.mark.parametrize("users", [10, 3], ids=["simulated", "supernodes with keys and TLS"])
def test_the_sum_is_exact_over_flower(users, strike, make_flower) -> None:
    flower, left = make_flower(users), set(range(users))
    field = flower.field
    flower.simulate() if users == 10 else flower.deploy()
    nodes = [
        field.node(party, address=f"unix:{field.folder}/{number}.sock")
        for number, party in enumerate(field.users)
    ]
    operator = field.operator()
    field.wait_for((field.folder / "ready").exists)
    began, run = time.monotonic(), flower.run()
    if strike:
        field.wait_for(lambda: field.status().get("stage") == strike, 300)
        nodes[1].kill()
        left.remove(1)
    cost = flower.watch(operator)
    seconds = time.monotonic() - began
    assert set(field.opened()) == left, field.logs()
    assert {nodes[user].wait(60) for user in left} == {0}
    assert run.wait(120) == 0, field.logs()
    log = (field.folder / "operator.log").read_text()
    print(f"flwr {flower.version}: sum of {len(left)} after {seconds:.1f} s; {cost}\n{log}")
