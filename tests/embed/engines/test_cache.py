import os
from pathlib import Path

import pytest

from embed import engines
from embed.engines import from_cache, networks


@pytest.fixture(autouse=True)
def in_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Network:
    """Counts how often it is written."""

    def __init__(self, content: bytes = b"weights") -> None:
        self.content, self.written = content, 0

    def write(self, directory: Path) -> None:
        self.written += 1
        assert not list(directory.iterdir())
        (directory / "a").write_bytes(self.content)
        (directory / "b").write_bytes(b"graph")

    def load(self, directory: Path) -> bytes:
        return (directory / "a").read_bytes() + (directory / "b").read_bytes()

    def get(self, **made_of: object) -> bytes:
        return from_cache(made_of, self.write, self.load)


def entry() -> Path:
    (found,) = networks().iterdir()
    return found


def test_a_network_is_made_once_for_all_that_it_is_made_of() -> None:
    network = Network()
    assert network.get(x=1) == network.get(x=1) == b"weightsgraph"
    assert network.written == 1
    network.get(x=2)
    assert network.written == 2


@pytest.mark.parametrize("name", ["a", "b", engines.DIGESTS])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove", "add"])
def test_a_damaged_network_is_made_again(name: str, damage: str) -> None:
    network = Network()
    network.get()
    path = entry() / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    elif damage == "add":
        (entry() / "c").write_bytes(b"")
    else:
        path.write_bytes({"flip": content, "cut": content[:-1], "empty": b""}[damage])
    assert network.get() == b"weightsgraph"
    assert network.written == 2
    assert network.get() == b"weightsgraph"
    assert network.written == 2


def test_one_that_cannot_be_loaded_is_made_again_but_not_kept() -> None:
    Network(b"old").get()

    def load(directory: Path) -> None:
        raise RuntimeError("unreadable")

    network = Network(b"new")
    with pytest.raises(RuntimeError, match="unreadable"):
        from_cache({}, network.write, load)
    assert network.written == 1
    assert network.get() == b"oldgraph"
    assert entry()


def test_a_failure_leaves_nothing() -> None:
    def write(directory: Path) -> None:
        (directory / "a").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_cache({}, write, Network().load)
    assert not list(networks().iterdir())


def test_without_a_place_for_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    network = Network()
    assert network.get() == network.get() == b"weightsgraph"
    assert network.written == 2


def test_a_network_that_cannot_be_kept_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert Network().get() == b"weightsgraph"
    assert not list(networks().iterdir())


def test_what_was_not_used_for_longest_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Network(), Network()
    first.get(x=1)
    second.get(x=2)
    for age, path in enumerate(sorted(networks().iterdir(), key=lambda p: p.stat().st_mtime)):
        os.utime(path, (age, age))  # long ago, in that order
    first.get(x=1)
    taken = sum(file.stat().st_size for path in networks().iterdir() for file in path.iterdir())
    monkeypatch.setattr(engines, "LIMIT", taken)
    Network().get(x=3)
    assert first.get(x=1) == b"weightsgraph"
    assert first.written == 1
    second.get(x=2)
    assert second.written == 2
