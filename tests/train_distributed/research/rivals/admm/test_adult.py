"""Rows of UCI Adult as the paper on ADMM prepares them."""

import gzip

import torch

from tests.benchmarks import adult

HEADER = "age, workclass, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week, Salary"


def test_adult_rows_are_scaled_one_hot_and_of_norm_one(tmp_path):
    path = tmp_path / "adult.data.gz"
    people = "50, State-gov, 750000, 16, 0, 0, 50, <=50K", "25, ?, 0, 1, 100000, 0, 100, >50K"
    path.write_bytes(gzip.compress("\n".join([HEADER, *people, "", ""]).encode()))
    x, labels = adult.read_adult(path)
    assert labels.tolist() == [0, 1]
    rows = [[1, 0.5, 0, 1, 0.5, 1, 0, 0, 0.5], [1, 0.25, 1, 0, 0, 0, 1, 0, 1]]  # "?" is first
    expected = torch.tensor(rows, dtype=torch.float64)
    assert torch.allclose(x, expected / expected.norm(dim=1, keepdim=True))


def test_the_real_file(reference_data):
    x, labels = adult.read_adult(reference_data / "data" / "adult.data.gz")
    assert x.shape == (32_561, 109)
    assert int(labels.sum()) == 7841
