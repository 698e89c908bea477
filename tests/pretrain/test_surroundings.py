"""What other libraries find: no telemetry, and a place for caches whoever runs this."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain import surroundings

NAMES = ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A user id that no file knows, without a home."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return monkeypatch


def found() -> dict[str, str | None]:
    surroundings.provide_caches()
    return {name: os.environ.get(name) for name in NAMES}


def test_without_a_home_caches_are_in_a_temporary_folder_and_it_is_said_once(
    nobody: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = found()
    (place,) = map(str, tmp_path.iterdir())
    assert made == {"HOME": place, "XDG_CACHE_HOME": place, "MPLCONFIGDIR": f"{place}/matplotlib"}
    assert found() == made
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"caches are in {place} until this ends")
    assert os.stat(place).st_mode & 0o777 == 0o700  # nobody else's network is ever loaded
    for name in ("HOME", "MPLCONFIGDIR"):
        nobody.delenv(name)
    nobody.setenv("XDG_CACHE_HOME", "/named")  # is taken without a word
    assert list(found().values()) == ["/named", "/named", "/named/matplotlib"]
    assert not capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("home", ["gone", "file", "shut"])
def test_a_home_that_cannot_be_written_holds_no_caches(nobody, tmp_path, home) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "file").write_text("")
    nobody.setattr(os, "access", lambda path, mode: False)
    nobody.setenv("HOME", str(tmp_path / home))
    nobody.setenv("MPLCONFIGDIR", "/own")
    made = found()
    place = str(made["XDG_CACHE_HOME"])
    assert Path(place).parent == tmp_path
    assert made["MPLCONFIGDIR"] == "/own"
    assert made["HOME"] == (str(tmp_path / home) if home == "shut" else place)


def test_what_can_be_written_or_holds_a_cache_is_left_alone(nobody, tmp_path) -> None:
    nobody.setenv("HOME", str(tmp_path))
    left = {"HOME": str(tmp_path), "XDG_CACHE_HOME": None, "MPLCONFIGDIR": None}
    assert found() == left
    (tmp_path / ".cache").mkdir()
    nobody.setattr(os, "access", lambda path, mode: False)
    assert found() == left
    nobody.delenv("HOME")
    nobody.setattr("tempfile.tempdir", "/nowhere")
    assert found() == dict.fromkeys(NAMES)


PROGRAM = """
import os, subprocess, sys
import pretrain
import huggingface_hub.constants
from embed.engines import networks
print(networks().parent.parent, huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY)
child = [sys.executable, "-c", "import os, heads, embed; print(os.environ['XDG_CACHE_HOME'])"]
subprocess.run(child, check=True)
print([os.environ[name] for name in ("DO_NOT_TRACK", "ORT_DISABLE_TELEMETRY")])
"""


def test_children_share_the_place_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "ORT_DISABLE_TELEMETRY": "0"}
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (said,) = done.stderr.splitlines()
    child, mine, switches = done.stdout.splitlines()  # the child's is written first
    assert mine == f"{child} True"
    assert child in said
    assert switches == "['1', '1']"
    assert not list(tmp_path.iterdir())
