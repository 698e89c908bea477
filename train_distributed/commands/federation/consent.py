"""A user's consent: the terms are shown, compared with its own limits, and accepted."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from train_distributed.flower.documents.invitation import Invitation
from train_distributed.flower.documents.ledger import Account
from train_distributed.flower.documents.sessions import accepted
from train_distributed.secure_sum.keys import FIRST_SERVER

if TYPE_CHECKING:
    from train_distributed.flower.evaluation_task import EvaluationTask
    from train_distributed.flower.model_task import ModelTask

MOST_CLASSES = 20  # that are shown


def consent(
    task: "ModelTask | EvaluationTask",
    invitation: Invitation,
    user: int,
    account: Account,
    accept: str,
    at: str,
) -> None:
    """Shows what a user takes part in, and returns if it is within its limits and accepted.

    Accepted are the federation whose digest was given, and the one that this folder took part in
    before: its digest covers all that was agreed on. Otherwise the user is asked.

    Args:
        task: what was agreed on.
        invitation: as the operator handed it out, whose digest begins with `accept`.
        user: who is asked.
        account: what was given away, and the limits.
        accept: how the federation's digest begins; empty: not said.
        at: where the vector is sent, and through which proxy.

    Raises:
        ValueError: above a limit, or not accepted. Nothing was sent or counted.
    """
    federation, limits = invitation.federation, account.limits
    limits.validate()
    if federation.certain < limits.least_users:
        raise ValueError(
            f"least_users must be <= {federation.certain}, the fewest users of whom federation "
            f"{federation.digest.hex()} opens a sum, got {limits.least_users}"
        )
    if (alone := task.epsilon_if_all_others_collude) > limits.most_epsilon_alone:
        raise ValueError(
            f"most_epsilon_alone must be >= {alone:g}, got {limits.most_epsilon_alone:g}"
        )
    account.check()
    for line in terms(task, invitation, user, account, at):
        print(line)
    if accept or accepted(account.folder, federation, user):
        return
    digest = federation.digest.hex()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ValueError(
            "accept must be given where nobody can be asked, got none: --accept and the digest "
            "that the operator told you by another way"
        )
    print(
        f"Is this the digest that you were told, and do you take part by {at}? yes or no: ",
        end="",
        flush=True,
    )
    if (answer := sys.stdin.readline().strip()) != "yes":
        raise ValueError(f"answer must be yes to take part in federation {digest}, got {answer!r}")


def terms(
    task: "ModelTask | EvaluationTask",
    invitation: Invitation,
    user: int,
    account: Account,
    at: str,
) -> Iterator[str]:
    """Lines that say what a user gives away to whom; every ε and δ is rounded up."""
    from train_distributed.flower.documents.terms import file_hash
    from train_distributed.flower.model_task import ModelTask
    from train_distributed.flower.sum_task import SUMS
    from train_distributed.one_shot.report import class_names
    from train_distributed.released.card.numbers import rounded_up

    federation, guarantee = invitation.federation, task.guarantee
    privacy, limits, (before, after) = guarantee.privacy, account.limits, account.totals()
    names = class_names(task.terms.class_names, task.terms.num_classes)
    shown = [*names[:MOST_CLASSES], *(["..."] if len(names) > MOST_CLASSES else [])]
    more = federation.second_dimension
    size = 8 * (federation.dimension + more)
    second = f", then one of {more}" if more else ""
    delta = f"delta {rounded_up(privacy.delta)}"
    known = task.transform.known if isinstance(task, ModelTask) else None
    if privacy.noise_by == "servers":
        honest, noise = "one of the two servers must be honest; users need not be", "without noise"
    else:
        needed = guarantee.users - guarantee.min_survivors + guarantee.honest
        honest = f"at least {needed} of {guarantee.users} users must be honest"
        noise = "your noise inside"
    others = [federation.display_name(p) for p in sorted(federation.verifying) if p >= FIRST_SERVER]
    yield f"{federation.display_name(user)} of federation {federation.digest.hex()}"
    yield f"  {task.kind} by method {task.terms.method}; {len(names)} classes: {', '.join(shown)}"
    if task.encoding is not None:
        yield f"  rows: by {task.encoding}"
    if known is not None:
        yield f"  known of the classes before, from public sources: {'; '.join(known.words)}"
    yield (
        f"  sent: one vector of {federation.dimension} numbers{second}, {noise}: "
        f"{size} bytes before encryption, in each of {federation.sessions} session(s)"
    )
    yield (
        f"  epsilon {rounded_up(privacy.epsilon)} at {delta} of one session, "
        f"{rounded_up(task.epsilon_of_all_sessions)} of all agreed ones: "
        f"{privacy.report()['neighbouring']}"
    )
    yield f"  {honest}"
    yield f"  {task.if_all_others_collude}"
    yield (
        f"  with all that you gave away before (epsilon {rounded_up(before.epsilon())}): epsilon "
        f"{rounded_up(after.epsilon())} at delta {rounded_up(after.least_delta)}; your limits: "
        f"{limits.most_epsilon:g} at {limits.most_delta:g}"
    )
    yield f"  sums of {federation.certain} users and more; {SUMS[federation.protocol]}"
    yield f"  servers: {', '.join(others)}"
    yield f"  sent to {at}"
    yield f"  secret from {task.holds_against}"
    yield f"  {invitation.agreed.name}: SHA-256 {file_hash(invitation.agreed)}"
