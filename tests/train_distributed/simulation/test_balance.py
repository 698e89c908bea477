"""A choice for classes of unequal frequency: balanced accuracy near the best, never a coin's."""

import numpy as np
import pytest

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.plan import MethodConfig, ranking
from train_distributed.simulation.rehearsal import Candidates, Sizes, rehearse
from train_distributed.simulation.tasks import rebalanced, task_shares


def test_as_many_rows_as_there_can_be_have_the_wanted_shares() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 400])
    shares = task_shares(3, 1, None)
    assert np.allclose(shares, [0.25, 0.5, 0.25])
    kept = rebalanced(labels, shares, np.random.default_rng(0))
    assert np.bincount(labels[kept]).tolist() == [25, 50, 25]
    told = task_shares(3, 1, (0.1, 0.1, 0.8))
    assert np.allclose(told, [0.1, 0.1, 0.8])
    assert np.allclose(task_shares(3, 2, None), 1 / 3)


@pytest.mark.parametrize("small", [1 / 3, 0.1])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_choice_is_near_the_best_on_other_classes(small: float, epsilon: float) -> None:
    """100 users x 40 rows of two of 20 classes; what is chosen on 10 of them meets the others."""
    rng = np.random.default_rng(3)
    means = rng.standard_normal((20, 24)) * np.geomspace(1.2, 0.2, 24)
    labels = np.repeat(np.arange(20), 700)
    rows = (means[labels] + rng.standard_normal((len(labels), 24))).astype(np.float32)
    halves = [
        EmbeddingSet(embeddings=rows[labels // 10 == h], labels=labels[labels // 10 == h] % 10)
        for h in (0, 1)
    ]
    grid = {f"q={q}": TransformOptions(components=q) for q in (4, 16)}
    methods = ("discriminant",)
    plain = Candidates(tuple(MethodConfig(m, m, name) for name in grid for m in methods), grid)
    told = plain.for_equal_classes()
    sizes = Sizes(users=100, rows_per_user=40, num_classes=2)

    def best(public: EmbeddingSet, candidates: Candidates, balance: tuple[float, ...]) -> dict:
        jobs = rehearse(
            public, [sizes], [Privacy(epsilon, 1e-5)], candidates, tasks=2, seeds=2, balance=balance
        )
        (choices,) = ranking(cell for _, cells in jobs for cell in cells).values()
        return {(c.setting.method, c.setting.transform): c.accuracy for c in choices}

    chosen = next(iter(best(halves[0], told, ())))
    private = best(halves[1], told, (1 - small, small))
    fixed = best(halves[1], plain, (1 - small, small))
    assert private[chosen] > max(*private.values(), *fixed.values()) - 0.02
    assert private[chosen] > 0.6
