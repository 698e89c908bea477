"""The experiments by name: which cells they consist of."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from embed import EmbeddingSet
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.conditions import Conditions, ExperimentName
from train_distributed.research.experiments.convergence import convergence_work
from train_distributed.research.experiments.cost import cost_work
from train_distributed.research.experiments.known_before import known_work
from train_distributed.research.experiments.lineups import (
    our_settings,
    our_transforms,
    paper_settings,
    rival_settings,
)
from train_distributed.research.experiments.rivals import rival_work
from train_distributed.research.experiments.rounds import rounds_work
from train_distributed.research.experiments.selected import against_choice, user_level
from train_distributed.research.experiments.trusted import trusted_work
from train_distributed.research.experiments.work import Sets, Work
from train_distributed.simulation.scenario import Scenario

MORE_DATA = 67  # Table 2 of the paper
CENTRAL_DELTA = 2e-8  # Fig. 8 of the paper, next to 1e-5


def _compare(
    conditions: Conditions,
    private: EmbeddingSet,
    public: EmbeddingSet,
    scenarios: Sequence[Scenario],
    promises: Sequence[Privacy] | None = None,
) -> Work:
    """The paper's methods and ours, in these scenarios."""
    settings = {
        "ours": our_settings(public.dim),
        "paper": paper_settings(),
        "dp-fl": rival_settings(public.dim),
    }
    stages = Sets(private, public).stages(
        [setting for name in conditions.lineup for setting in settings[name]],
        our_transforms(public.dim),
        scenarios=scenarios,
        promises=conditions.promises if promises is None else promises,
        seeds=conditions.all_seeds,
        folds=conditions.folds,
    )
    return Work.joined(stage.work for stage in stages)


def accuracy(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Accuracy against ε for several w: all data spread, and so many rows per user (Fig. 2, 6)."""
    train = int((private.split == 0).sum())
    scenarios = [
        Scenario(users=users, scheme=scheme, rows_per_user=rows)
        for scheme in conditions.schemes
        for rows in dict.fromkeys((None, conditions.rows_per_user))
        for users in conditions.users
        if rows is None or users * rows < train
    ]
    return _compare(conditions, private, public, scenarios)


def users(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Accuracy against w with equal local sizes (Fig. 5)."""
    rows = conditions.rows_per_user or int((private.split == 0).sum()) // conditions.most
    scenarios = [
        Scenario(users=users, scheme=scheme, rows_per_user=rows)
        for scheme in conditions.schemes
        for users in conditions.users
    ]
    compared = _compare(conditions, private, public, scenarios)
    return Work.joined([compared, *known_work(conditions, private, public, scenarios)])


def groups(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Accuracy of w users at many ε, from which a heat map is extrapolated (Fig. 7)."""
    return _compare(conditions, private, public, [Scenario(users=conditions.most)])


def central(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """One user with all rows, t = 1, at two δ (Fig. 8)."""
    promises = [
        replace(promise, delta=delta, honest_fraction=None)
        for delta in (conditions.delta, CENTRAL_DELTA)
        for promise in conditions.promises
    ]
    return _compare(conditions, private, public, [Scenario(users=1)], promises)


def non_iid(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """From IID to one class per user, with more data too, and by writer where users are named."""
    users = conditions.most
    each = int((private.split == 0).sum()) // users
    more = (MORE_DATA * users, each)
    scenarios = [
        Scenario(users=users),
        Scenario(users=users, scheme="dirichlet", concentration=1.0),
        Scenario(users=users, scheme="dirichlet", concentration=0.1),
        Scenario(users=users, scheme="one-class"),
        Scenario(users=users, scheme="one-class", stands_for=more),
    ]
    if private.users is not None:
        scenarios.append(Scenario(users=None, scheme="by-writer"))
    return _compare(conditions, private, public, scenarios)


def unequal(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Equal and unequal n_i; by writer, and its sizes on IID rows, where users are named."""
    users = conditions.most
    scenarios = [Scenario(users=users)]
    scenarios += [Scenario(users=users, size_concentration=alpha) for alpha in (1.0, 0.2)]
    if private.users is not None:
        scenarios.append(Scenario(users=None, scheme="by-writer"))
    return _compare(conditions, private, public, scenarios)


def frontier(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """The paper's two at their best per cell, all candidates, and what `select` chooses."""
    return against_choice(conditions, private, public, paper_settings())


def selection(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """The best of all candidates on the private test rows, and what `select` chooses."""
    return against_choice(conditions, private, public, ())


EXPERIMENTS: dict[ExperimentName, Callable[..., Work]] = {
    "frontier": frontier,
    "selection": selection,
    "accuracy": accuracy,
    "users": users,
    "groups": groups,
    "central": central,
    "trusted": trusted_work,
    "non-iid": non_iid,
    "user-level": user_level,
    "unequal": unequal,
    "cost": cost_work,
    "rivals": rival_work,
    "rounds": rounds_work,
    "convergence": convergence_work,
}
