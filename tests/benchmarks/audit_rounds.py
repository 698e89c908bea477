"""Audit of a whole run of many rounds: the privacy loss against the promise.

python tests/benchmarks/audit_rounds.py --output results/audit/rounds
"""

import math
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
import tyro

from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from tests.train_distributed.research.audit import rounds as exact
from tests.train_distributed.research.audit.rounds import epsilon_below
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.admm.calibration import largest_alpha
from train_distributed.research.rivals.admm.learner import TOLERANCE, VARIANTS, settings
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan
from train_distributed.research.rivals.options import AdmmOptions

AUDITED = ("admm-dual", "admm-primal", "charter")
WEAK = 1 / 8  # of the noise: what an audit must notice


def audit(
    method: str, promise: Privacy, replicas: int, *, rounds: int = 4, noise_scale: float = 1.0
) -> float:
    """A statistical lower bound of ε at δ of all rounds, which must stay below the promise.

    Runs one user on a worst-case pair and tests the two data sets by their exact likelihoods. ADMM:
    ten records, one of them replaced by an almost opposite one; all messages of the node. Charter:
    the learning stage of one client, a record with gradient +G0 or -G0, the others 0; the secure
    sum shows less, so "charter-sum" is bounded by the same messages with the same noise.

    Args:
        method: one of `AUDITED`.
        promise: finite.
        replicas: runs under either data set.
        rounds: iterations, or cut rounds.
        noise_scale: below 1 adds less noise than the accounting believes: it must be caught.
    """
    epsilon, delta = promise.epsilon, promise.delta
    if method in VARIANTS:
        alpha = largest_alpha(epsilon, delta, rounds, TOLERANCE)
        constants = settings(AdmmOptions(iterations=rounds), VARIANTS[method], alpha)
        pair = exact.worst_pair(10, math.pi - 0.1)
        losses = partial(exact.trajectory_losses, pair, constants, 2)
    else:
        size = {"clients": 1, "rows": 6 * rounds, "dimension": 1, "diameter": 1.0}
        task = CharterTask(epsilon=epsilon, delta=delta, **size)
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        losses = partial(exact.learning_losses, plan)
    given = {"replicas": replicas, "noise_scale": noise_scale}
    given["generator"] = torch.Generator().manual_seed(0)
    first, second = (losses(truth=truth, **given) for truth in (0, 1))
    return epsilon_below(first, second, delta)


@dataclass(frozen=True, kw_only=True)
class MultiRoundAudit:
    """Audit every method with its noise and with an eighth of it."""

    output: Path = Path("results/audit/rounds")
    epsilons: tuple[float, ...] = (0.3, 1.0, 3.0)
    delta: float = 1e-5
    replicas: int = 20_000
    overwrite: bool = False

    def run(self) -> None:
        """Prints every bound, writes audit.json."""
        refuse_existing(self.output, overwrite=self.overwrite)
        found = []
        for method, epsilon, scale in product(AUDITED, self.epsilons, (1.0, WEAK)):
            least = audit(method, Privacy(epsilon, self.delta), self.replicas, noise_scale=scale)
            row = {"method": method, "promised": epsilon, "found": least, "delta": self.delta}
            found.append(row | {"noise_scale": scale})
            print(f"{method:12} eps {epsilon:g}, noise x {scale:g}: at least {least:.3f}")
        with new_directory(self.output, overwrite=self.overwrite) as partial:
            report = provenance() | {"replicas": self.replicas, "audits": found}
            write_json(partial / "audit.json", report)


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(MultiRoundAudit)))
