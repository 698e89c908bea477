"""What a release promises, in words for whoever is not of the field, and beside other tools."""

import math
from typing import Any

from train_distributed import accounting
from train_distributed.released.card.content import (
    Block,
    Items,
    Section,
    Table,
    Warned,
    Words,
    chance,
    percent,
    rounded_up,
)

TINY = 1e-12  # ζ below which the discrete sum's curve is the continuous one, to all shown digits
WEAK = 0.95  # right guesses from which a promise is called weak
PLACES = 3  # decimals of a share to which odds are rounded up


def promise_section(report: dict[str, Any]) -> Section:
    """The section of one report."""
    if not report["private"]:
        words = "Nothing is promised. The model was made without noise and may show any record."
        return Section("The promise", (Warned(words),))
    one, other = unit_words(report)
    epsilon, delta = float(report["epsilon"]), float(report["delta"])
    factor = f" = {rounded_up(math.exp(epsilon))}" if epsilon < 20 else ""
    guess = best_guess(report)
    blocks: list[Block] = [
        Words(
            f"Take {one} out of the training data and put {other} in its place. Whatever can be "
            "concluded from the model, the probability of concluding it changes by a factor of at "
            f"most e^ε{factor}, where ε = {shown_epsilon(epsilon)}, and beyond that by at most "
            f"δ = {chance(delta)}."
        ),
        Words(
            "Somebody who knows all the rest of the training data, is told of both possibilities "
            "and has the model to tell them apart, is right at most "
            f"{percent(guess)} of the time. Without the model it would be 50.0 %."
        ),
        *([Warned("So large an ε protects hardly anybody.")] if guess >= WEAK else []),
        Words(
            "This holds for every record, whatever it is and whatever else is known, and it cannot "
            "be undone by anything that is done with the model afterwards. It does not say that "
            "the model teaches nothing about people: what is common to many is what it is for."
        ),
        neighbours_table(report),
        *_clipped(report),
        *_comparison(report),
    ]
    if (asked := report.get("epsilon_asked_for")) is not None:
        blocks.append(Words(f"Asked for was ε = {shown_epsilon(float(asked))}."))
    blocks += (
        [Words("Of the rounds of the training:"), rounds] if (rounds := _rounds(report)) else []
    )
    return Section("The promise", tuple(blocks))


def _clipped(report: dict[str, Any]) -> list[Block]:
    if (norm := report.get("user_clip")) is None:
        return []
    return [
        Words(
            f"What a user submitted was scaled down to a length of {float(norm):.4g} if it was "
            "longer, before its noise: however many records it holds, and whatever they are, they "
            "move the sum by at most twice that. Users with long sums weigh less for it."
        )
    ]


def unit_words(report: dict[str, Any]) -> tuple[str, str]:
    """What is protected, and what takes its place."""
    what = str(report["neighbouring"]).partition(";")[0].removeprefix("replace ").strip()
    known = {
        "one record": ("any one record (a picture with its class)", "any other one"),
        "all records of one user": (
            "all records of any one user",
            "as many others, whatever they are,",
        ),
    }
    return known.get(what, (f"any {what}", "as many others, whatever they are,"))


def shown_epsilon(epsilon: float) -> str:
    """ε with six digits, rounded up."""
    return rounded_up(epsilon, 6)


def best_guess(report: dict[str, Any]) -> float:
    """How often the best attacker is right that tells two neighbours apart, at even odds; up.

    ½(1 + TV). Of a Gaussian mechanism TV is δ(0) of its curve; (ε, δ) alone bounds TV by
    (e^ε − 1 + 2δ)/(e^ε + 1) (Kairouz, Oh and Viswanath 2015).
    """
    epsilon, delta = float(report["epsilon"]), float(report["delta"])
    apart = math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0)))
    charge = float(report.get("log10_zeta", -math.inf))
    if report.get("privacy_curve") == "gaussian" and charge < math.log10(TINY):
        multiplier = float(report["noise_multiplier"])
        curve = accounting.delta(TINY, multiplier, int(report["compositions"]))
        apart = min(apart, curve + 4 * TINY)
    scale = 10**PLACES
    return min(1.0, math.ceil((1 + apart) / 2 * scale) / scale)


def neighbours_table(report: dict[str, Any]) -> Table:
    """ε under both relations, the promised one first."""
    what = str(report["neighbouring"]).partition(";")[0]
    taken = what.replace("replace ", "take out ", 1)
    delta = f"{float(report['delta']):g}"
    reach = report.get("sensitivity")
    rows = [
        (
            f"{what} (promised)",
            shown_epsilon(float(report["epsilon"])),
            delta,
            "" if reach is None else f"{float(reach):.4g}",
        )
    ]
    if (zero_out := report.get("zero_out_epsilon")) is not None:
        moved = f"{float(report['zero_out_sensitivity']):.4g}"
        rows.append((f"{taken}, all counts stay", rounded_up(float(zero_out)), delta, moved))
    return Table(
        "The same noise under two relations between data sets",
        ("two data sets are neighbours: to get the other one", "ε", "δ", "sensitivity"),
        tuple(rows),
    )


def _comparison(report: dict[str, Any]) -> list[Block]:
    """How to read an ε of other tools beside this one."""
    public = (
        "The number of records of every user is public here, so a record cannot be added or "
        "removed unnoticed, and no ε covers that."
    )
    if report.get("zero_out_epsilon") is not None:
        return [
            Words(
                "Other tools often state ε for adding or removing a record, which asks for less "
                f"noise than replacing one. {public} What can be compared with theirs is the "
                "second row: a record is taken out and the published counts stay as they are "
                "(“zero-out”; Ponomareva et al. 2023, How to DP-fy ML, Sec. 2.1)."
            )
        ]
    return [
        Words(
            "Other tools often state ε for adding or removing a record, which asks for less noise "
            f"than replacing one. {public} For this method no figure of that kind is proven here. "
            "To replace is to remove and to add: an (ε, δ) of theirs is worth no more than "
            "(2ε, (1 + e^ε) δ) under replacement, which is what to compare with the row above."
        )
    ]


def _rounds(report: dict[str, Any]) -> Items | None:
    names = {
        "epsilon_per_iteration": "one iteration: ε = {}",
        "epsilon_learning": "learning: ε = {}",
        "epsilon_verification": "verification: ε = {}",
        "epsilon_composed": "all rounds together: ε = {}",
        "epsilon_composed_pure": "all rounds together at δ = 0: ε = {}",
        "epsilon_of_all_sessions": "all sessions that the users agreed to: ε = {}",
    }
    lines = [
        words.format(rounded_up(float(report[name])))
        for name, words in names.items()
        if report.get(name) is not None
    ]
    return Items(tuple(lines)) if lines else None
