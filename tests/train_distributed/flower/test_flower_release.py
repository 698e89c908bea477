"""Flower's internals are used in one file, which says the release that it was written against."""

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PUBLIC = {"flwr.app"}


@pytest.mark.skipif(find_spec("flwr") is None, reason="needs the flower extra")
def test_flower_is_the_release_that_its_internals_were_read_in() -> None:
    from train_distributed.flower.transport.flower_internals import RELEASE

    found = version("flwr")
    assert found.rsplit(".", 1)[0] == RELEASE, (
        f"flwr {found} is installed, but transport/flower_internals.py was written against "
        f"{RELEASE}: compare every name in it with that release before it is used"
    )


def test_no_other_file_imports_internals_of_flower() -> None:
    found = {
        (path.name, module)
        for path in (ROOT / "train_distributed").rglob("*.py")
        for module in re.findall(r"^\s*(?:from|import) (flwr[\w.]*)", path.read_text(), re.M)
    }
    others = {each for each in found if each[0] != "flower_internals.py"}
    assert {module for _, module in others} <= PUBLIC, others
