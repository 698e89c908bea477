"""The folder that all cases copy."""

from pathlib import Path

import pytest

from tests.train_distributed.commands.bad_inputs.world import make


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """What all cases copy."""
    folder = tmp_path_factory.mktemp("world")
    make(folder)
    return folder
