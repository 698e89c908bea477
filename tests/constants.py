"""Numeric constants of `embed` and `train_distributed.one_shot`: python tests/constants.py

A name that a module assigns a number, a tuple or grid of numbers, or a formula of these, counts as
one. Its comment, on its line or the one above, begins with its kind:

    guard    a bound against overflow, hostile input or rounding
    theorem  follows from a formula that is cited
    prior    a belief, a share or a grid of them, chosen before any private row was seen
    size     of a block, a batch or a picture, a number of draws, or a code in a file
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("embed", "train_distributed/one_shot")
KINDS = ("guard", "theorem", "prior", "size")


@dataclass(frozen=True)
class Constant:
    """A name, its value as it is written, and its kind; None where no comment says one."""

    file: str
    name: str
    value: str
    kind: str | None


def constants(root: Path = ROOT) -> list[Constant]:
    """All of both rooms."""
    files = [file for room in ROOMS for file in sorted((root / room).rglob("*.py"))]
    return [each for file in files for each in read(file.read_text(), str(file.relative_to(root)))]


def read(text: str, file: str = "") -> Iterator[Constant]:
    """Those of a module's text."""
    lines, known = text.splitlines(), set[str]()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name, value in _pairs(target, node.value):
                if _numeric(value, known):
                    known.add(name)
                    last = node.end_lineno or node.lineno
                    kind = _kind(lines[last - 1]) or _kind(lines[node.lineno - 1])
                    if kind is None and lines[node.lineno - 2].startswith("#"):
                        kind = _kind(lines[node.lineno - 2])
                    yield Constant(file, name, ast.unparse(value), kind)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Name and value of each target; names of a tuple that is unpacked share an unknown value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(values) != len(target.elts):
            values = [value] * len(target.elts)
        for each, own in zip(target.elts, values, strict=True):
            yield from _pairs(each, own)


def _numeric(node: ast.expr, known: set[str]) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name(id=name):
            return name in known
        case ast.UnaryOp(operand=operand):
            return _numeric(operand, known)
        case ast.BinOp(left=left, right=right):
            return _numeric(left, known) and _numeric(right, known)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return bool(parts) and all(_numeric(part, known) for part in parts)
        case ast.Dict(values=parts):
            return bool(parts) and all(_numeric(part, known) for part in parts)
        case ast.Call(args=parts):
            return bool(parts) and all(_numeric(part, known) for part in parts)
    return False


def _kind(line: str) -> str | None:
    """Kind that the comment of a line begins with."""
    words = line.partition("#")[2].strip()
    return next((kind for kind in KINDS if words.startswith(f"{kind}: ")), None)


if __name__ == "__main__":
    found = constants()
    for each in found:
        print(f"{each.file:48} {each.name:18} {each.value:44.44} {each.kind or 'UNSAID'}")
    print(len(found))
