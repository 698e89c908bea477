"""What a promise rests on is proven where it is used, listed in docs/methods.md, and attacked."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text("utf-8").partition("## Proofs, and the tests")[2]
LISTED = dict(re.findall(r"^\* [^`]+: `([\w/.]+)`,\s+`(tests/[\w/.]+)`$", PAGE, re.MULTILINE))
FAULTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))["mutant"]
MARK = re.compile(r"\*\*(Theorem|Proof|Sensitivity)\b|∎")
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
