"""The notebook runs from top to bottom, and what it shows is what it gives."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "digits.ipynb"
LARGEST = 300_000  # bytes, with its outputs
SECONDS = 600  # for one cell, on a machine that does other things besides


@pytest.fixture(scope="module")
def stored() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def shown(notebook: Any) -> list[str]:
    """What its cells print."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["text"] for output in outputs if output.get("name") == "stdout"]


def test_it_is_small_and_stored_with_what_it_shows(stored: Any) -> None:
    import nbformat

    nbformat.validate(stored)
    assert NOTEBOOK.stat().st_size < LARGEST
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    pictures = sum("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
    assert pictures == 4
    assert not re.search(r"/(?:home|root|tmp|work)/", NOTEBOOK.read_text())


def test_its_links_lead_somewhere(stored: Any) -> None:
    words = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", words):
        assert (NOTEBOOK.parent / target).exists(), target


def test_it_runs_from_top_to_bottom(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With warnings as errors in the kernel; what is exact is compared with what is stored."""
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own parts
        from nbclient import NotebookClient

        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("PYTHONWARNINGS", "ignore")
        fresh: Any = nbformat.from_dict(stored)
        first = next(cell for cell in fresh.cells if cell.cell_type == "code")
        first.source = "import warnings\nwarnings.simplefilter('error')\n" + first.source
        NotebookClient(
            fresh, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": ROOT}}
        ).execute()
    text, before = "".join(shown(fresh)), "".join(shown(stored))
    exact = r"\d times ε = 1: together ε = [\d.]+"
    assert re.findall(exact, text) == re.findall(exact, before)
    assert len(re.findall(exact, text)) == 5
    accuracy = [float(re.findall(r"test accuracy +([\d.]+) %", each)[0]) for each in (text, before)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=8)  # other noise
    assert "suitable_for_release  True" in text
    assert not [o for c in fresh.cells for o in c.get("outputs", ()) if o.get("name") == "stderr"]
