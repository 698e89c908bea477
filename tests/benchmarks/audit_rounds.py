"""Audit of a whole run of many rounds: the privacy loss against the promise.

python tests/benchmarks/audit_rounds.py --output results/audit/rounds
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
import tyro

from pretrain import check
from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from tests.train_distributed.research.audit.rounds import admm as admm_audit
from tests.train_distributed.research.audit.rounds import charter as charter_audit
from tests.train_distributed.research.audit.rounds.lower_bound import epsilon_below
from train_distributed.one_shot.registry import MANY_ROUNDS
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals.admm import calibration as admm_privacy
from train_distributed.research.rivals.admm.learner import TOLERANCE, VARIANTS, settings
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan
from train_distributed.research.rivals.common import require_records
from train_distributed.research.rivals.options import AdmmOptions

AUDITED = ("admm-dual", "admm-primal", "charter")
WEAK = 1 / 8  # of the noise: what an audit must notice


@dataclass(frozen=True)
class MessageBound:
    """A statistical lower bound of ε, which must stay below the promise."""

    method: str
    promised: float  # ε of all rounds at δ
    found: float  # ε is at least this
    delta: float


def audit(
    method: str,
    privacy: Privacy,
    *,
    replicas: int,
    generator: torch.Generator,
    rounds: int = 4,
    noise_scale: float = 1.0,
) -> MessageBound:
    """Runs one user on a worst-case pair and tests the two data sets by their exact likelihoods.

    ADMM: ten records, one of them replaced by an almost opposite one; all messages of the node.
    Charter: the learning stage of one client, a record with gradient +G0 or -G0, the others 0; the
    secure sum shows less, so "charter-sum" is bounded by the same messages with the same noise.

    Args:
        method: one of `registry.MANY_ROUNDS`.
        privacy: the promise.
        replicas: runs under either data set.
        generator: of all of them.
        rounds: iterations, or cut rounds.
        noise_scale: below 1 adds less noise than the accounting believes: it must be caught.

    Raises:
        ValueError: an unknown method, no privacy to audit, rounds or replicas < 1.
    """
    check.one_of(MANY_ROUNDS, method=method)
    privacy.validate()
    require_records(method, privacy)
    if not privacy.private:
        raise ValueError("epsilon must be finite to be audited, got inf")
    check.at_least(1, rounds=rounds, replicas=replicas)
    if method in VARIANTS:
        alpha = admm_privacy.largest_alpha(privacy.epsilon, privacy.delta, rounds, TOLERANCE)
        constants = settings(AdmmOptions(iterations=rounds), VARIANTS[method], alpha)
        pair = admm_audit.worst_pair(10, math.pi - 0.1)
        losses = partial(admm_audit.trajectory_losses, pair, constants, 2)
    else:
        task = CharterTask(
            clients=1,
            rows=6 * rounds,
            dimension=1,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            diameter=1.0,
        )
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        losses = partial(charter_audit.learning_losses, plan)
    first, second = (
        losses(truth=truth, replicas=replicas, generator=generator, noise_scale=noise_scale)
        for truth in (0, 1)
    )
    found = epsilon_below(first, second, privacy.delta)
    return MessageBound(method, privacy.epsilon, found, privacy.delta)


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
            done = audit(
                method,
                Privacy(epsilon, self.delta),
                replicas=self.replicas,
                generator=torch.Generator().manual_seed(0),
                noise_scale=scale,
            )
            found.append(asdict(done) | {"noise_scale": scale})
            print(f"{method:12} eps {epsilon:g}, noise x {scale:g}: at least {done.found:.3f}")
        with new_directory(self.output, overwrite=self.overwrite) as partial:
            report = provenance() | {"replicas": self.replicas, "audits": found}
            (partial / "audit.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(MultiRoundAudit)))
