"""Options shared by all tests."""

import os
import signal
from pathlib import Path

import pytest
import torch

import pretrain  # noqa: F401  (before torchvision, whose operators may be missing)

# Tests are small and run side by side, a process per core: more threads would only wait.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def pytest_configure() -> None:
    """Lets tests, and what they start, be interrupted: a job in the background ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Programs beside the tests hold no doctests, and may need what is not installed."""
    is_program = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_program else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference-data",
        type=Path,
        default=None,
        metavar="DIR",
        help="directory with reference data (golden/, data/); tests that need it skip without it",
    )


@pytest.fixture
def reference_data(request: pytest.FixtureRequest) -> Path:
    directory: Path | None = request.config.getoption("--reference-data")
    if directory is None:
        pytest.skip("needs --reference-data DIR")
    return directory
