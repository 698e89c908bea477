"""Commands of the units in docs/units, run as they stand in folders below a temporary one."""

import configparser
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.federation.documents.certificates import trust
from train_distributed.federation.documents.federation import Federation

UNITS = Path(__file__).parents[4] / "docs" / "units"
PROGRAM, HOME = "/opt/averaging/bin/blind-averaging", "/var/lib/averaging"


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read(UNITS / f"averaging-{name}.service")
    return parser["Service"]


@contextmanager
def started(name: str, home: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The unit's command; `home` stands for its folder."""
    written = unit(name)["ExecStart"].replace(HOME, str(home))
    program, *words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda m: environment[m[1]], written))
    assert program == PROGRAM
    command = [sys.executable, "-m", "train_distributed", *words]
    given = os.environ | {"PYTHONPATH": str(UNITS.parents[1]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=home, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_operator_and_parties(initiated, tmp_path: Path) -> None:
    home = initiated(port=free_port(), minimum=3)
    digest = Federation.load(home / "fed" / "federation.json").digest.hex()
    with ExitStack() as stack:
        operator = stack.enter_context(started("operator", home))
        for user in range(3):
            place = tmp_path / f"party{user}"
            place.mkdir()
            (place / "me").symlink_to(home / f"user{user}")
            (place / "invitation").symlink_to(home / "fed" / "invitation")
            stack.enter_context(started("party", place, DIGEST=digest[:16]))
        said, _ = operator.communicate(timeout=120)
    assert operator.returncode == 0, said
    assert "3 of 3 users in" in said
    (model,) = (home / "fed" / "runs").glob("*/model/model.safetensors")
    assert model.exists()


def test_aggregator(initiated) -> None:
    from tests.train_distributed.federation.folders.windows import SETTINGS

    home, port = initiated(**SETTINGS), free_port()
    ports = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
    MakeWindow(home / "fed", ports, home / "window").run()
    tls = trust(home / "window" / "ca.pem")
    with started("aggregator", home) as process:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert process.poll() is None
            try:
                at = f"https://127.0.0.1:{port}/healthz"
                with urllib.request.urlopen(at, context=tls) as answer:
                    assert answer.status == 204
                return
            except OSError:
                time.sleep(0.2)
    pytest.fail("the aggregator must answer /healthz")


@pytest.mark.parametrize("name", ["operator", "party", "aggregator"])
def test_a_unit_is_started_again_only_where_that_helps_and_has_few_rights(name: str) -> None:
    service = unit(name)
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["User"] == "averaging"
    assert service["UMask"] == "0077"
    for right in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome"):
        assert service[right] == "yes"
