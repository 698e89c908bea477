"""Rolls of a test's users."""

from collections.abc import Sequence

import numpy as np

from train_distributed.secure_sum.keys import KEY_BYTES
from train_distributed.secure_sum.roll import USER, Roll


def make_roll(
    keys: Sequence[bytes], rows: Sequence[int], names: Sequence[str] | None = None
) -> Roll:
    """Roll of users in the order of their numbers."""
    lines = np.zeros(len(keys), USER)
    lines["key"] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)
    lines["rows"] = rows
    lines["name"] = [f"user-{i}" for i in range(len(keys))] if names is None else names
    return Roll(lines)
