"""Quickstart, findings and the notebook run from top to bottom, and give what they show."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.__main__ import main
from train_distributed.simulation.digits import load_digits

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "digits.ipynb"
LARGEST = 300_000  # bytes of the notebook, with its outputs
FEWER = {"(0.1, 0.3, 1.0, 3.0, 10.0)": "(0.1, 10.0)", "range(3)": "range(2)"}  # of 30 releases
FENCED = re.compile(r"^```(bash|python|)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def typed(block: str) -> Iterator[list[str]]:
    """The command lines of a block, word by word."""
    for line in re.sub(r"\\\n\s*", "", block).strip().splitlines():
        yield shlex.split(line, comments=True)


def labels(text: str) -> set[str]:
    """What lines of output begin with, before a value that may be another each time."""
    found = {re.split(r" {2,}|,|\d", line)[0].strip() for line in text.splitlines()}
    return found - {""}


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys) -> str:
    """What a command prints; one of ours runs in this process."""
    if words[0] != "blind-averaging":
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout
    monkeypatch.setattr(sys, "argv", words)
    code = main()
    said = capsys.readouterr()
    assert code == 0, f"{shlex.join(words)}: {said.err}"
    return said.out


def test_findings_are_played_from_top_to_bottom(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    printed, names = "", {}
    for language, block in FENCED.findall((ROOT / "docs" / "findings.md").read_text()):
        if "EmbeddingSet.open" in block:  # a fit of all columns takes long and shows no more
            mine = EmbeddingSet.open(Path("mine"))
            few = np.array(mine.embeddings[:, ::20])
            replace(mine, embeddings=few, meta=mine.meta_of_rows).save(Path("mine"), overwrite=True)
        if language == "python":
            exec(block, names)
        else:
            printed += "".join(run(words, monkeypatch, capsys) for words in typed(block))
    found = dict(line.split(None, 2)[1:] for line in printed.splitlines() if "macro" in line[:6])
    assert float(found["auroc"].split()[0]) > 0.55
    assert capsys.readouterr().out == "(3, 10)\n"


def test_the_quickstart_is_played_from_top_to_bottom(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    handler, printed, lines = signal.getsignal(signal.SIGTERM), "", 0
    try:
        for language, block in FENCED.findall((ROOT / "docs" / "quickstart.md").read_text()):
            if "pip install" in block:
                continue
            if language == "bash":
                printed = ""
                for words in typed(block):
                    printed += run(words, monkeypatch, capsys)
                    lines += 1
            elif language == "python":
                printed = ""
                exec(compile(block, "quickstart", "exec"), {})
                printed = capsys.readouterr().out
            elif block.startswith("pictures/"):
                for line in block.splitlines():
                    assert Path(line.split()[0]).is_file(), line
            else:  # what the page shows
                assert labels(block) <= labels(printed)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert lines >= 11
    written = ("model/card.html", "model/card.md", "exported/model.onnx", "held.ledger")
    assert all(Path(name).is_file() for name in written)
    assert "A private evaluation" in Path("model/card.md").read_text()
    _, truth = load_digits()
    predicted = Path("predicted/predictions.csv").read_text().splitlines()[1:]
    assert len(predicted) == 1000
    found = [line.split(",") for line in predicted]
    right = [truth[int(Path(path).stem)] == int(label) for path, label, *_ in found]
    assert np.mean(right) > 0.7  # chance is 0.1


@pytest.fixture(scope="module")
def stored() -> Any:
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_the_notebook_is_small_whole_and_its_links_lead_somewhere(stored: Any) -> None:
    assert NOTEBOOK.stat().st_size < LARGEST
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    pictures = sum("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
    assert pictures == 4
    assert not re.search(r"/(?:home|root|tmp|work)/", NOTEBOOK.read_text())
    words = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", words):
        assert (NOTEBOOK.parent / target).exists(), target


def test_the_notebook_runs_from_top_to_bottom(stored, monkeypatch, capsys) -> None:
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
