"""Cost of an exact sum of a head: Paillier and secret sharing, real messages.

python -m train_distributed.research.protection.exact_cost --out results/protection/exact_sums
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from train_distributed.research.protection.exact_sums import ExactSum, Paillier, Shares, fixed_point
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing, arithmetic


def cost(mechanism: ExactSum, models: torch.Tensor) -> dict[str, Any]:
    """One aggregation of all clients' models (K, m), in this process, one client after the other.

    Returns:
        Bytes and CPU seconds of one client and of the busiest server, wall seconds of everything
        with key generation, and whether the mean is that of the fixed-point numbers bit for bit.
    """
    began = time.perf_counter()
    out = mechanism.exchange(models, None)
    wall = time.perf_counter() - began
    return {
        "mechanism": mechanism.name,
        "parameter": mechanism.parameter,
        "bytes_per_client": out.bytes_per_client,
        "cpu_seconds_per_client": out.seconds_per_client,
        "cpu_seconds_of_server": out.seconds_server,
        "cpu_seconds_of_all": len(models) * out.seconds_per_client + out.seconds_server,
        "wall_seconds_of_all": wall,
        "exact": torch.equal(out.mean, mechanism.mean(models, None)),
    }


@dataclass(frozen=True, kw_only=True)
class ExactCost:
    """One aggregation by Paillier encryption and one by secret sharing."""

    clients: int = 10
    parameters: int = 7690
    key_bits: int = DEPLOYED_BITS
    out: Path = Path("results/protection/exact_sums")
    overwrite: bool = False

    def run(self) -> None:
        """Measures, prints, writes report.json."""
        refuse_existing(self.out, overwrite=self.overwrite)
        generator = torch.Generator().manual_seed(0)
        shape = (self.clients, self.parameters)
        models = torch.randn(shape, generator=generator, dtype=torch.float64)
        exact = (Paillier(self.key_bits), Shares())
        found = [cost(mechanism, models) for mechanism in exact]
        slots = Packing(fixed_point(self.clients), self.key_bits).slots
        report = provenance() | {
            "clients": self.clients,
            "parameters": self.parameters,
            "paillier_arithmetic": arithmetic(),
            "parameters_per_ciphertext": slots,
            "sums": found,
        }
        with new_directory(self.out, overwrite=self.overwrite) as partial:
            write_json(partial / "report.json", report)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(ExactCost)))
