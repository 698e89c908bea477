"""Hooks of mkdocs: the site shows the repository's pages without a copy of any of them.

Pages link to files of the repository by relative paths, which a repository viewer follows. The site
mirrors the repository with `docs/` folded into its root: `docs/data.md` becomes `data.md`,
`results/README.md` keeps its path, `README.md` becomes the home page. Every linked file outside
`docs/` is added to the site. The notebook becomes a page, and the page of all commands is filled
with their own `--help`.
"""

import base64
import contextlib
import io
import json
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)\s#]+)")
NOTEBOOK = "digits.ipynb"
COMMANDS = "reference/commands.md"
FRAME = " -│─╭╮╰╯"


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages outside docs/, the files that pages link to, and the notebook as a page."""
    notebook = files.get_file_from_path(NOTEBOOK)
    assert notebook is not None
    files.remove(notebook)
    for name, content in _notebook(ROOT / "docs" / NOTEBOOK).items():
        files.append(File.generated(config, name, content=content))
    outside = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    outside += [str(p.relative_to(ROOT)) for p in sorted((ROOT / "results").glob("*.md"))]
    outside += ["pretrain/simclr_small.md"]
    pages = [f"docs/{file.src_uri}" for file in files if file.is_documentation_page()]
    for page in (*pages, *outside):
        if (path := ROOT / page).exists():  # a generated page has no links to files
            files_of_page = [_target(page, link) for _, link in LINK.findall(path.read_text())]
            for name in (page, *files_of_page):
                _add(name, files, config)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links for the site's layout; fills in the commands' options."""
    if page.file.src_uri == COMMANDS:
        markdown += _commands()
    source = _in_repository(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        return match[1] + posixpath.relpath(_in_site(_target(source, target)), folder or ".")

    return LINK.sub(moved, markdown)


def _target(page: str, link: str) -> str:
    """Repository path of a link on a page of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _in_site(path: str) -> str:
    """Path in the site of a file of the repository."""
    if (ROOT / path).is_dir():
        path += "/README.md"
    names = {"README.md": "index.md", f"docs/{NOTEBOOK}": "digits.md"}
    return names.get(path, path.removeprefix("docs/"))


def _in_repository(path: str) -> str:
    """Path in the repository of a page of the site."""
    if path == "index.md":
        return "README.md"
    return f"docs/{path}" if (ROOT / "docs" / path).exists() else path


def _add(name: str, files: Files, config: Any) -> None:
    """Adds a file of the repository, unless the site has it."""
    site = _in_site(name)
    if not (ROOT / name).is_file() or files.get_file_from_path(site) is not None:
        return
    content = (ROOT / name).read_bytes()
    files.append(File.generated(config, site, content=content))


def _notebook(path: Path) -> dict[str, str | bytes]:
    """Page and pictures of a notebook that is stored with its outputs."""
    written: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"digits_{len(written)}.png"
                written[name] = base64.b64decode(data["image/png"])
                parts.append(f"![output]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```\n{text.rstrip()}\n```")
    return {path.with_suffix(".md").name: "\n\n".join(parts) + "\n", **written}


def _commands() -> str:
    """Every command's own --help."""
    sys.path.insert(0, str(ROOT))
    os.environ["COLUMNS"] = "100"
    from train_distributed.__main__ import PROGRAM, ROOMS

    parts = []
    for name, words in ROOMS.lines():
        text = _help(name.split(), PROGRAM)
        parts.append(f"\n## {name}\n\n{words}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _help(words: list[str], program: str) -> str:
    """Text that `PROGRAM WORDS --help` prints, without its frames."""
    from train_distributed.__main__ import main

    said = io.StringIO()
    before, sys.argv = sys.argv, [program, *words, "--help"]
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()).splitlines()
    return "\n".join(line.strip(FRAME) and line.rstrip(FRAME) for line in lines).strip()
