"""The folder of all cases, and what is in it."""

from pathlib import Path

import pytest

from tests.train_distributed.commands.bad_inputs.case import state
from tests.train_distributed.commands.bad_inputs.world import make


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """Where all cases run, but for those that spoil a copy."""
    folder = tmp_path_factory.mktemp("world")
    make(folder)
    return folder


@pytest.fixture(scope="session")
def intact(world: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in it."""
    return state(world)
