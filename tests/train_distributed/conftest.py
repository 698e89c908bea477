"""Command lines run in this process; settings and rows from the edges of what is accepted."""

import functools
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.cli.command import run_command
from tests.command_lines import Said, typed
from train_distributed.__main__ import _parse
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
        """For torch."""
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
def extreme_cases() -> Callable[[str, int], list[Extremes]]:
    """(name, count) -> as many cases."""
    return lambda name, count: [Extremes(random.Random(f"{name} {k}")) for k in range(count)]


@pytest.fixture
def or_refused() -> Callable[[Callable[[], Any]], Any]:
    """Calls; None where the answer is a refusal that names argument, rule and value."""

    def call(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except (ValueError, ArithmeticError) as error:
            refusal = error
        assert type(refusal) in (ValueError, ArithmeticError), repr(refusal)
        assert re.search(r"must .*got ", str(refusal), re.DOTALL), repr(refusal)
        return None

    return call


@pytest.fixture
def held(
    extreme_cases: Callable[[str, int], list[Extremes]], or_refused: Callable[..., Any]
) -> Callable[[str, int, Callable[[Extremes], None]], None]:
    """(name, count, check) passes each case to the check: a tenth at least is not refused."""

    def play(name: str, count: int, check: Callable[[Extremes], None]) -> None:
        cases = extreme_cases(name, count)
        answered = [or_refused(lambda c=c: check(c) or True) for c in cases]
        assert sum(answer is not None for answer in answered) >= count // 10

    return play


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., Said]]:
    """Runs a command line in this process, in `tmp_path`: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    with typed("train_distributed", lambda: run_command(_parse), monkeypatch, capsys) as run:
        yield run
