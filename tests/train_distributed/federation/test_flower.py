"""The Flower app in Flower itself, simulated and deployed: the exact sum of all who are left.

pip install -e '.[federation,flower,test]'
python -m pytest -m slow -n 0 -s tests/train_distributed/federation/test_flower.py
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import train_distributed.federation.flower_app as flower_app
from tests.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("flwr"), reason="flwr is not installed"),
]
APP = Path(flower_app.__file__).parent
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
        return self.spawn("flwr", "run", APP, "--stream", "--run-config", f"{told} patience=20.0")

    def simulate(self) -> None:
        """Ten nodes in this machine's memory."""
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
        """Waits for the operator; the most that Flower took of processor and memory meanwhile."""
        deadline, most = time.monotonic() + 400, (0.0, 0.0)
        while operator.poll() is None and time.monotonic() < deadline:
            most = tuple(map(max, most, self.cost()))
            time.sleep(0.5)
        assert operator.wait(1) == 0, self.field.logs()
        return f"Flower took {most[0]:.0f} s of the processor, {most[1]:.0f} MiB (PSS)"

    def cost(self) -> tuple[float, float]:
        """Processor seconds, those of processes that have ended included, and MiB of memory."""
        ticks, kilobytes = 0, 0
        for process in self.processes:
            with suppress(OSError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
                memory = (process / "smaps_rollup").read_text()
                kilobytes += int(memory.split("Pss:")[1].split()[0])
        return ticks / os.sysconf("SC_CLK_TCK"), kilobytes / 1024

    def end(self) -> None:
        for process in self.processes:
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture
def make_flower(make_field: Callable[..., Any]) -> Iterator[Callable[..., Flower]]:
    made: list[Flower] = []

    def make(users: int) -> Flower:
        made.append(Flower(make_field(users, seconds=TIMEOUT, dropout_fraction=0.34)))
        return made[-1]

    yield make
    for flower in made:
        flower.end()


@pytest.mark.parametrize("strike", [None, "deliver inbox"])
@pytest.mark.parametrize("users", [10, 3], ids=["simulated", "supernodes with keys and TLS"])
def test_the_sum_is_exact_over_flower(
    users: int, strike: str | None, make_flower: Callable[..., Flower]
) -> None:
    """Of all but a user that is struck at a stage."""
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
