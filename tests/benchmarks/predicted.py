"""Accuracy that `rehearse` predicted beside what was reached, and what a user then sends.

for users in 10 100 1000; do blind-averaging rehearse --public tiny_lite0 --users $users \
    --rows-per-user 50 --num-classes 10 --epsilon 0.1 0.4 1.2 3 --out rehearsed_$users; done
python tests/benchmarks/predicted.py --rehearsed rehearsed_10 rehearsed_100 rehearsed_1000 \
    --reached results/knowledge/cifar10_lite0.json --write results/users/predicted.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pretrain.cli.provenance import provenance


def rows(report: dict[str, Any], reached: dict[tuple[int, float], list[float]]) -> list[dict]:
    """One row for each ε: predicted interval, mean of what was reached, and bytes of a user."""
    users, found = report["configuration"]["users"], []
    for each in (p for p in report["predictions"] if p["kind"] == "private"):
        got, epsilon = reached[users, each["epsilon"]], each["epsilon"]
        bounds = {name: each["accuracy"][name] for name in ("low", "mean", "high")}
        facts = {"users": users, "epsilon": epsilon, "reached": sum(got) / len(got)}
        found.append(facts | bounds | {"bytes": report["bytes_per_user"][f"{epsilon:g}"]})
    return found


def main() -> None:
    """Writes the rows, and the picture beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearsed", type=Path, nargs="+", required=True)
    parser.add_argument("--reached", type=Path, required=True)
    parser.add_argument("--write", type=Path, required=True)
    given, reached = parser.parse_args(), dict[tuple[int, float], list[float]]()
    for cell in json.loads(given.reached.read_text())["cells"]:
        if cell["source"] == "none":
            reached.setdefault((cell["users"], cell["epsilon"]), []).append(cell["accuracy"])
    reports = [json.loads((each / "report.json").read_text()) for each in given.rehearsed]
    found = [row for report in reports for row in rows(report, reached)]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, users in enumerate(dict.fromkeys(row["users"] for row in found)):
        mine = [row for row in found if row["users"] == users]
        x, color = [row["epsilon"] * 1.06**number for row in mine], f"C{number}"
        low, mean, high = ([100 * row[name] for row in mine] for name in ("low", "mean", "high"))
        spread = [[m - b for m, b in zip(mean, low, strict=True)]]
        spread.append([t - m for m, t in zip(mean, high, strict=True)])
        left.errorbar(x, mean, spread, fmt="_", capsize=4, color=color, label=f"{users:,} users")
        left.plot(x, [100 * row["reached"] for row in mine], "o", color=color)
        right.plot(x, [row["bytes"] / 1000 for row in mine], "o-", color=color)
    left.set(ylabel="accuracy, %", title="predicted (bars: 80 %) and reached (dots)")
    right.set(ylabel="kB a user sends", title="cost", yscale="log")
    left.legend()
    for axes in (left, right):
        axes.set(xlabel="ε", xscale="log")
        axes.grid(alpha=0.3)
    figure.savefig(given.write.with_suffix(".png"), dpi=110)
    given.write.write_text(json.dumps(provenance() | {"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
