"""UCI Adult as rows of norm 1: does a person earn more than 50,000 dollars a year?"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pretrain import check

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
    try:
        table = pd.read_csv(path, skipinitialspace=True, dtype=str, keep_default_na=False)
    except pd.errors.EmptyDataError:
        table = pd.DataFrame()
    check.one_of(table.columns, column=TARGET)
    table = table.loc[table[TARGET].fillna("") != ""]
    check.at_least(1, number_of_rows=len(table))
    for name in RANGES:
        check.one_of(table.columns, column=name)
    columns = [np.ones((len(table), 1))]
    for name in table.columns.drop(TARGET):
        values = table[name]
        if name in RANGES:
            low, high = RANGES[name]
            scaled = (values.astype(float).to_numpy() - low) / (high - low)
            columns.append(scaled.clip(0, 1)[:, None])
        else:
            columns.append(pd.get_dummies(values, dtype=float).to_numpy())
    for label in set(table[TARGET]):
        check.one_of(("<=50K", ">50K"), **{TARGET: label})
    x = torch.from_numpy(np.ascontiguousarray(np.concatenate(columns, 1)))
    labels = torch.from_numpy((table[TARGET] == ">50K").to_numpy(np.int64))
    return x / x.norm(dim=1, keepdim=True), labels
