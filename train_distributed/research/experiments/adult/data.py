"""UCI Adult as rows of norm 1: does a person earn more than 50,000 dollars a year?"""

import csv
import gzip
from pathlib import Path

import torch
from torch import Tensor

# Ranges are public knowledge, not taken from the rows; values outside them are clipped.
RANGES = {
    "age": (0, 100),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
}
TARGET = "Salary"


def read_adult(path: Path) -> tuple[Tensor, Tensor]:
    """Numeric columns scaled to [0, 1], the others one-hot, a constant, rows scaled to norm 1.

    An unknown value "?" is a category of its own. The categories, in alphabetical order, are taken
    from the file and count as public.

    Args:
        path: gzip-compressed comma-separated file with a header line.

    Returns:
        (N, d) float64 rows and (N,) int64 labels, 1 for more than 50K.

    Raises:
        ValueError: columns that are missing, or a label that is neither <=50K nor >50K.
    """
    with gzip.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file, skipinitialspace=True) if row.get(TARGET)]
    if not rows:
        raise ValueError(f"data must have a column {TARGET} and rows, got none in {path}")
    missing = [name for name in RANGES if name not in rows[0]]
    if missing:
        raise ValueError(f"data must have the column {missing[0]}, got {', '.join(rows[0])}")
    columns = [torch.ones(len(rows), 1, dtype=torch.float64)]
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in RANGES:
            columns.append(_scaled(values, *RANGES[name]))
        elif name != TARGET:
            columns.append(_one_hot(values))
    x = torch.cat(columns, dim=1)
    return x / x.norm(dim=1, keepdim=True), _labels([row[TARGET] for row in rows])


def _scaled(values: list[str], low: float, high: float) -> Tensor:
    column = torch.tensor([float(value) for value in values], dtype=torch.float64)
    return ((column - low) / (high - low)).clamp(0, 1)[:, None]


def _one_hot(values: list[str]) -> Tensor:
    numbers = {value: number for number, value in enumerate(sorted(set(values)))}
    codes = torch.tensor([numbers[value] for value in values])
    return torch.nn.functional.one_hot(codes, len(numbers)).double()


def _labels(values: list[str]) -> Tensor:
    wrong = set(values) - {"<=50K", ">50K"}
    if wrong:
        raise ValueError(f"{TARGET} must be <=50K or >50K, got {min(wrong)}")
    return torch.tensor([int(value == ">50K") for value in values])
