"""What benchmarks share: files that they write, tables that they print; torch is not imported."""

import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from pretrain.cli.output import new_directory, new_file

DELTA, METHOD = 1e-5, "discriminant"


def show(figures: Any) -> None:
    print(json.dumps(figures, indent=1, ensure_ascii=False), flush=True)


def save(path: Path | None, figures: Any) -> None:
    """Writes JSON that appears whole or not at all; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write_text(json.dumps(figures, indent=1) + "\n")


def save_folder(path: Path, *, overwrite: bool = False, **files: Any) -> None:
    """A directory with these files; `table_txt` is `table.txt`, and what is no text is JSON."""
    with new_directory(path, overwrite=overwrite) as partial:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=2)
            (partial / name.replace("_", ".")).write_text(text.rstrip("\n") + "\n", "utf-8")


def alone(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives in a process of its own, whose peak of memory is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *given).result()


def command_line(**commands: Callable[..., Any]) -> None:
    """Runs the function whose name is typed, with - for _, and exits with what it returns."""
    typed = {name.replace("_", "-"): each for name, each in commands.items()}
    sys.exit(tyro.extras.subcommand_cli_from_dict(typed))


class Table:
    """Rows, printed as they come below the names of the first one's columns."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._widths: dict[str, int] = {}

    def add(self, row: Mapping[str, Any], **more: Any) -> None:
        """A row of numbers and words; `more` of it is not printed."""
        cells = {name: f"{v:.4g}" if isinstance(v, float) else str(v) for name, v in row.items()}
        if not self.rows:
            self._widths = {name: max(len(name), len(cell), 8) for name, cell in cells.items()}
            self._say({name: name for name in cells}, row)
        self._say(cells, row)
        self.rows.append({**row, **more})

    def _say(self, cells: Mapping[str, str], row: Mapping[str, Any]) -> None:
        aligned = {name: "<" if isinstance(value, str) else ">" for name, value in row.items()}
        words = (f"{cell:{aligned[name]}{self._widths[name]}}" for name, cell in cells.items())
        self.lines.append("  ".join(words).rstrip())
        print(self.lines[-1], flush=True)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def spread(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample deviation."""
    return np.mean(values, 0), np.std(values, 0, ddof=1)
