"""What a private evaluation found: shares with the intervals that it states itself."""

from collections.abc import Mapping
from typing import Any

from train_distributed.released.card.content import (
    Block,
    Table,
    Warned,
    Words,
    counted,
    percent,
)
from train_distributed.released.card.promise import shown_epsilon
from train_distributed.released.card.quality import shown_interval

SHARES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy: mean recall of the classes",
    "expected_calibration_error": "expected calibration error",
}


def evaluation_blocks(found: Mapping[str, Any]) -> tuple[Block, ...]:
    """A private evaluation's report in words and as a table.

    Args:
        found: what `evaluate` wrote.
    """
    head = ("metric", "value", f"{100 * float(found['confidence_level']):g} % interval")
    rows = [(words, *shown_share(found[name])) for name, words in SHARES.items() if found.get(name)]
    rows += [(f"recall of {name}", *shown_share(share)) for name, share in found["recall"].items()]
    promise = (
        f"under its own promise: ε = {shown_epsilon(float(found['epsilon']))} and "
        f"δ = {float(found['delta']):g}"
        if found["private"]
        else "without any privacy"
    )
    blocks: list[Block] = [
        Words(
            f"A private evaluation: {counted(int(found['users']), 'user')} sent, with noise, how "
            f"often the model is right on {counted(int(found['rows']), 'row')} that they held out, "
            f"{promise} ({found['neighbouring']}). {_sentence(found.get('with_the_training'))}"
        ),
        Table("Found by the private evaluation", head, tuple(rows)),
        Words(f"Intervals cover the noise and the luck of which {found['sampling']} were drawn."),
    ]
    if not found["suitable_for_release"]:
        why = "; ".join(map(str, found.get("unsuitable_because", ())))
        blocks.insert(1, Warned(f"THIS EVALUATION IS NOT SUITABLE FOR RELEASE: {why}."))
    return tuple(blocks)


def shown_share(share: Mapping[str, Any]) -> tuple[str, str]:
    """A share and its interval, in words; `estimate` is None where the rows do not say."""
    low, high = float(share["low"]), float(share["high"])
    value = share["estimate"]
    return "too few rows" if value is None else percent(float(value)), shown_interval(low, high)


def _sentence(words: Any) -> str:
    if not isinstance(words, str) or not words:
        return ""
    return f"Its rows: {words}."
