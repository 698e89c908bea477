"""What an exact sum of a head costs: Paillier and secret sharing, real messages.

python -m train_distributed.research.protection.exact_cost --out results/protection/exact_sums
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from train_distributed.research.protection.exact_sums import ExactSum, Paillier, Shares
from train_distributed.research.protection.packing import Packing
from train_distributed.research.protection.paillier import DEPLOYED_BITS, arithmetic


def cost(mechanism: ExactSum, models: torch.Tensor) -> dict[str, Any]:
    """One aggregation of all clients' models (K, m), in this process, one client after the other.

    Returns:
        Bytes and CPU seconds of one client and of the busiest server, wall seconds of everything
        with key generation, and whether the mean is that of the fixed-point numbers bit for bit.
    """
    began = time.perf_counter()
    out = mechanism.exchange(models, None)
    wall = time.perf_counter() - began
    clients = len(models)
    return {
        "mechanism": mechanism.name,
        "parameter": mechanism.parameter,
        "bytes_per_client": out.bytes_per_client,
        "cpu_seconds_per_client": out.seconds_per_client,
        "cpu_seconds_of_server": out.seconds_server,
        "cpu_seconds_of_all": clients * out.seconds_per_client + out.seconds_server,
        "wall_seconds_of_all": wall,
        "exact": torch.equal(out.mean, mechanism.mean(models, None)),
    }


def main() -> None:
    """Reads the options, measures, writes report.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=7690)
    parser.add_argument("--key-bits", type=int, default=DEPLOYED_BITS)
    parser.add_argument("--out", type=Path, default=Path("results/protection/exact_sums"))
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    refuse_existing(options.out, overwrite=options.overwrite)
    generator = torch.Generator().manual_seed(0)
    shape = (options.clients, options.parameters)
    models = torch.randn(shape, generator=generator, dtype=torch.float64)
    exact = (Paillier(key_bits=options.key_bits), Shares())
    found = [cost(mechanism, models) for mechanism in exact]
    slots = Packing(exact[0].numbers(options.clients), options.key_bits).slots
    report = provenance() | {
        "clients": options.clients,
        "parameters": options.parameters,
        "paillier_arithmetic": arithmetic(),
        "parameters_per_ciphertext": slots,
        "sums": found,
    }
    with new_directory(options.out, overwrite=options.overwrite) as partial:
        (partial / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
