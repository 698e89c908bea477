"""Ledgers of version 0.1, which were text, are refused; what 0.2 carried over of them counts."""

from collections.abc import Callable

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.commands.counting import Show
from train_distributed.ledger.entry import to_words
from train_distributed.ledger.ledger import Ledger, Limit

TEXT = b'{"body": {"entry": {"kind": "release"}}, "kind": "reserve", "hash": "00"}\n'
REFUSED = r"ledger must be of version 0\.2 or later, got one of version 0\.1: .*rows\.ledger "

USES: list[Callable[[Ledger], object]] = [
    lambda ledger: ledger.state(),
    lambda ledger: ledger.reserve(GAUSSIAN),
    lambda ledger: ledger.afford(GAUSSIAN),
    lambda ledger: ledger.limit(Limit(epsilon=1.0, delta=1e-5)),
    lambda ledger: ledger.give_back("0" * 16),
    lambda ledger: Ledger.open(ledger.path),
    lambda ledger: Ledger(ledger.path.with_name("new.ledger")).reserve(GAUSSIAN),  # beside it
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("content", [TEXT, TEXT[:30], TEXT + TEXT[:7]])
def test_a_ledger_of_text_is_refused_in_one_line(ledger, content: bytes, use) -> None:
    ledger.path.write_bytes(content)
    with pytest.raises(ValueError, match=REFUSED) as refused:
        use(ledger)
    assert "\n" not in str(refused.value)
    assert ledger.path.read_bytes() == content
    assert [path.name for path in ledger.path.parent.iterdir()] == ["rows.ledger"]


def test_lines_that_were_torn_in_it_count_as_far_as_they_could_be_read(ledger, capsys) -> None:
    with ledger._file.locked() as (_, append):
        append("torn", {"entry": to_words(STATED), "bytes": 400, "sha256": "00"})
        append("torn", {"entry": None, "bytes": 4, "sha256": "00"})
    state = ledger.state()
    (record,) = state.records
    assert (record.torn, record.entry, state.torn) == (True, STATED, 2)
    assert ledger.total().cost.epsilon == STATED.epsilon
    ledger.spend(record.id)
    Show(ledger=ledger.path).run()
    assert "torn lines: 2; what can be read of them is counted" in capsys.readouterr().out
