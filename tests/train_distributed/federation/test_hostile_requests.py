"""Whoever asks or answers what no session needs is refused, and costs little memory and disk."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation.coordinator import Log
from train_distributed.federation.endpoint import Endpoint, UserEndpoint
from train_distributed.federation.orders import DONE, Request, join, split, write_order
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER

NONCE = b"n" * 32
LEFT = [0, 1, 3, 4]


class Echo(UserEndpoint):
    """Answers whatever is delivered, whoever made it up."""

    def _deliver(self, body: bytes) -> list[bytes]:
        return split(body)


def test_the_answers_that_are_kept_have_a_limit() -> None:
    """Whoever repeats a request gets the same answer; who makes up requests is refused in time."""
    federation = fake.agreement(dimension=1)
    keys = fake.KEYS[0]
    endpoint = Echo(federation, 0, keys, lambda: fake.VECTORS[0][:1], VolatileJournal())
    body = NONCE + federation.session(NONCE).bitmap(range(fake.W))
    start = write_order(federation, Request.START, body, fake.KEYS[FIRST_SERVER])
    started = endpoint.answer(start)
    assert started[:1] == DONE
    endpoint.largest_frame = 10_000
    tracemalloc.start()
    answered = refused = 0
    for number in range(1000):
        made_up = bytes([Request.DELIVER]) + join([number.to_bytes(40, "big")] * 10)
        answer = endpoint.answer(made_up)
        answered += answer[:1] == DONE
        refused += b"answers of a session must be fewer" in answer
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answered > 100
    assert refused == 1000 - answered > 500
    assert peak < 20 * endpoint.largest_frame
    assert endpoint.answer(start) == started  # what was answered is answered again


class Changing:
    """A user whose first messages are changed on the way."""

    def __init__(self, honest: Endpoint, change: Callable[[list[bytes]], list[bytes]]) -> None:
        self._honest, self._change = honest, change
        self.over, self.largest_frame = False, 10**7

    def answer(self, request: bytes) -> bytes:
        answer = self._honest.answer(request)
        if request[0] != Request.START:
            return answer
        assert answer[:1] == DONE
        return DONE + join(self._change(split(answer[1:])))


@pytest.mark.parametrize(
    "change", [lambda messages: messages * 2, lambda _: [bytes(10**6)]], ids=["twice", "long"]
)
def test_a_user_that_answers_a_start_with_more_than_an_advertisement_is_left_out(
    change: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    """What users say first is kept until the end: it has its size, and no more is written down."""
    federation, log = fake.agreement(), Log()
    relay = fake.volatile(federation)
    relay.endpoints[12] = Changing(relay.endpoints[12], change)
    opened = fake.operate(relay, log, tmp_path)
    assert sorted(opened.users) == LEFT
    assert np.array_equal(opened.total, fake.VECTORS[LEFT].sum(0))
    (refused,) = log.refused
    assert refused.startswith("user 2: MalformedMessage: answer must be <= ")
    assert (tmp_path / "session").stat().st_size < 50_000
