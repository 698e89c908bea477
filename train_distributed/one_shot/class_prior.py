"""Prior probabilities of the classes: equal, as in the private rows, or as given."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pretrain.cli.json_text import parsed

Word = Literal["equal", "private"]
ClassPrior = Word | tuple[float, ...]  # or the share of every class, in the order of its number
TOLERANCE = 1e-6  # guard: by which shares may miss one together
LARGEST_WEIGHT = 1e100  # guard: anybody may have made a file; squares of scores are finite


def checked_prior(prior: object, num_classes: int, *, findings: bool = False) -> ClassPrior:
    """The prior, checked; raises ValueError for another word, or shares that are not a prior.

    Of `findings` the shares are prevalences: each lies in (0, 1), and they need not add up to one.
    """
    if isinstance(prior, str) and prior in get_args(Word):
        return "private" if prior == "private" else "equal"
    if not isinstance(prior, Sequence) or isinstance(prior, str):
        words = ", ".join(map(repr, get_args(Word)))
        raise ValueError(f"prior must be one of {words} or a share of every class, got {prior!r}")
    if len(prior) != num_classes:
        raise ValueError(f"prior must hold {num_classes} shares, got {len(prior)}")
    for share in prior:
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not (number and 0 < share < math.inf):
            raise ValueError(f"prior must hold finite shares > 0, got {share!r}")
        if findings and share >= 1:
            raise ValueError(f"prior must hold prevalences < 1 of findings, got {share!r}")
    if not findings and abs(math.fsum(prior) - 1) > TOLERANCE:
        raise ValueError(f"prior must hold shares of sum 1, got {math.fsum(prior):.9g}")
    return tuple(map(float, prior))


def shares_of(prior: ClassPrior, counted: Tensor) -> Tensor:
    """(K,) float64 class shares of sum 1 of a prior; "private" stands for the (K,) counted ones."""
    if prior == "private":
        return counted
    if prior == "equal":
        return torch.full_like(counted, 1 / len(counted))
    shares = torch.tensor(prior, dtype=torch.float64)
    return shares / shares.sum()


def log_odds_of(prior: ClassPrior, counted: Tensor) -> Tensor:
    """(K,) log odds of findings: 0 of "equal", those of the (K,) counted rates of "private"."""
    if prior == "equal":
        return torch.zeros_like(counted)
    rates = counted if prior == "private" else torch.tensor(prior, dtype=torch.float64)
    return torch.logit(rates)


def tempered(shares: Tensor, temperature: float) -> Tensor:
    """(K,) class shares to the power T, renormalised: s/T + log π are (s + log π^T)/T.

    Without it under-confident scores would be outweighed by an unequal prior: of two faint classes
    in 3:1 every row would go to the larger.
    """
    return torch.softmax(temperature * shares.log(), 0)


def prior_shift(new: ClassPrior, old: ClassPrior, counted: Tensor, temperature: float) -> Tensor:
    """(K,) log π_k − log π'_k, which turns scores for one prior π' into those for another π.

    Both are `tempered` as the scores are.

    Args:
        new: π.
        old: π'.
        counted: (K,) shares of the private rows.
        temperature: T of the scores, before and after.
    """
    after, before = (tempered(shares_of(each, counted), temperature) for each in (new, old))
    return after.log() - before.log()


def with_shift(weights: Tensor, shift: Tensor, constant: float) -> Tensor:
    """(d, K) weights with (K,) `shift` added to all scores; rows begin with this constant."""
    return torch.cat([(weights[0] + shift / constant)[None], weights[1:]])


def word_of(prior: ClassPrior | None) -> str | None:
    """Word of a prior, for a report; None where it is unknown."""
    return prior if prior is None or isinstance(prior, str) else "given"


def reported_prior(
    prior: ClassPrior,
    counted: Tensor | None,
    class_names: Sequence[str],
    *,
    findings: bool = False,
) -> dict[str, Any]:
    """Word of a prior, and its shares as far as (K,) shares of the users' rows are known."""
    report: dict[str, Any] = {"prior": word_of(prior)}
    if counted is None:
        return report
    found = log_odds_of(prior, counted).sigmoid() if findings else shares_of(prior, counted)
    shares = found.tolist()
    return report | {"class_prior": dict(zip(class_names, shares, strict=True))}


def with_shares(
    options: Mapping[str, Any], class_names: Sequence[str], *, findings: bool = False
) -> dict[str, Any]:
    """Options with a prior's file, or mapping by class name, replaced by shares of the classes."""
    prior = options.get("prior")
    if isinstance(prior, Path):
        return {**options, "prior": read_shares(prior, class_names, findings=findings)}
    if isinstance(prior, Mapping):
        return {**options, "prior": _shares_by_name(list(prior.items()), class_names, findings)}
    return dict(options)


def read_shares(
    path: Path, class_names: Sequence[str], *, findings: bool = False
) -> tuple[float, ...]:
    """The shares that a JSON file gives every class, in the order of the classes.

    The file holds an object of class name, or number, and share. Raises ValueError naming it:
    no such object, a class missing, unknown or twice, shares that are no prior.
    """
    try:
        pairs = parsed(path.read_text("utf-8"), object_pairs_hook=list)
        if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
            raise ValueError("a JSON object of class and share is wanted")
        return _shares_by_name(pairs, class_names, findings)
    except (OSError, ValueError) as error:
        raise ValueError(f"prior must be equal, private or a file, got {path}: {error}") from error


def _shares_by_name(
    pairs: Sequence[tuple[str, Any]], class_names: Sequence[str], findings: bool
) -> tuple[float, ...]:
    named = [name for name, _ in pairs]
    if twice := [name for name in named if named.count(name) > 1]:
        raise ValueError(f"prior must have every class once, got {twice[0]!r} twice")
    found = dict(pairs)
    numbers = [str(number) for number in range(len(class_names))]
    keys = numbers if set(found) == set(numbers) else list(class_names)
    for key in (*(key for key in keys if key not in found), *(set(found) - set(keys))):
        raise ValueError(f"prior must have the classes {', '.join(keys)[:200]}, not so {key!r}")
    shares = [found[key] for key in keys]
    checked_prior(shares, len(keys), findings=findings)
    return tuple(map(float, shares))


def class_names(declared: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """The declared names of the classes, or their numbers as words."""
    return tuple(declared) or tuple(map(str, range(num_classes)))
