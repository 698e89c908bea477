"""`python -m train_distributed sweep`: a whole experiment, resumable, as raw rows and a picture."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from tqdm import tqdm

from embed import EmbeddingSet
from embed.fit import refuse_leak
from pretrain.output import default_directory, new_directory, refuse_existing
from train_distributed.experiment import Cell, Plan, run_jobs
from train_distributed.frontier import frontier_settings, frontier_transforms
from train_distributed.plot import draw_frontier
from train_distributed.provenance import provenance
from train_distributed.table import table

EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.2, 3.0)


@dataclass(frozen=True)
class Sweep:
    """Compare methods over ε and partitions; a killed sweep continues where it stopped."""

    experiment: tyro.conf.Positional[Literal["frontier"]]
    """frontier: blind averaging as published against our statistics and transform."""
    embeddings: Path
    """Embedding set: split 0 is spread over users, split 1 tests."""
    public: Path
    """Embedding set that is nobody's secret."""
    users: int = 1000
    """Number of users."""
    epsilons: tuple[float, ...] = EPSILONS
    """ε of each column."""
    delta: float = 1e-5
    """δ."""
    honest_fraction: float = 0.5
    """t: share of users that are honest."""
    schemes: tuple[Literal["iid", "one-class"], ...] = ("iid", "one-class")
    """Who holds which rows."""
    seeds: int = 5
    """Repetitions with other partitions and other noise."""
    out: Path | None = None
    """Directory to write; a new one under runs/ if left out."""
    overwrite: bool = False
    """Replace the directory if it exists."""

    def run(self) -> None:
        """Writes results.json, table.txt and accuracy.png; prints the table.

        Raises:
            ValueError: a setting out of range.
            FileExistsError: the directory exists.
        """
        out = default_directory(f"sweep-{self.experiment}") if self.out is None else self.out
        refuse_existing(out, overwrite=self.overwrite)
        embeddings, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
        plan = self._plan(embeddings)
        plan.validate()
        refuse_leak(public, embeddings)
        journal = Journal(out.with_name(f".{out.name}.unfinished.jsonl"), self._identity())
        rows = list(self._cells(embeddings, public, plan, journal))
        text = table(rows)
        with new_directory(out, overwrite=self.overwrite) as partial:
            (partial / "results.json").write_text(json.dumps(self._result(rows), indent=1) + "\n")
            (partial / "table.txt").write_text(text + "\n")
            title = f"{self.experiment}: {self.users} users, δ = {self.delta:g}, {self.seeds} seeds"
            chance = 1 / plan.num_classes
            draw_frontier(rows, partial / "accuracy.png", title=title, chance=chance)
        journal.path.unlink()
        print(f"{text}\n\nwritten: {out}")

    def _plan(self, embeddings: EmbeddingSet) -> Plan:
        names = embeddings.meta.get("class_names")
        if not names:
            raise ValueError("embeddings must name their classes (meta.json, class_names)")
        return Plan(
            settings=frontier_settings(embeddings.dim),
            users=self.users,
            schemes=self.schemes,
            epsilons=self.epsilons,
            delta=self.delta,
            seeds=range(self.seeds),
            num_classes=len(names),
            honest_fraction=self.honest_fraction,
        )

    def _cells(
        self, embeddings: EmbeddingSet, public: EmbeddingSet, plan: Plan, journal: "Journal"
    ) -> Iterator[Cell]:
        done = journal.read()
        jobs = run_jobs(embeddings, frontier_transforms(public), plan, finished=done)
        total = len(plan.settings) * len(plan.schemes) * len(plan.seeds)
        for key, cells in tqdm(jobs, total=total, initial=len(done), unit="job", disable=None):
            journal.append(key, cells)
            done[key] = cells
        for key in sorted(done):
            yield from done[key]

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a sweep to be the same one."""
        return {
            "experiment": self.experiment,
            "embeddings": EmbeddingSet.open(self.embeddings).content_hash(),
            "public": EmbeddingSet.open(self.public).content_hash(),
            "users": self.users,
            "epsilons": list(self.epsilons),
            "delta": self.delta,
            "honest_fraction": self.honest_fraction,
            "schemes": list(self.schemes),
            "seeds": self.seeds,
        }

    def _result(self, rows: list[Cell]) -> dict[str, Any]:
        embeddings = EmbeddingSet.open(self.embeddings)
        names = ("dataset", "encoder", "preprocessing")
        return {
            **provenance(),
            "configuration": self._identity(),
            "embeddings": {k: embeddings.meta[k] for k in names if k in embeddings.meta},
            "simulation": True,
            "suitable_for_release": False,
            "note": "the best setting under a label is chosen per cell on the test split; that "
            "choice costs privacy that is not accounted for",
            "cells": [row.as_dict() for row in rows],
        }


@dataclass(frozen=True)
class Journal:
    """Finished jobs of an unfinished sweep, a line each; a torn last line counts for nothing."""

    path: Path
    identity: dict[str, Any]

    def read(self) -> dict[str, list[Cell]]:
        """Cells by job; starts the file if there is none, or if it belongs to another sweep."""
        lines, first = self._lines(), {"sweep": self.identity}
        if not lines or lines[0] != first:
            lines = [first]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        jobs: list[Any] = lines[1:]
        return {job["job"]: [Cell(**cell) for cell in job["cells"]] for job in jobs}

    def append(self, key: str, cells: list[Cell]) -> None:
        """Records a job, on disk before it returns."""
        line = json.dumps({"job": key, "cells": [cell.as_dict() for cell in cells]})
        with self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[Any]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole]
