"""README and docs: what they show runs; links, commands, options, modules and files exist."""

import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import train_distributed.__main__ as menu
from embed import EmbeddingSet
from train_distributed.commands import COMMANDS
from train_distributed.one_shot.registry import METHODS
from train_distributed.simulation.digits import load_digits

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    *(README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").glob("*.md")),
]
MOST_WORDS, MOST_LINES = 600, 55  # lines beside code blocks
MOST_WORDS_OF_DOCS = 14_000
ROOMS = ("embed", "heads", "pretrain")
FEDERATION = [name.split()[1] for name in menu.MENU.commands if name.startswith("federation ")]
SIMULATION = list(dict.fromkeys(name.split()[0] for name in menu.MENU.commands if name != "demo"))
NOTEBOOK = ROOT / "docs" / "digits.ipynb"
FEWER = {"(0.1, 0.3, 1.0, 3.0, 10.0)": "(0.1, 10.0)", "range(3)": "range(2)"}  # of 30 releases
FENCED = re.compile(r"^```(bash|python|)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTION = r"(?<![\w-])--[a-z][a-z-]*"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def test_readme_and_documentation_are_short():
    text = README.read_text()
    prose = re.sub(r"^```.*?^```\n", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(text.split()) <= MOST_WORDS
    assert len(prose.splitlines()) <= MOST_LINES
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(len(page.read_text().split()) for page in pages) <= MOST_WORDS_OF_DOCS


def test_the_readme_ends_in_the_demonstration_and_in_the_tests_of_ci():
    (block,) = re.findall(r"## Install.*?```bash\n(.*?)```", README.read_text(), re.DOTALL)
    demo, tests = (line.rpartition(" && ")[2] for line in block.splitlines())
    assert (demo, tests) == ("blind-averaging", "python -m pytest")
    assert f"    {tests} || tests=$?\n" in (ROOT / ".ci" / "run").read_text()


def test_the_python_of_the_readme_gives_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(README)
    names = executed(block)
    model, report = names["model"], names["model"].report
    assert capsys.readouterr().out == f"{model.predict(names['rows'][:3], names=True)}\n"
    assert report["suitable_for_release"] is True
    assert (report["epsilon"], report["users"]) == (1.0, 100)
    right = model.predict(names["rows"]).numpy() == names["labels"]
    assert right.mean() > 0.6  # chance is 1/3
    assert not list(tmp_path.iterdir())


@each_page
def test_python_runs(page, tmp_path, monkeypatch):
    if page.name in ("quickstart.md", "findings.md"):
        pytest.skip("played with its commands by a test of its own")
    monkeypatch.chdir(tmp_path)
    for block in python_blocks(page):
        executed(block)


@each_page
def test_links_files_and_modules_of_a_page_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target
    roots = "docs|embed|heads|pretrain|results|tests|train_distributed"
    for name in re.findall(rf"(?<![\w./-])(?:{roots})/[\w./-]*", text):
        assert (ROOT / name.rstrip(".")).exists(), name
    assert not re.search(r"(?<![\w.~])/(?:home|root|tmp|Users|work|mnt|data)/", text)
    for name in re.findall(r"python -m ([\w.]*\w)", text):
        assert importlib.util.find_spec(name) is not None, name


@each_page
def test_commands_and_their_options_exist(page):
    if page.name == "CHANGELOG.md":
        pytest.skip("names commands and options of earlier versions")
    for module, words in commands(page.read_text()):
        depth = 2 if words[0] in menu.MENU.groups else 1
        path, rest = words[:depth], words[depth:]
        if not all(re.fullmatch(r"[a-z][a-z-]*", word) for word in path):
            continue  # a placeholder
        known = re.findall(OPTION, help_of(module, *path))
        for option in re.findall(OPTION, " ".join(rest)):
            assert option in known, f"{module} {' '.join(path)} {option}"


@pytest.mark.parametrize("words", [("embed", "runn"), ("train_distributed", "frobnicate")])
def test_a_command_that_does_not_exist_is_noticed(words):
    with pytest.raises(ValueError, match=r"must be a command"):
        help_of(*words)


@pytest.mark.parametrize("package", ["embed", "heads", "pretrain", "train_distributed"])
def test_the_reference_has_every_public_name(package):
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    shown = re.findall(rf"^(?:::: |\| `){package}\.(\w+)(?:$|` \|)", page, re.MULTILINE)
    assert sorted(shown) == sorted(importlib.import_module(package).__all__)


def test_the_citation_has_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def python_blocks(page: Path) -> list[str]:
    """The fenced Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def executed(block: str) -> dict:
    """The names that a block leaves; a method or command that it adds goes with it."""
    names = {"__name__": "__main__"}  # where dataclasses look their module up
    tables = METHODS, COMMANDS
    before: list[dict[str, Any]] = [dict(table) for table in tables]
    try:
        exec(compile(block, "README", "exec"), names)
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)
    return names


def anchors(page: Path) -> set[str]:
    """What headings can be linked to by, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(module, words) of every command line, in full or by its sub-command in `code`."""
    text = re.sub(r"\\\n\s*", "", text)
    names = "|".join((*ROOMS, "train_distributed"))
    full = re.findall(rf"-m ({names})\b(?![./])([^`\n#]*)", text)
    found = [(module, line.split()) for module, line in full]
    subs = "|".join((*SIMULATION, *ROOMS, *FEDERATION))
    short = re.findall(rf"(?<![\w`])`((?:{subs})(?: [^`\n]*)?)`", text)
    for line in (*re.findall(r"\bblind-averaging\b(?!\[)([^`\n#]*)", text), *short):
        words = line.split()
        if words[:1] and words[0] in FEDERATION:
            words.insert(0, "federation")
        room = words.pop(0) if words and words[0] in ROOMS else "train_distributed"
        found.append((room, words))
    return [(module, words) for module, words in found if words]


@cache
def help_of(module: str, *path: str) -> str:
    """What `python -m module path --help` prints."""
    said, handler = io.StringIO(), signal.getsignal(signal.SIGTERM)
    command = " ".join((module, *path))
    with (
        patch.object(sys, "argv", [module, *path, "--help"]),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        contextlib.suppress(SystemExit),
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),
    ):
        try:  # a module that other tests have imported is run again, which Python warns about
            runpy.run_module(module, run_name="__main__")
        finally:
            signal.signal(signal.SIGTERM, handler)
    text = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue())
    if not text.startswith(f"usage: python -m {command} "):  # a wrong one gets the help above it
        raise ValueError(f"must be a command, got {command}: {text}")
    return text


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
    code = menu.main()
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


def test_the_notebook_is_small_whole_and_runs_from_top_to_bottom(monkeypatch, capsys) -> None:
    """In one namespace, with fewer releases for the curves; exact values are those stored."""
    import nbformat

    stored: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    assert NOTEBOOK.stat().st_size < 300_000  # bytes, with its outputs
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    pictures = sum("image/png" in o.get("data", {}) for cell in code for o in cell.outputs)
    assert pictures == 4
    assert not re.search(r"/(?:home|root|tmp|work)/", NOTEBOOK.read_text())
    words = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", words):
        assert (NOTEBOOK.parent / target).exists(), target
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT)
    import matplotlib.pyplot as plt

    known: dict[str, Any] = {}
    sources = [cell.source for cell in code]
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
