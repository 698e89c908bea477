"""Few numbers are chosen in `embed` and `one_shot`, and each says what kind of choice it is.

A name that a module assigns a number, a tuple or grid of numbers, or a formula of these, counts as
one. Its comment, on its line or the one above, begins with its kind:

    guard    a bound against overflow, hostile input or rounding
    theorem  follows from a formula that is cited
    prior    a belief, a share or a grid of them, chosen before any private row was seen
    size     of a block, a batch or a picture, a number of draws, or a code in a file
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("embed", "train_distributed/one_shot")
KINDS = ("guard", "theorem", "prior", "size")
MOST = 80
FORMULAS = ast.UnaryOp | ast.BinOp | ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Call


class Constant(NamedTuple):
    file: str
    name: str
    value: str  # as it is written
    kind: str | None


def read(text: str, file: str = "") -> Iterator[Constant]:
    """Constants of a module's text."""
    lines, known = text.splitlines(), set[str]()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        above = lines[node.lineno - 2] if lines[node.lineno - 2].startswith("#") else ""
        said = (lines[(node.end_lineno or 0) - 1], lines[node.lineno - 1], above)
        kind = next((found for line in said if (found := kind_in(line))), None)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name, value in pairs(target, node.value):
                if numeric(value, known):
                    known.add(name)
                    yield Constant(file, name, ast.unparse(value), kind)


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Name and value of each target; names of a tuple that is unpacked share an unknown value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(values) != len(target.elts):
            values = [value] * len(target.elts)
        for each, own in zip(target.elts, values, strict=True):
            yield from pairs(each, own)


def numeric(node: ast.expr, known: set[str]) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Name):
        return node.id in known
    if not isinstance(node, FORMULAS):
        return False
    own = {ast.Call: "args", ast.Dict: "values"}.get(type(node))
    parts = getattr(node, own) if own else ast.iter_child_nodes(node)
    parts = [part for part in parts if isinstance(part, ast.expr)]
    return bool(parts) and all(numeric(part, known) for part in parts)


def kind_in(line: str) -> str | None:
    words = line.partition("#")[2].strip()
    return next((kind for kind in KINDS if words.startswith(f"{kind}: ")), None)


def test_constants_are_few_say_their_kind_and_equal_guards_share_a_name() -> None:
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    found = [each for p in paths for each in read(p.read_text(), str(p.relative_to(ROOT)))]
    assert 40 < len(found) <= MOST
    assert [each for each in found if each.kind is None] == []
    guards = [(each.file, each.value) for each in found if each.kind == "guard"]
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
