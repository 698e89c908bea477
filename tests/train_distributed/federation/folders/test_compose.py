"""Commands and configuration of docs/units/compose.yaml, as processes: a model through the proxy.

Names of services become addresses of this machine, and folders of containers those of a test. The
state is in PostgreSQL and the proxy is nginx where they are installed; else in files, and a few
lines stand for the proxy.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.postgresql import BINARIES, running
from tests.ports import free_port
from tests.train_distributed.federation.folders.engine import digest_of
from tests.train_distributed.federation.folders.lines import terminating
from tests.train_distributed.federation.folders.test_units import UNITS
from tests.train_distributed.federation.folders.windows import SETTINGS
from train_distributed.commands.federation.collecting import Collect, MakeWindow
from train_distributed.commands.federation.reporting import Report
from train_distributed.federation.documents.certificates import SERVER, write_certificate

SERVICES = ("leader", "helper")
BEFORE = {9443: "leader", 9444: "helper"}  # port of the proxy -> who is behind it


def command_of(service: str) -> list[str]:
    """Words of the command that compose.yaml has for a service."""
    text = (UNITS / "compose.yaml").read_text()
    entry = text.partition(f"\n  {service}:\n")[2].partition("command: >-\n")[2]
    found = entry.partition("\n    volumes:")[0]
    program, *words = shlex.split(found)
    assert program == "blind-averaging"
    return words


def localised(words: list[str], home: Path, port: int, store: str | None) -> list[str]:
    """The same command with this machine's folders, ports and database."""
    given = " ".join(words)
    given = re.sub(r"--store \S+", f"--store {store}" if store else "", given)
    given = re.sub(r"--listen 0\.0\.0\.0:\d+", f"--listen 127.0.0.1:{port}", given)
    given = given.replace("${PROXY}", "127.0.0.1").replace(
        "0.0.0.0:9200", f"127.0.0.1:{free_port()}"
    )
    return re.sub(r" /(fed|server1|window)\b", rf" {home}/\1", given).split()


@contextmanager
def process(words: list[str], home: Path, log: Path) -> Iterator[None]:
    given = os.environ | {"OMP_NUM_THREADS": "1", "SSL_CERT_FILE": str(home / "tls" / SERVER)}
    given |= {"PYTHONPATH": str(UNITS.parents[1])}
    command = [sys.executable, "-m", "train_distributed", *words]
    with log.open("wb") as file:
        running = subprocess.Popen(command, env=given, stdout=file, stderr=file)
        try:
            end = time.monotonic() + 60
            while b"listening" not in log.read_bytes():
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            running.kill()
            running.wait()


@contextmanager
def plain_proxy(home: Path, ports: dict[int, int]) -> Iterator[None]:
    """TLS at each port, and plain HTTP to the one behind it."""
    with ExitStack() as stack:
        for port, behind in ports.items():
            stack.enter_context(terminating(home / "tls", behind, port))
        yield


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


def test_the_containers_commands_make_a_model(initiated, monkeypatch, capsys) -> None:
    home = initiated(**SETTINGS, behind_proxy=True)
    write_certificate(home / "tls", ["localhost"])
    monkeypatch.setenv("SSL_CERT_FILE", str(home / "tls" / SERVER))  # the system's authorities
    outside, inside = ({name: free_port() for name in SERVICES} for _ in range(2))
    ports = {outside[name]: inside[name] for name in SERVICES}

    at = f"localhost:{outside[SERVICES[0]]}", f"localhost:{outside[SERVICES[1]]}"
    MakeWindow(home / "fed", at, home / "window").run()
    with ExitStack() as stack:
        stack.enter_context((nginx if shutil.which("nginx") else plain_proxy)(home, ports))
        server = stack.enter_context(running()) if BINARIES else None
        for service in SERVICES:
            words = command_of(service)
            for worker in range(2 if server else 1):
                made = localised(words, home, inside[service], server and server.url)
                log = home / f"{service}{worker}.log"
                stack.enter_context(process(made, home, log))
                assert "plain HTTP on 127.0.0.1: your reverse proxy has TLS" in log.read_text()
        for user in range(3):
            link = f"https://{at[0]}/invitations/{digest_of(home)}"
            Report(home / f"user{user}", link, accept=digest_of(home)).run()
        Collect(home / "fed", home / "window", home / "model").run()
    assert (home / "model" / "model.safetensors").exists()
    assert "3 of 3 users in" in capsys.readouterr().out
