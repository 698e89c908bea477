"""Few numbers are chosen in `embed` and `one_shot`, and each says what kind of choice it is."""

import pytest

from tests.constants import constants, read

MOST = 80
FOUND = constants()


def test_there_are_few_constants() -> None:
    assert len(FOUND) <= MOST


def test_each_constant_says_its_kind() -> None:
    assert [each for each in FOUND if each.kind is None] == []


def test_no_number_has_two_names_of_one_kind_in_a_file() -> None:
    """Equal guards share one name."""
    guards = [(each.file, each.value) for each in FOUND if each.kind == "guard"]
    assert len(guards) == len(set(guards))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("A = 3  # size: rows", [("A", "size")]),
        ("A, B = 1, 2 ** 0.5  # prior: shares", [("A", "prior"), ("B", "prior")]),
        ("A, B = 'x', 2  # theorem: by Stirling", [("B", "theorem")]),
        ("# prior: a grid\nA = torch.logspace(0, 1, 3, dtype=F)", [("A", "prior")]),
        ("A = (\n    1,\n    2,\n)  # prior: a grid", [("A", "prior")]),
        ("B = 2  # size: rows\n\nA = 3", [("B", "size"), ("A", None)]),
        ("A = 1  # size: rows\nB = 2 * A", [("A", "size"), ("B", None)]),
        ("A = {'x': 1, 'y': 2}", [("A", None)]),
        ("A = 1j", []),
        ("A = (1, 'x')", []),
        ("def f():\n    A = 1", []),
    ],
)
def test_a_module_s_constants_are_found(line: str, found: list[tuple[str, str | None]]) -> None:
    assert [(each.name, each.kind) for each in read(line)] == found
