"""Commands of docs/units as processes, with a test's folders and ports: of systemd, of compose."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.postgresql import BINARIES, running
from tests.ports import free_port
from tests.train_distributed.federation.folders import homes
from train_distributed.commands.federation import Start, Status
from train_distributed.commands.federation.reporting import Report
from train_distributed.federation.documents.certificates import SERVER, trust, write_certificate
from train_distributed.ledger.ledger import Ledger

UNITS = homes.ROOT / "docs" / "units"
PROGRAM, FOLDER = "/opt/averaging/bin/blind-averaging", "/var/lib/averaging"
SERVICES = ("leader", "helper")
BEFORE = {9443: "leader", 9444: "helper"}  # port of the proxy -> who is behind it
SECONDS = 120  # that a command may take


class Command:
    def __init__(self, words: list[str], home: Path, log: Path) -> None:
        given = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(homes.ROOT)}
        command = [sys.executable, "-W", "ignore", "-m", "train_distributed", *words]
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, cwd=home, env=given, stdout=file, stderr=file)

    def says(self, words: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return words in self.log.read_text()

    def ended(self, code: int = 0) -> str:
        assert self.process.wait(SECONDS) == code, self.log.read_text()
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts a command, which ends with the test at the latest."""
    started = []

    def start(words: list[str], home: Path = tmp_path) -> Command:
        started.append(Command(words, home, tmp_path / f"command{len(started)}.log"))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def words_of(name: str, home: Path, **environment: str) -> list[str]:
    text = (UNITS / f"averaging-{name}.service").read_text().replace(FOLDER, str(home))
    (written,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda m: environment[m[1]], written))
    assert program == PROGRAM
    return words


def party(home: Path, user: int) -> Start:
    digest = homes.digest_of(home)
    return Start(home / f"user{user}", home / "fed" / "invitation", accept=digest, patience=60.0)


def test_units_of_operator_and_party(initiated, command, tmp_path: Path) -> None:
    home, place = initiated(port=free_port()), tmp_path / "party"
    place.mkdir()
    (place / "me").symlink_to(home / "user0")
    (place / "invitation").symlink_to(home / "fed" / "invitation")
    operator = command(words_of("operator", home))
    own = command(words_of("party", place, DIGEST=homes.digest_of(home)[:16]), place)
    until(lambda: operator.says("parties may connect"))
    with ThreadPoolExecutor(2) as pool:
        codes = pool.map(lambda user: party(home, user).run(), (1, 2))
    assert list(codes) == [0, 0]
    said = operator.ended()
    assert "3 of 3 users in" in said
    assert "2147483649" not in said
    assert "over: 1 of 1 sessions" in own.ended()
    (model,) = (home / "fed" / "runs").glob("*/model")
    report = json.loads((model / "report.json").read_text())
    assert report["surviving_users"] == [f"user {i} (hospital-{i})" for i in range(3)]
    assert report["protocol"] == "secagg"
    assert report["bytes_per_user"] > 8 * 21
    assert report["suitable_for_release"]


def test_unit_of_an_aggregator(initiated, command) -> None:
    home, port = initiated(**homes.SETTINGS), free_port()
    homes.Home(home, addresses=(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"))
    tls, started = trust(home / "window" / "ca.pem"), command(words_of("aggregator", home))
    until(lambda: started.says("listening"))
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/healthz", context=tls) as answer:
        assert answer.status == 204


@pytest.mark.slow
@pytest.mark.parametrize("behind_proxy", [False, True])
def test_an_operator_killed_between_two_sums(initiated, command, behind_proxy, monkeypatch) -> None:
    """Started again it ends with a model, behind a proxy that has TLS, too; one entry counts."""
    port, own = free_port(), free_port()
    settings: dict[str, Any] = {"options": {"sums": 2}, "behind_proxy": behind_proxy}
    home = initiated(port=port, **settings)
    start = ["federation", "start", "--folder", "fed", "--host", "127.0.0.1", "--out", "model"]
    with ExitStack() as stack:
        if behind_proxy:
            write_certificate(home / "tls", ["127.0.0.1"])
            monkeypatch.setenv("SSL_CERT_FILE", str(home / "tls" / SERVER))
            stack.enter_context(homes.terminating(home / "tls", own, port))
            start += ["--port", str(own)]
        operator = command(start)
        until(lambda: operator.says("parties may connect"))
        pool = stack.enter_context(ThreadPoolExecutor(3))
        codes = pool.map(lambda user: party(home, user).run(), range(3))
        until(lambda: operator.says("the second sum"))
        operator.kill()
        said = command(start).ended()
        assert list(codes) == [0, 0, 0]
    words = "plain HTTP on 127.0.0.1: your reverse proxy has TLS by a public authority"
    assert (words in said) == behind_proxy
    report = json.loads((home / "model" / "report.json").read_text())
    assert (report["rounds"], report["survivors"]) == (2, 3)
    assert report["suitable_for_release"]
    for ledger in (home / "fed" / "operator.ledger", home / "user0" / "embeddings.ledger"):
        assert Ledger.open(ledger).total().epsilon(1e-5) == pytest.approx(5.0, rel=1e-6)


def words_of_container(service: str, home: Path, port: int, store: str | None) -> list[str]:
    text = (UNITS / "compose.yaml").read_text()
    entry = text.partition(f"\n  {service}:\n")[2].partition("command: >-\n")[2]
    program, *words = shlex.split(entry.partition("\n    volumes:")[0])
    assert program == "blind-averaging"
    given = " ".join(words)
    given = re.sub(r"--store \S+", f"--store {store}" if store else "", given)
    given = re.sub(r"--listen 0\.0\.0\.0:\d+", f"--listen 127.0.0.1:{port}", given)
    given = given.replace("${PROXY}", "127.0.0.1")
    given = given.replace("0.0.0.0:9200", f"127.0.0.1:{free_port()}")
    return re.sub(r" /(fed|server1|window)\b", rf" {home}/\1", given).split()


@contextmanager
def nginx(home: Path, ports: dict[int, int]) -> Iterator[None]:
    """nginx by docs/units/nginx.conf, whose names and ports are this test's."""
    text = (UNITS / "nginx.conf").read_text()
    for (outside, name), (port, behind) in zip(BEFORE.items(), ports.items(), strict=True):
        text, count = re.subn(rf"{name}:\d+", f"127.0.0.1:{behind}", text)
        assert count == 1
        assert text.count(f"listen {outside} ssl") == 1
        text = text.replace(f"listen {outside} ssl", f"listen 127.0.0.1:{port} ssl")
    (home / "nginx.conf").write_text(text)
    where = ["-p", str(home), "-c", str(home / "nginx.conf"), "-e", str(home / "nginx.log")]
    settings = f"daemon off; pid {home}/nginx.pid;"
    running = subprocess.Popen(["nginx", *where, "-g", settings])
    try:
        time.sleep(0.5)
        assert running.poll() is None, (home / "nginx.log").read_text()
        yield
    finally:
        running.terminate()
        running.wait()


def test_the_containers_commands_make_a_model(initiated, command, monkeypatch, capsys) -> None:
    home = initiated(**homes.SETTINGS, behind_proxy=True)
    write_certificate(home / "tls", ["localhost"])
    monkeypatch.setenv("SSL_CERT_FILE", str(home / "tls" / SERVER))  # the system's authorities
    outside, inside = ({name: free_port() for name in SERVICES} for _ in range(2))
    ports = {outside[name]: inside[name] for name in SERVICES}
    window = homes.Home(home, addresses=tuple(f"localhost:{outside[name]}" for name in SERVICES))
    with ExitStack() as stack:
        if shutil.which("nginx"):
            stack.enter_context(nginx(home, ports))
        else:
            for port, behind in ports.items():
                stack.enter_context(homes.terminating(home / "tls", behind, port))
        server = stack.enter_context(running()) if BINARIES else None
        aggregators = [
            command(words_of_container(name, home, inside[name], server and server.url))
            for name in SERVICES
            for _ in range(2 if server else 1)  # workers
        ]
        for each in aggregators:
            until(lambda each=each: each.says("listening"))
            words = "plain HTTP on 127.0.0.1: your reverse proxy has TLS"
            assert words in each.log.read_text()
        with monkeypatch.context() as patched:
            patched.delenv("SSL_CERT_FILE")
            with pytest.raises(ConnectionError, match="certificate must be valid, for this addre"):
                window.report(0).run()
        assert window.used(0) == 0
        capsys.readouterr()
        link = f"https://localhost:{outside[SERVICES[0]]}/invitations/{homes.digest_of(home)}"
        for user in range(3):
            Report(home / f"user{user}", link, accept=homes.digest_of(home)).run()
        window.collect().run()
        for each in aggregators:
            each.kill()
    assert (home / "model" / "model.safetensors").exists()
    Status(home / "fed").run()
    said = capsys.readouterr().out
    assert said.count(", whose proxy has TLS by a public authority\n") == 3
    assert "3 of 3 users in" in said
    assert "plain HTTP behind a proxy that has TLS" in said
    assert not (home / "fed" / "tls").exists()
    assert not (home / "window" / "ca.pem").exists()
