"""What a promise rests on is proven, listed and attacked; chosen numbers say of what kind they are.

A name that a module assigns a number, or a tuple or grid of numbers, counts as one. Its comment, on
its line or the one above, begins with its kind:

    guard    a bound against overflow, hostile input or rounding
    theorem  follows from a formula that is cited
    prior    a belief, a share or a grid of them, chosen before any private row was seen
    size     of a block, a batch or a picture, a number of draws, or a code in a file
"""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text("utf-8").partition("## Proofs, and the tests")[2]
LISTED = dict(re.findall(r"^\* [^`]+: `([\w/.]+)`,\s+`(tests/[\w/.]+)`$", PAGE, re.MULTILINE))
FAULTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))["mutant"]
MARK = re.compile(r"\*\*(Theorem|Proof|Sensitivity)\b|∎")
ROOMS = ("embed", "train_distributed/one_shot")  # whose constants are few
KINDS = ("guard", "theorem", "prior", "size")
MOST = 80
Marked = ast.Module | ast.ClassDef | ast.FunctionDef


def statements(path: Path) -> Iterator[tuple[str, str]]:
    """(name, docstring) of what states a sensitivity or is marked as theorem or proof."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, Marked):
            text, name = ast.get_docstring(node) or "", getattr(node, "name", path.stem)
            if "sensitivity" in name or MARK.search(text):
                yield name, text


def test_whatever_states_a_sensitivity_or_a_theorem_is_listed() -> None:
    rooms = (ROOT / "heads", ROOT / "embed", ROOT / "train_distributed")
    files = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    stating = {
        str(path.relative_to(ROOT))
        for path in files
        if "research" not in path.parts and any(statements(path))
    }
    assert stating <= set(LISTED), stating - set(LISTED)
    assert len(LISTED) >= 16


@pytest.mark.parametrize(("proof", "test"), LISTED.items())
def test_a_listed_statement_has_its_proof_a_test_and_a_planted_fault(proof: str, test: str) -> None:
    stated = dict(statements(ROOT / proof))
    assert all(len(text.split()) >= 3 for text in stated.values()), "a statement without a reason"
    module = proof.removesuffix(".py").replace("/", ".")
    text = (ROOT / test).read_text("utf-8")
    names = {module, module.rpartition(".")[2], *stated} - {"head"}
    assert any(name in text for name in names), f"{test} names nothing of {module}"
    assert any(fault["file"] == proof for fault in FAULTS), f"no fault is planted in {proof}"


def read(text: str, values: Mapping[str, object]) -> Iterator[tuple[str, str, str | None]]:
    """(name, value, kind) of each constant of a module's text."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        above = lines[node.lineno - 2] if lines[node.lineno - 2].startswith("#") else ""
        said = (lines[(node.end_lineno or 0) - 1], lines[node.lineno - 1], above)
        kind = next((found for line in said if (found := kind_in(line))), None)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in (each.id for each in ast.walk(target) if isinstance(each, ast.Name)):
                if numeric(values.get(name)):
                    yield name, repr(values[name]), kind


def numeric(value: object) -> bool:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return len(value) > 0 and all(map(numeric, value))
    return type(value) in (int, float, torch.Tensor, np.ndarray)


def kind_in(line: str) -> str | None:
    words = line.partition("#")[2].strip()
    return next((kind for kind in KINDS if words.startswith(f"{kind}: ")), None)


def test_constants_are_few_say_their_kind_and_equal_guards_share_a_name() -> None:
    found = []
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        values = {} if path.stem == "__main__" else vars(importlib.import_module(module))
        found += [(module, *constant) for constant in read(path.read_text(), values)]
    assert 70 < len(found) <= MOST
    assert [constant for constant in found if constant[-1] is None] == []
    guards = [(module, value) for module, _, value, kind in found if kind == "guard"]
    assert len(guards) == len(set(guards))
