r"""Gain of our account of sampled batches over dp-accounting's, in the same cells.

python -m train_distributed.research.experiments.charter_rates.sampling \
    --output results/rivals/charter/amplification.json

Theirs is the general theorem for sampling without replacement (Wang, Balle and Kasiviswanathan
2019) at the rate of every round. It takes one rate for both neighbours, which rounds that never use
a record twice do not grant (`charter.renyi`, corners (q, 0) and (0, q)): a yardstick, no promise.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from tqdm import tqdm

from pretrain.cli.command import run_command
from pretrain.cli.output import new_file, refuse_existing
from pretrain.cli.provenance import provenance
from train_distributed import accounting
from train_distributed.research.charter.amplification import (
    ORDERS,
    composed_epsilon,
    sampled_noise_multiplier,
)
from train_distributed.research.charter.plan import CharterPlan, make_plan
from train_distributed.research.experiments.charter_rates.experiment import CLIP, SWEEPS, Slopes


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Per cell: noise without amplification, our noise, and its ε by either account."""

    output: Path = Path("results/rivals/charter/amplification.json")
    overwrite: bool = False

    def run(self) -> None:
        """Writes the table as JSON, prints it."""
        refuse_existing(self.output, overwrite=self.overwrite)
        cells = [compare(plan) for plan in tqdm(plans(), unit="cell", disable=None)]
        with new_file(self.output) as partial:
            partial.write_text(json.dumps(provenance() | {"cells": cells}, indent=1) + "\n")
        print(json.dumps(cells, indent=1))


def plans() -> list[CharterPlan]:
    """Plan of every private cell whose noise differs from the others'."""
    base, found = Slopes(), {}
    for sweep in ("rows", "epsilon", "rounds"):
        for change in SWEEPS[sweep][1]:
            at = {name: getattr(base, name) for name in ("clients", "rows", "epsilon", "rounds")}
            at |= change
            if math.isfinite(at["epsilon"]):
                task = base.task(at)
                plan = make_plan(task, rounds=at["rounds"], gradient_clip=CLIP, loss_clip=CLIP)
                found[at["rows"], at["epsilon"], at["rounds"]] = plan
    return list(found.values())


def compare(plan: CharterPlan) -> dict[str, float]:
    """Multiplier of a record used once, our multiplier, and both accounts' ε at ours."""
    task = plan.task
    multiplier = sampled_noise_multiplier(task.epsilon, task.delta, plan.rates)
    return {
        "rows": task.rows,
        "rounds": plan.rounds,
        "epsilon": task.epsilon,
        "multiplier_without_amplification": accounting.noise_multiplier(task.epsilon, task.delta),
        "multiplier": multiplier,
        "epsilon_by_our_account": composed_epsilon(multiplier, task.delta, plan.rates),
        "epsilon_by_dp_accounting": general_epsilon(plan, multiplier),
    }


def general_epsilon(plan: CharterPlan, multiplier: float) -> float:
    """ε of all rounds by dp-accounting, at the orders that our account tries."""
    accountant = RdpAccountant(list(ORDERS), NeighboringRelation.REPLACE_ONE)
    unused = plan.learning_rows
    for taken in plan.fresh:
        noise = GaussianDpEvent(multiplier)
        accountant.compose(SampledWithoutReplacementDpEvent(unused, taken, noise))
        unused -= taken
    return float(accountant.get_epsilon(plan.task.delta))


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Sampling)))
