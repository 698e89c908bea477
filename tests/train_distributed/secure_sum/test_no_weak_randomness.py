"""Nothing in the package draws from a generator that is not the operating system's."""

import ast
from pathlib import Path

import pytest

import train_distributed.secure_sum

PACKAGE = Path(train_distributed.secure_sum.__file__).parent
FORBIDDEN = {"random", "torch", "uuid", "time_ns"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def weak_randomness(source: str) -> list[str]:
    """Names through which a module could reach a seedable generator."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [node.func.id] if node.func.id == "__import__" else []
        else:
            continue
        found += [n for n in names if FORBIDDEN & set(n.split(".")) or n == "__import__"]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_module_uses_no_seedable_generator(path: Path) -> None:
    assert weak_randomness(path.read_text()) == []


def test_there_are_modules_to_check() -> None:
    assert {"prg", "reports", "secagg_user", "shamir", "keys"} <= {path.stem for path in SOURCES}


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import torch",
        "from torch import randint",
        "__import__('random')",
    ],
)
def test_the_check_sees_weak_randomness(source: str) -> None:
    assert weak_randomness(source)
