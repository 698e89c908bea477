"""Choices of `select` on pictures of many kinds, beside the best of its candidates.

python tests/benchmarks/bench_select.py --pairs letters:tiny_simclr shapes:tiny_simclr --write FILE

Each pair names an embedding set, with test rows, and a labelled public one. `select` chooses twice
for each federation: on tasks of the public set, and with `--like` of `LIKE` training rows, which
are then left out of the private ones. All candidates, and `mixed` directions and hedges that keep
all directions, which `select` does not try, are released on the private rows; the search looks at
balanced accuracy on test rows, as a release may not. The best of them is found with one half of the
seeds, and losses are what the choices are below it with the other half, both ways round;
`in_hindsight` they are below the best with all seeds, whose luck is then a loss.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bench_kinds
import numpy as np
from bench_kinds import DELTA, Cell, Kind, loss_apart

from embed import EmbeddingSet
from embed.store import TRAIN
from embed.transform_options import TransformOptions
from train_distributed import Privacy
from train_distributed.commands.select import Select
from train_distributed.simulation.rehearsal import Candidates, Sizes
from train_distributed.simulation.tournament import candidates_of

LIKE = 4000


def parted(private: Path, public: Path, rows: int, out: Path) -> None:
    """Writes `like`, `private` without its rows, and `public` with so many rows at most."""
    rng = np.random.default_rng(0)
    given = EmbeddingSet.open(private)
    shown = np.zeros(len(given), bool)
    shown[rng.permutation(np.flatnonzero(given.split == TRAIN))[:LIKE]] = True
    given.subset(shown).save(out / "like")
    given.subset(~shown).save(out / "private")
    others = EmbeddingSet.open(public)
    others.subset(np.sort(rng.permutation(len(others))[:rows])).save(out / "public")


def chosen(folder: Path, cell: Cell, num_classes: int, tasks: int, like: bool) -> str:
    """Transform and options that `select` chooses."""
    users, rows, epsilon = cell
    out = folder / f"{cell} {like}"
    Select(
        folder / "public",
        users,
        rows,
        num_classes,
        Privacy(epsilon, DELTA),
        like=folder / "like" if like else None,
        tasks=tasks,
        out=out,
    ).run()
    first = json.loads((out / "report.json").read_text())["candidates"][0]
    return named(first["transform"], first["options"])


def released(
    kind: Kind,
    candidates: Candidates,
    cells: Sequence[Cell],
    seeds: int,
    found: dict[str, dict[Cell, np.ndarray]],
) -> None:
    """Adds accuracies of candidates that are not there yet."""
    for each in candidates.settings:
        transform: TransformOptions = candidates.transforms[each.transform]
        options = tuple(sorted(each.options.items()))
        name = named(each.transform, each.options)
        if name not in found:
            found[name] = kind.accuracies("discriminant", (transform, options), cells, seeds)


def named(transform: str, options: Mapping[str, Any]) -> str:
    """Transform and options, alike for lists and tuples."""
    return f"{transform} {json.dumps(dict(options), sort_keys=True)}"


def measured(
    private: Path, public: Path, cells: Sequence[Cell], rows: int, tasks: int, seeds: int
) -> list[dict[str, Any]]:
    """One line per federation and ε: accuracy of both choices and of the best candidate."""
    lines = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        parted(private, public, rows, folder)
        kind = Kind(folder / "private", folder / "public")
        dim = EmbeddingSet.open(public).dim
        for cell in cells:
            found: dict[str, dict[Cell, np.ndarray]] = {}
            privacy = kind.facts(cell).privacy
            sizes = Sizes(users=cell[0], rows_per_user=cell[1], num_classes=kind.num_classes)
            released(
                kind, candidates_of(sizes, privacy, dim, centre="private"), [cell], seeds, found
            )
            weight = sizes.moment_weight(privacy, "all")
            wider = Candidates.default(dim, centre="private", moment_weight=weight)
            released(kind, wider.for_equal_classes(), [cell], seeds, found)
            mean = {name: float(each[cell].mean()) for name, each in found.items()}
            best = max(mean, key=mean.__getitem__)
            tried = [each[cell] for each in found.values()]
            line: dict[str, Any] = {"private": private.name, "cell": cell, "best": best}
            line["accuracy"] = round(mean[best], 2)
            for word, like in (("public", False), ("like", True)):
                line[word] = chosen(folder, cell, kind.num_classes, tasks, like)
                line[f"{word}_loss"] = round(loss_apart(found[line[word]][cell], tried), 2)
                line[f"{word}_in_hindsight"] = round(mean[best] - mean[line[word]], 2)
            lines.append(line)
            print(json.dumps(line), flush=True)
    return lines


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Choices of select on pictures of many kinds")
    parser.add_argument("--pairs", nargs="+", required=True, help="PRIVATE:PUBLIC")
    parser.add_argument("--cells", nargs="+", default=["100:70:1", "50:40:3"], help="w:n:EPSILON")
    parser.add_argument("--rows", type=int, default=12_500, help="public rows at most")
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    cells = [(int(w), int(n), float(e)) for w, n, e in (c.split(":") for c in arguments.cells)]
    bench_kinds.PUBLIC_ROWS = arguments.rows
    bench_kinds.FEDERATIONS = tuple((w, n, (e,)) for w, n, e in cells)  # no more rows are projected
    started, lines = time.process_time(), []
    for pair in arguments.pairs:
        private, _, public = pair.rpartition(":")
        lines += measured(
            Path(private), Path(public), cells, arguments.rows, arguments.tasks, arguments.seeds
        )
    for word in ("public_loss", "public_in_hindsight", "like_loss", "like_in_hindsight"):
        losses = [line[word] for line in lines]
        print(f"{word}: {np.mean(losses):.2f} on average, {max(losses):.2f} at most")
    if arguments.write is not None:
        made = {
            **{k: v for k, v in vars(arguments).items() if k not in ("write", "pairs")},
            "processor_seconds": round(time.process_time() - started),
        }
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(json.dumps({**made, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
