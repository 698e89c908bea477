"""Fixtures of these tests."""

from tests.train_distributed.federation.folders.homes import (  # noqa: F401
    agreed,
    engine,
    initiated,
    knowing,
    opened,
    windowed,
)
from tests.train_distributed.federation.processes import make_field  # noqa: F401
