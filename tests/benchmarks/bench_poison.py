"""Poisoners in a federation: what the worst vectors allowed, and longer ones, do to the model.

    python tests/benchmarks/bench_poison.py --embeddings cifar10_lite0 --public tiny_lite0 \
        [--options '{"user_clip": 13}'] [--write results/secure_sum/poison.json] [--real]

A share of the users sends one vector, the same each, as long as a proof of length allows: n times
a record, or the users' clip. By default this is tried without a clip, and with what
`federation init` sets. The direction is the worst of several, tried without noise of their own, and
of a descent on the model's mistakes whose attacker knows the sum of all other users. Noise is
discrete and fresh. Of two sums the first one is poisoned by the vector against the mean of all rows
(accuracies without poisoners are of that centre, too), the second one as above.

With `--real` one window is run instead, with the last options and share: two aggregators in
processes of their own, proofs of all users, and as many liars besides whose vectors are ten times
too long. Then `secagg`, with a hundredth of its users ten times too long: nobody notices. Exit code
1 if a vector that is too long was not refused, or the opened sum is not that of the others.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tyro
from aggregators import FOLDERS, commands, make_window
from poison import Poisoned

from embed import EmbeddingSet
from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from tests.train_distributed.secure_sum.simulate import simulate_sum
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.privacy.promise import SERVERS, Privacy
from train_distributed.proofs.pine import Pine
from train_distributed.secure_sum import reports
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import LEADER, Window

TIMES = 10  # as long as allowed


def directions(poisoned: Poisoned, poisoners: int, tries: int) -> dict[str, Any]:
    """Accuracies with poisoners in every direction, the worst known one, and that of a descent."""
    others = poisoned.honest(poisoners)

    def mean(vector: np.ndarray, times: int) -> float:
        total = others + poisoners * vector
        return float(
            np.mean([poisoned.accuracy(poisoned.noised(total, SERVERS)) for _ in range(times)])
        )

    found = {what: (mean(poisoned.vector(way), 1), way) for what, way in poisoned.directions()}
    worst = min(found, key=lambda what: found[what][0])
    descended = poisoned.descended(found[worst][1], poisoners)
    return {
        "poisoners": poisoners,
        "without them": round(mean(0 * poisoned.sent[0], tries), 2),
        "worst known direction": worst,
        "accuracy with it": round(mean(poisoned.vector(found[worst][1]), tries), 2),
        "accuracy with a descent on the model": round(mean(poisoned.vector(descended), tries), 2),
        "all known directions, one try": {what: round(a, 2) for what, (a, _) in found.items()},
    }


def too_long(
    window: Window, user: int, keys: PrivateKeys, long: np.ndarray, norm_bound: int
) -> bytes:
    """Report of a vector that is too long; liars of even numbers prove bits of a shorter one's."""
    if user % 2:  # proves a bound that is not its own
        larger = Pine.for_bound(dimension=window.dimension, norm_bound=(TIMES + 1) * norm_bound)
        with patch.object(reports, "proof_of", lambda dimension, bound: larger):
            return make_report(window, user, keys, long, norm_bound)
    norm, tests = Pine._norm_bits, Pine._test_bits
    with (
        patch.object(Pine, "_norm_bits", lambda self, v: norm(self, v // (TIMES + 1))),
        patch.object(Pine, "_test_bits", lambda self, results: tests(self, 0 * results)),
    ):
        return make_report(window, user, keys, long, norm_bound)


def real_window(
    poisoned: Poisoned, vector: np.ndarray, poisoners: int, liars: int
) -> dict[str, Any]:
    """All users' reports, proven, and those of liars besides, through two aggregators."""
    encoder, users = poisoned.encoder, len(poisoned.sent)
    norm_bound = round(poisoned.bound / float(encoder.step))
    keys = [PrivateKeys.generate() for _ in range(users + liars)]
    refused: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        std, place = float(encoder.stds_in_steps), Path(folder)
        file = make_window(place, keys, len(vector), norm_bound, std)
        processes, operator = commands(place), read_private(place / FOLDERS[LEADER])
        for process in processes:
            process.start()
        with Aggregators(file.window, file.addresses, trust(place / AGREED), 600.0) as aggregators:
            for user, own in enumerate(keys):
                if user < users:
                    sent = vector if user < poisoners else poisoned.sent[user]
                    report = make_report(file.window, user, own, sent, norm_bound)
                else:
                    report = too_long(file.window, user, own, TIMES * vector, norm_bound)
                try:
                    aggregators.report(user, report)
                except ValueError as error:  # before any proof is looked at
                    refused[user] = str(error)
            while aggregators.decided(operator) < len(keys) - len(refused):
                time.sleep(1)
            words = aggregators.status(operator)[LEADER].split("; ")[1:]
            refused |= {int(user): why for user, _, why in (line.partition(": ") for line in words)}
            opened = aggregators.open(operator)
        for process in processes:
            process.kill()
    total = opened.total.view(np.int64)
    noise = total - poisoned.honest(poisoners) - poisoners * vector
    expected = SERVERS**0.5 * std
    return {
        "users": users,
        "of allowed length, poisoned": poisoners,
        "too long": liars,
        "refused by name": len(refused),
        "why": dict(Counter(why.rpartition(": ")[2] for why in refused.values())),
        "right": bool(
            refused.keys() == set(range(users, users + liars))
            and opened.users == frozenset(range(users))
            and abs(noise.std() / expected - 1) < 0.05
        ),
        "accuracy": round(poisoned.accuracy(total), 2),
    }


def without_proofs(
    sets: Any, privacy: Privacy, users: int, options: dict[str, Any]
) -> dict[str, Any]:
    """`secagg`: its users add the noise, and nobody looks at what they send."""
    by_users = replace(privacy, noise_by="users")
    poisoned = Poisoned.of(sets, by_users, users=users, seed=0, options=options)
    poisoners = users // 100
    _, way = next(poisoned.directions())
    found: dict[str, Any] = {"users": users, "too long": poisoners}
    for what, times in (("accuracy without them", 0), ("accuracy with them", TIMES)):
        long = poisoned.vector(way, times)
        vectors = [long if user < poisoners else own for user, own in enumerate(poisoned.sent)]
        noised = np.stack([poisoned.noised(each, 1) for each in vectors]).view(np.uint64)
        total = simulate_sum(noised).total if times else noised.sum(0)
        found[what] = round(poisoned.accuracy(total.view(np.int64)), 2)
        found["in the sum"] = users
    return found


def tried(made: dict[int, Poisoned], tries: int) -> dict[str, Any]:
    """Accuracies in all directions, by the number of poisoners."""
    first = next(iter(made.values()))
    return {
        "options": first.options,
        "numbers": len(first.sent[0]),
        "bound": round(first.bound, 3),
        "longest honest vector over the bound": round(first.longest, 3),
        "shares": [directions(poisoned, count, tries) for count, poisoned in made.items()],
    }


def played(sets: Any, privacy: Privacy, poisoned: Poisoned, poisoners: int) -> dict[str, Any]:
    """A window with poisoners and liars, and a sum by `secagg` with liars."""
    others = poisoned.honest(poisoners)
    vectors = [poisoned.vector(way) for _, way in poisoned.directions()]
    sums = [poisoned.noised(others + poisoners * vector, SERVERS) for vector in vectors]
    worst = vectors[int(np.argmin([poisoned.accuracy(total) for total in sums]))]
    window = real_window(poisoned, worst, poisoners, poisoners)
    found = {"options": poisoned.options, "window": window}
    print(json.dumps(found, indent=1), flush=True)
    found["secagg"] = without_proofs(sets, privacy, len(poisoned.sent), {})
    print(json.dumps(found["secagg"], indent=1))
    return found


def main(
    embeddings: Path,
    public: Path,
    epsilon: float = 1.2,
    users: int = 1000,
    shares: tuple[float, ...] = (0.01, 0.1),
    options: tuple[str, ...] = ("{}", "null"),
    tries: int = 3,
    real: bool = False,
    write: Path | None = None,
) -> int:
    """Prints accuracies by options, as JSON (null: those of `init`), means of so many draws."""
    sets = EmbeddingSet.open(embeddings), EmbeddingSet.open(public)
    privacy = Privacy(epsilon, 1e-5, noise_by="servers")
    found: dict[str, Any] = {"machine": provenance(), "epsilon": epsilon, "users": users}

    def made(words: str, count: int) -> Poisoned:
        given = json.loads(words)
        return Poisoned.of(sets, privacy, users=users, seed=0, options=given, poisoners=count)

    counts = [round(share * users) for share in shares]
    if real:
        found |= played(sets, privacy, made(options[-1], counts[-1]), counts[-1])
    else:
        found["directions"] = []
        for words in options:
            found["directions"] += [tried({count: made(words, count) for count in counts}, tries)]
            print(json.dumps(found["directions"][-1], indent=1), flush=True)
    save(write, found)
    return 0 if not real or found["window"]["right"] else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
