"""From a released model to its card."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from train_distributed.one_shot.model import Release
from train_distributed.released.card.content import (
    Card,
    Section,
    Tile,
    counted,
    percent,
    rounded_up,
)
from train_distributed.released.card.evaluated import evaluation_blocks, shown_share
from train_distributed.released.card.origin import (
    Maker,
    limits_section,
    origin_section,
    sight_section,
)
from train_distributed.released.card.pictures import curve, pictures
from train_distributed.released.card.promise import promise_section, shown_epsilon
from train_distributed.released.card.quality import (
    interval,
    quality_section,
    shown_interval,
)
from train_distributed.released.card.reproduce import reproduce_section
from train_distributed.released.card.spent import ledger_section

if TYPE_CHECKING:
    from train_distributed.ledger.state import State


def card_of(
    release: Release,
    *,
    name: str = "",
    files: Mapping[str, str] | None = None,
    command: str | None = None,
    ledger: "State | None" = None,
    evaluation: Mapping[str, Any] | None = None,
) -> Card:
    """All that is known of a release, in words.

    Args:
        release: with its report.
        name: of its directory.
        files: name -> SHA-256 of its files.
        command: that made it.
        ledger: of the records that it was learned from.
        evaluation: what a private evaluation of it reported.

    Raises:
        ValueError: a report without what every release reports, or with values of another kind.
    """
    try:
        return _card(release, name, files or {}, command, ledger, evaluation)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        words = f"{type(error).__name__}: {error}"
        raise ValueError(f"report must be what a release writes, got one where {words}") from error


def _card(
    release: Release,
    name: str,
    files: Mapping[str, str],
    command: str | None,
    ledger: "State | None",
    evaluation: Mapping[str, Any] | None,
) -> Card:
    report, transform = release.report, release.transform
    for key in ("private", "suitable_for_release"):
        if not isinstance(report[key], bool):
            raise TypeError(f"{key} is {report[key]!r}")
    maker = Maker(
        class_names=release.class_names,
        dim=len(transform.mean),
        features=transform.dim - 1,
        clip_norm=transform.clip_norm,
        constant=transform.constant,
    )
    promise = promise_section(report)
    sections = (
        origin_section(report, maker),
        Section(promise.title, (*promise.blocks, *curve(report))),
        sight_section(report),
        quality_section(
            report,
            pictures(report),
            () if evaluation is None else evaluation_blocks(evaluation),
        ),
        ledger_section(report, ledger),
        limits_section(report, release.class_names),
        reproduce_section(report, command, files),
    )
    return Card(
        title=f"Model card: {name}" if name else "Model card",
        summary=_summary(report, len(release.class_names)),
        suitable=report["suitable_for_release"],
        reasons=tuple(map(str, report.get("unsuitable_because", ()))),
        tiles=(*_tiles(report), *(() if evaluation is None else (_evaluated(evaluation),))),
        sections=sections,
    )


def _evaluated(found: Mapping[str, Any]) -> Tile:
    value, ends = shown_share(found["accuracy"])
    note = f"{ends} at {100 * float(found['confidence_level']):g} %"
    return Tile("accuracy, evaluated privately", value, note)


def _summary(report: Mapping[str, Any], classes: int) -> str:
    rows = f"{counted(int(report['rows']), 'record')} of " if "rows" in report else ""
    private = (
        f"with differential privacy, ε = {shown_epsilon(float(report['epsilon']))} and "
        f"δ = {float(report['delta']):g}"
        if report["private"]
        else "without any privacy"
    )
    kinds = counted(classes, "class", "classes")
    users = counted(int(report["users"]), "user")
    return f"An image classifier of {kinds}, learned from {rows}{users} {private}."


def _tiles(report: Mapping[str, Any]) -> tuple[Tile, ...]:
    tiles = []
    if report["private"]:
        unit = str(report["neighbouring"]).partition(";")[0]
        tiles.append(Tile("privacy loss ε", shown_epsilon(float(report["epsilon"])), unit))
        tiles.append(Tile("failure probability δ", f"{float(report['delta']):g}"))
    else:
        tiles.append(Tile("privacy", "none"))
    if report.get("zero_out_epsilon") is not None:
        value = rounded_up(float(report["zero_out_epsilon"]))
        tiles.append(Tile("ε if taken out", value, "to compare with other tools"))
    tiles.append(Tile("users", f"{int(report['users']):,}"))
    if "honest_users" in report:
        tiles.append(Tile("honest users needed", f"{int(report['honest_users']):,}"))
    if report.get("test_accuracy") is not None:
        accuracy, note = float(report["test_accuracy"]), ""
        if metrics := report.get("test_metrics"):
            rows = int(metrics["rows"])
            note = f"{shown_interval(*interval(round(accuracy * rows), rows))} at 95 %"
        tiles.append(Tile("test accuracy", percent(accuracy), note))
    return tuple(tiles)
