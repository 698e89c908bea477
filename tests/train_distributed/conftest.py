"""Command lines in this process and what they work on; settings from the edges of what is taken."""

import functools
import math
import os
import random
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from pretrain.cli.command import run_command
from pretrain.preprocess import Preprocess
from tests.command_lines import Said, typed
from tests.embedding_sets import clusters
from tests.train_distributed.commands.bad_inputs.world import make, state
from train_distributed import Release
from train_distributed.__main__ import _parse, main
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot.model import reading
from train_distributed.one_shot.report_file import Report
from train_distributed.simulation import digits

digits.load_digits = functools.cache(digits.load_digits)  # seconds, in every process once
ROWS = ("equal", "antipodal", "random", "denormal", "zero", "spread")


@dataclass(frozen=True, eq=False)
class Extremes:
    """Draws of one case; the same number is the same case for ever."""

    draw: random.Random

    def scale(self, low: float = -12, high: float = 12) -> float:
        """A power of ten between 10^low and 10^high, the ends and 1 more often than others."""
        ends = [low, high] + [0.0] * (low <= 0 <= high)
        exponent = self.draw.choice(ends) if self.draw.random() < 0.4 else None
        return 10.0 ** (self.draw.uniform(low, high) if exponent is None else exponent)

    def whole(self, low: int, high: int) -> int:
        """A whole number, the ends more often than others."""
        ends = self.draw.random() < 0.3
        return self.draw.choice((low, high)) if ends else self.draw.randint(low, high)

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.draw.getrandbits(40))

    def rows(self, n: int, dim: int, bound: float) -> Tensor:
        """(n, dim) float64 rows of norm at most `bound`, most of them exactly there."""
        kind, draw = self.draw.choice(ROWS), self.generator()
        x = torch.randn(n, dim, generator=draw, dtype=torch.float64)
        if kind in ("equal", "antipodal"):
            x = x[:1].expand(n, dim).clone()
        if kind == "antipodal":
            x[1::2] *= -1
        if kind == "spread":
            x *= 10.0 ** torch.randint(-12, 13, (n, dim), generator=draw)
        x = within(x / x.norm(dim=1, keepdim=True) * bound, bound)
        if kind == "denormal":
            x[:, 1:] = math.ulp(0.0)
        return x * 0 if kind == "zero" else x

    def neighbour(self, x: Tensor, y: Tensor, classes: int, bound: float) -> tuple[Tensor, Tensor]:
        """The same but for one record: its label, its sign, both, or another row."""
        x, y = x.clone(), y.clone()
        place = self.whole(0, len(x) - 1)
        kind = self.draw.choice(("label", "sign", "both", "other"))
        if kind in ("label", "both"):
            y[place] = (y[place] + 1) % classes
        if kind in ("sign", "both"):
            x[place] *= -1
        if kind == "other":
            x[place] = self.rows(1, x.shape[1], bound)[0]
        return x, y


def within(x: Tensor, bound: float) -> Tensor:
    """Rows a few ulp shorter where their computed norm exceeds the bound."""
    over = torch.linalg.vector_norm(x, dim=1, keepdim=True) > bound
    return torch.where(over, x * (1 - 2.0**-50), x)


@pytest.fixture
def held() -> Callable[[str, int, Callable[[Extremes], None]], None]:
    """(name, count, check) passes so many cases to the check: a tenth at least is not refused.

    A refusal must name argument, rule and value.
    """

    def play(name: str, count: int, check: Callable[[Extremes], None]) -> None:
        refusals = list[Exception]()
        for k in range(count):
            try:
                check(Extremes(random.Random(f"{name} {k}")))
            except (ValueError, ArithmeticError) as refusal:
                refusals.append(refusal)
        for refusal in refusals:
            assert type(refusal) in (ValueError, ArithmeticError), repr(refusal)
            assert re.search(r"must .*got ", str(refusal), re.DOTALL), repr(refusal)
        assert count - len(refusals) >= count // 10

    return play


@dataclass(frozen=True)
class Typed:
    """Runs command lines: words, or one line."""

    run: Callable[..., Said]

    def __call__(self, *words: str) -> Said:
        return self.run(*(shlex.split(words[0]) if len(words) == 1 else words))

    def done(self, *words: str) -> str:
        """Prints this, and does not fail."""
        code, printed, error = self(*words)
        assert (code, error) == (0, "")
        return printed

    def refused(self, line: str, *says: str) -> None:
        """Ends in one line with these words."""
        code, printed, error = self(line)
        assert (code, printed, error.count("\n")) == (2, "", 1), error
        assert [words for words in says if words not in error] == [], error


@pytest.fixture
def call(monkeypatch, capsys, tmp_path) -> Iterator[Typed]:
    """`python -m train_distributed` in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    with typed("train_distributed", lambda: run_command(_parse), monkeypatch, capsys) as run:
        yield Typed(run)


@pytest.fixture
def say(monkeypatch, capsys, tmp_path) -> Iterator[Typed]:
    """`blind-averaging` in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    with typed("blind-averaging", main, monkeypatch, capsys) as run:
        yield Typed(run)


@pytest.fixture
def sets(tmp_path: Path) -> tuple[str, str]:
    """Directories `private` and `public` of embedding sets, in `tmp_path`."""
    rows = clusters(120, 3, 5, test=30)
    replace(rows, users=np.arange(120) % 8).save(tmp_path / "private")
    x = np.asarray(rows.embeddings)[::-1] + 0.01
    EmbeddingSet(embeddings=x, labels=rows.labels).save(tmp_path / "public")
    return str(tmp_path / "private"), str(tmp_path / "public")


@pytest.fixture
def run(call: Typed, sets: tuple[str, str], no_pictures: None) -> Typed:
    """Class sums on these sets; what is typed follows."""
    line = "run --embeddings private --public public --method discriminant --sums 1"
    return Typed(lambda *more: call(*shlex.split(line), *more))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The one beside the private set."""
    return Ledger(tmp_path / "private.ledger")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", lambda *_: None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, which a release and its pictures do not fit."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user's would be; a test that changes it takes a copy."""
    folder = tmp_path_factory.mktemp("world")
    make(folder)
    return folder


@pytest.fixture(scope="session")
def intact(world: Path) -> dict[str, tuple[int, bytes]]:
    return state(world)


@pytest.fixture
def released() -> Release:
    """Random weights on top of a transform that centres, rotates, whitens and clips."""
    rng = np.random.default_rng(0)
    public = rng.standard_normal((200, 6)) * np.linspace(0.2, 3, 6) + 5
    told = {"method": "discriminant", "private": True, "probabilities": reading("discriminant")}
    preprocess = Preprocess(image_size=32, pictures=32)
    return Release(
        transform=PublicTransform.fit(torch.from_numpy(public).float(), components=4),
        weights=torch.from_numpy(3 * rng.standard_normal((5, 3))),
        class_names=("cat", "dog", "owl"),
        report=Report.of({"epsilon": 1.0, "delta": 1e-5} | told),
        encoding=Encoding(
            encoder="simclr-small", encoder_hash="0" * 64, weights="shipped", preprocess=preprocess
        ),
    )
