"""Options shared by all tests."""

from pathlib import Path

import pytest


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
