"""Fixtures of these tests."""

from tests.train_distributed.federation.folders import homes
from tests.train_distributed.federation.processes import make_field  # noqa: F401

agreed, engine, initiated = homes.agreed, homes.engine, homes.initiated
knowing, opened, windowed = homes.knowing, homes.opened, homes.windowed
