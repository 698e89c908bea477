"""What a user answers in further rounds: those agreed on, each once, paid for before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.train_distributed.flower import fake_relay as fake
from tests.train_distributed.flower.rounds_relay import D, Endpoints, T, vector_at
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.endpoint import UserEndpoint
from train_distributed.flower.orders import DONE, REFUSED, Request, write_order
from train_distributed.flower.round_endpoint import RoundsEndpoint, round_order
from train_distributed.secure_sum.journal import Journal, VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER
from train_distributed.secure_sum.prg import new_seed


def words_of(answer: bytes) -> str:
    assert answer[:1] == REFUSED
    return answer[1:].decode()


def test_a_user_refuses_rounds_that_were_not_agreed_on(tmp_path: Path) -> None:
    endpoints = Endpoints(fake.agreement(rounds=T, round_dimension=D), tmp_path)
    endpoint, agreed, keys = endpoints.endpoints[10], endpoints.federation, fake.KEYS[FIRST_SERVER]
    chain, weights = new_seed(), np.zeros(D, "<f8").tobytes()
    for number in (0, T + 1, 2**31):
        order = round_order(agreed, chain, number, weights, keys)
        assert f"round must be from 1 to {T} as agreed" in words_of(endpoint.answer(order))
    order = round_order(agreed, chain, 1, weights, fake.KEYS[1])
    assert "BadSignature" in words_of(endpoint.answer(order))
    order = round_order(agreed, chain, 1, weights + weights, keys)
    assert "MalformedMessage" in words_of(endpoint.answer(order))
    order = round_order(agreed, chain, 1, np.full(D, np.nan, "<f8").tobytes(), keys)
    assert "weights must be finite" in words_of(endpoint.answer(order))
    assert endpoints.drawn == {}
    order = round_order(agreed, chain, 1, weights, keys)
    assert endpoint.answer(order)[:1] == DONE
    assert endpoint.answer(order)[:1] == DONE
    others = round_order(agreed, chain, 1, np.ones(D, "<f8").tobytes(), keys)
    assert "round 1 must be at the weights published for it" in words_of(endpoint.answer(others))
    another = round_order(agreed, new_seed(), 1, weights, keys)
    assert "sessions must be <= 1, got round 1 of one more" in words_of(endpoint.answer(another))
    again = endpoints.user(0)  # another process of the same user knows it too
    assert "must be at the weights" in words_of(again.answer(others))
    assert again.answer(order)[:1] == DONE


def test_no_message_of_a_round_means_anything_in_another() -> None:
    agreed = fake.agreement(rounds=T, round_dimension=D)
    chain, zeros, ones = new_seed(), bytes(16), np.ones(D, "<f8").tobytes()
    digests = {
        agreed.digest,
        *(
            agreed.at(n, c, w).digest
            for n in (1, 2)
            for c in (chain, new_seed())
            for w in (zeros, ones)
        ),
    }
    assert len(digests) == 9
    assert agreed.at(1, chain, zeros).digest == agreed.at(1, chain, zeros).digest


class Spending(VolatileJournal):
    """A journal that tells the steps in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        super().claim(session, step, detail)
        self.steps.append(step)


def test_a_user_that_comes_late_spends_its_session_before_a_round() -> None:
    """And one whose ledger allows no session draws no vector."""
    agreed = fake.agreement(rounds=T, round_dimension=D)
    keys, chain, drawn = fake.KEYS[FIRST_SERVER], new_seed(), []

    def at_endpoint(journal: Journal) -> None:
        def rounds(weights: np.ndarray) -> Callable[[], np.ndarray]:
            return lambda: drawn.append(1) or vector_at(0, weights)

        endpoint = RoundsEndpoint(agreed, 0, fake.KEYS[0], journal, lambda: fake.VECTORS[0], rounds)
        weights = np.zeros(D, "<f8").tobytes()
        endpoint.answer(round_order(agreed, chain, 2, weights, keys))
        of_round, nonce = agreed.at(2, chain, weights), new_seed()
        bitmap = of_round.session(nonce).bitmap(range(fake.W))
        started = endpoint.answer(write_order(of_round, Request.START, nonce + bitmap, keys))
        assert started[:1] == DONE
        assert isinstance(endpoint._now, UserEndpoint)
        endpoint._now._vector(nonce)

    journal = Spending()
    at_endpoint(journal)
    assert journal.steps.index("session0") < len(journal.steps)
    assert "session0" in journal.steps
    assert drawn == [1]

    class Empty(Spending):
        def claim(self, session: bytes, step: str, detail: bytes) -> None:
            if session == agreed.digest and step.startswith("session"):
                raise ValueError("budget must be >= 2, got 1")
            super().claim(session, step, detail)

    with pytest.raises(ValueError, match="budget must be"):
        at_endpoint(Empty())
    assert drawn == [1]


@pytest.mark.parametrize("changes", [{"rounds": 2}, {"round_dimension": 2}, {"rounds": -1}])
def test_rounds_without_their_dimension_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="rounds and round_dimension must be > 0 together"):
        fake.agreement(**changes)


def test_a_federation_without_rounds_is_what_it_was(tmp_path: Path) -> None:
    for agreed in (
        fake.agreement(),
        fake.agreement(rounds=T, round_dimension=D),
    ):
        agreed.save(tmp_path / "federation.json")
        assert ("rounds" in (tmp_path / "federation.json").read_text()) == (agreed.rounds > 0)
        assert Federation.load(tmp_path / "federation.json").digest == agreed.digest
