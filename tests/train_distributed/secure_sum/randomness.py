"""Randomness of a session: the same in every run, or listened to."""

import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum import prg, shamir

Words = NDArray[np.uint64]
REAL_BYTES, REAL_STREAM = secrets.token_bytes, prg.stream


@dataclass
class Recorded:
    """The same seeds and coefficients in every run, and replacements for some streams."""

    modules: tuple[ModuleType, ...]  # that draw seeds
    pads: dict[bytes, Words] = field(default_factory=dict)
    expanded: list[bytes] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        count = itertools.count(1)

        def seed() -> bytes:
            return prg.derive(next(count).to_bytes(32, "big"), b"recorded")

        for module in self.modules:
            patch.setattr(module, "new_seed", seed)
        patch.setattr(
            shamir.secrets, "randbelow", lambda n: int.from_bytes(seed() + seed(), "big") % n
        )
        patch.setattr(prg, "stream", self.stream)

    def stream(self, seed: bytes, count: int) -> Iterator[tuple[slice, Words]]:
        self.expanded.append(seed)
        if seed in self.pads:
            yield slice(0, count), self.pads[seed][:count]
        else:
            yield from REAL_STREAM(seed, count)


class Tap:
    """Records what the operating system gave and what reached the cipher."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.drawn: list[bytes] = []
        self.expanded: list[bytes] = []
        patch.setattr(prg.secrets, "token_bytes", self._draw)
        patch.setattr(prg, "stream", self._expand)

    def _draw(self, count: int) -> bytes:
        self.drawn.append(REAL_BYTES(count))
        return self.drawn[-1]

    def _expand(self, seed: bytes, count: int) -> Iterator[tuple[slice, Words]]:
        self.expanded.append(bytes(seed))
        yield from REAL_STREAM(seed, count)
