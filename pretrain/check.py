"""Refusals of arguments: one line per rule, naming the argument, the rule and the value.

Every function takes the values to check by their names and raises ValueError for the first that
breaks the rule. Options that may be left out go through `drop_none`, which drops those that were:
`check.within("[0, 1]", **check.drop_none(share=self.share))`.
"""

import importlib
import math
import operator
import re
from collections.abc import Collection, Iterable
from typing import Any

_INTERVAL = re.compile(r"([\[(])([^,]+), ([^,]+)([\])])")


def drop_none(**values: Any) -> dict[str, Any]:
    """Values that were given: all but None."""
    return {name: value for name, value in values.items() if value is not None}


def number(**values: Any) -> None:
    """A number of Python's own, which a report can state; numpy's float64 is one."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a Python number such as 1.0, got {value!r:.100}")


def positive(**values: float) -> None:
    """Finite and > 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be finite and > 0, got {value}")


def at_least(least: float, **values: float) -> None:
    """>= `least`; NaN is refused."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


def at_most(most: float, **values: float) -> None:
    """<= `most`; NaN is refused."""
    for name, value in values.items():
        if not value <= most:
            raise ValueError(f"{name} must be <= {most}, got {value}")


def within(interval: str, **values: float) -> None:
    """Inside an interval in the notation of mathematics: "(0, 1]", "[1, inf)", f"[1, {users}]".

    A bound may be a power of two: "[0, 2^32)". NaN is refused.
    """
    parts = _INTERVAL.fullmatch(interval)
    if parts is None:
        raise TypeError(f"interval must be like '(0, 1]', got {interval!r}")
    opening, low, high, closing = parts.groups()
    above = operator.gt if opening == "(" else operator.ge
    below = operator.lt if closing == ")" else operator.le
    for name, value in values.items():
        if not (above(value, _bound(low)) and below(value, _bound(high))):
            raise ValueError(f"{name} must be in {interval}, got {value}")


def one_of(choices: Collection[Any], **values: Any) -> None:
    """Equal to one of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def equal(expected: Any, **values: Any) -> None:
    """Equal to the expected value."""
    for name, value in values.items():
        if value != expected:
            raise ValueError(f"{name} must be {expected}, got {value}")


def no_nan(**values: Iterable[Any]) -> None:
    """No name among them is NaN, or the word for it: a table's missing value."""
    for name, found in values.items():
        if missing := [each for each in found if str(each).lower() == "nan"]:
            raise ValueError(
                f"{name} must not hold a missing value, got {missing[0]!r} (if it is a class, "
                "give it another name)"
            )


def byte_length(length: int, **values: bytes) -> None:
    """This many bytes; the bytes themselves are not shown."""
    for name, value in values.items():
        if len(value) != length:
            raise ValueError(f"{name} must be {length} bytes, got {len(value)}")


def shape(expected: tuple[int | str, ...], **arrays: Any) -> None:
    """This shape; a dimension that is a word is free, such as "n" in ("n", 3)."""
    for name, array in arrays.items():
        actual = tuple(array.shape)
        same = len(actual) == len(expected) and all(
            isinstance(size, str) or size == found
            for size, found in zip(expected, actual, strict=True)
        )
        if not same:
            words = ", ".join(map(str, expected))
            raise ValueError(f"{name} must be ({words}), got {actual}")


def given(**values: Any) -> None:
    """Not left out."""
    for name, value in values.items():
        if value is None:
            raise ValueError(f"{name} must be given, got none")


def exactly_one(**values: Any) -> None:
    """Exactly one of two values is given; the other is None or empty."""
    found = sum(value is not None and value != () for value in values.values())
    if found != 1:
        got = "both" if found else "neither"
        raise ValueError(f"exactly one of {' and '.join(values)} must be given, got {got}")


def not_set(why: str, **values: Any) -> None:
    """Left out: None, or empty. `why` ends the sentence "... must be left out"."""
    for name, value in drop_none(**values).items():
        if value is not False and value not in ((), ""):
            raise ValueError(f"{name} must be left out {why}, got {value}")


def installed(module: str, what: str, *, extra: str, package: str | None = None) -> Any:
    """Imports an optional library, named `package` on the package index.

    Raises:
        ValueError: it is not installed; names `what` needs it, and the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"pip install 'blind-averaging[{extra}]'"
        rule = f"must have {package or module} installed"
        raise ValueError(f"{what} {rule}: {install}") from error


def _bound(text: str) -> float:
    base, power, exponent = text.partition("^")
    if power:
        return int(base) ** int(exponent)
    return int(text) if text.lstrip("-").isdigit() else float(text)
