"""docs/quickstart.md, step by step in an empty directory: what it tells to type is typed here."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from train_distributed.__main__ import main

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
FENCED = re.compile(r"^```(bash|python|)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def typed(block: str) -> Iterator[list[str]]:
    """The command lines of a block, word by word."""
    for line in re.sub(r"\\\n\s*", "", block).strip().splitlines():
        yield shlex.split(line, comments=True)


def labels(text: str) -> set[str]:
    """What lines of output begin with, before a value that may be another each time."""
    found = set()
    for line in text.splitlines():
        label = re.split(r" {2,}|,|\d", line)[0].strip()
        found.add(label)
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


def test_it_is_played_from_top_to_bottom(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    handler, printed, lines = signal.getsignal(signal.SIGTERM), "", 0
    try:
        for language, block in FENCED.findall(PAGE.read_text()):
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
    right = _accuracy(Path("predicted/predictions.csv"))
    assert right > 0.7  # chance is 0.1


def _accuracy(predictions: Path) -> float:
    """Of predictions of new digits, whose numbers are their places in the set."""
    from train_distributed.simulation.digits import load_digits

    _, truth = load_digits()
    lines = [line.split(",") for line in predictions.read_text().splitlines()[1:]]
    assert len(lines) == 1000
    return float(np.mean([truth[int(Path(path).stem)] == int(found) for path, found, *_ in lines]))
