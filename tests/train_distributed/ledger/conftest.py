"""A ledger of one set of rows."""

from pathlib import Path

import pytest

from train_distributed.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "rows.ledger")
