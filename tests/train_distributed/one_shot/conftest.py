"""A released model small enough to check by hand."""

import pytest

from tests.train_distributed.released.conftest import make_release
from train_distributed import Release


@pytest.fixture
def released() -> Release:
    return make_release()
