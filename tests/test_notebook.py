"""The notebook runs from top to bottom, and what it shows is what it gives."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "digits.ipynb"
LARGEST = 300_000  # bytes, with its outputs
FEWER = {"(0.1, 0.3, 1.0, 3.0, 10.0)": "(0.1, 10.0)", "range(3)": "range(2)"}  # of 30 releases


@pytest.fixture(scope="module")
def stored() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_small_stored_with_what_it_shows_and_its_links_lead_somewhere(stored: Any) -> None:
    import nbformat

    nbformat.validate(stored)
    assert NOTEBOOK.stat().st_size < LARGEST
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    pictures = sum("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
    assert pictures == 4
    assert not re.search(r"/(?:home|root|tmp|work)/", NOTEBOOK.read_text())
    words = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", words):
        assert (NOTEBOOK.parent / target).exists(), target


def test_it_runs_from_top_to_bottom(stored, monkeypatch, capsys) -> None:
    """In one namespace, with fewer releases for the curves; exact values are those stored."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT)
    import matplotlib.pyplot as plt

    known: dict[str, Any] = {}
    sources = [cell.source for cell in stored.cells if cell.cell_type == "code"]
    for all_of_them, few in FEWER.items():
        assert sum(all_of_them in source for source in sources) == 1
        sources = [source.replace(all_of_them, few) for source in sources]
    with plt.rc_context():
        for source in sources:
            exec(compile(source, "notebook", "exec"), known)
    assert len(plt.get_fignums()) == 4
    plt.close("all")
    text, said = capsys.readouterr()
    assert said == ""
    outputs = [output for cell in stored.cells for output in cell.get("outputs", ())]
    before = "".join(each["text"] for each in outputs if each.get("name") == "stdout")
    exact = r"\d times ε = 1: together ε = [\d.]+"
    assert re.findall(exact, text) == re.findall(exact, before)
    assert len(re.findall(exact, text)) == 5
    accuracy = [float(re.findall(r"test accuracy +([\d.]+) %", each)[0]) for each in (text, before)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=8)  # other noise
    assert "suitable_for_release  True" in text
