"""How long a session takes, every process's start included: 5 users, and 100 in one process."""

import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_five_users_take_less_than_half_a_minute(make_field: Callable[..., Any]) -> None:
    field = make_field(seconds=60, dimension=61_450)
    start = time.monotonic()
    nodes = [field.node(party) for party in field.parties]
    assert field.operator().wait(120) == 0, field.logs()
    seconds = time.monotonic() - start
    assert [node.wait(30) for node in nodes] == [0] * len(nodes)
    assert field.opened() == list(range(5))
    print(f"5 users, d = 61,450: {seconds:.1f} s\n{field.logs()}")
    assert seconds < 30


def test_a_hundred_users_take_less_than_two_minutes(make_field: Callable[..., Any]) -> None:
    field = make_field(users=100, seconds=120, dimension=61_450)
    start = time.monotonic()
    operator = field.operator()
    crowd = field.run("crowd", [str(field.port)], "crowd.log")
    assert operator.wait(300) == 0, field.logs()
    seconds = time.monotonic() - start
    assert crowd.wait(60) == 0
    assert field.opened() == list(range(100))
    print(f"secagg, 100 users, d = 61,450: {seconds:.1f} s\n{field.logs()}")
    assert seconds < 120
