"""The programs of the research: the command lines that their modules and the README state."""

import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
import tyro

from tests.benchmarks.adult import Figures
from tests.benchmarks.audit_rounds import MultiRoundAudit
from tests.benchmarks.bench_protection import ExactCost, Rates
from tests.benchmarks.charter_rates import Slopes


@pytest.mark.parametrize(
    ("program", "line", "expected"),
    [
        (Figures, "--data a.gz --eta-primal 2 --overwrite", {"eta_primal": 2.0, "overwrite": True}),
        (Slopes, "--output o --seeds 2", {"output": Path("o"), "seeds": 2}),
        (MultiRoundAudit, "--epsilons 0.3 1 --replicas 5", {"epsilons": (0.3, 1.0), "replicas": 5}),
        (ExactCost, "--key-bits 4096", {"key_bits": 4096, "clients": 10, "parameters": 7690}),
        (Rates, "--images a --out o", {"images": "a", "threshold": 0.9, "clients": 20}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_options_keep_their_names(program, line, expected):
    parsed = asdict(tyro.cli(program, args=shlex.split(line)))
    assert parsed | expected == parsed


def test_rates_need_images_or_embeddings(tmp_path):
    with pytest.raises(ValueError, match="either --images or --embeddings with --public"):
        Rates(embeddings=tmp_path, out=tmp_path / "out").run()
    assert not list(tmp_path.iterdir())


def test_an_earlier_result_is_not_written_over(tmp_path):
    for program in (Slopes, ExactCost, MultiRoundAudit):
        field = "out" if program is ExactCost else "output"
        with pytest.raises(FileExistsError, match="must not exist"):
            program(**{field: tmp_path}).run()
