"""Numbers and names as a card shows them."""

import math

ROUNDING = 1e-12  # relative: largest error of float64 sums and roots


def rounded_up(value: float, digits: int = 3) -> str:
    """A number with this many significant digits, never smaller than it is but for float64 errors.

    Examples:
        >>> rounded_up(0.68415), rounded_up(2 + 1e-15), rounded_up(1.0000000001e-5)
        ('0.685', '2', '1.01e-05')
    """
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    shown = float(f"{value:.{digits}g}")
    if shown < value * (1 - ROUNDING):
        unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        shown = float(f"{shown + unit:.{digits}g}")
    return f"{shown:.{digits}g}"


def percent(share: float) -> str:
    """A share with one decimal."""
    return f"{100 * share:.1f} %"


def percent_range(low: float, high: float) -> str:
    """Both ends of an interval in per cent, rounded outwards.

    Examples:
        >>> percent_range(0.12349, 0.56701)
        '12.3 to 56.8 %'
    """
    down, up = math.floor(1000 * low + 1e-9) / 10, math.ceil(1000 * high - 1e-9) / 10
    return f"{down:.1f} to {up:.1f} %"


def chance(probability: float) -> str:
    """A small probability as a number and in words, rounded up.

    Examples:
        >>> chance(1e-5), chance(0.02)
        ('1e-05 (1 in 100,000)', '0.02 (1 in 50)')
    """
    return f"{probability:g} (1 in {math.floor(1 / probability * (1 + 1e-9)):,})"


def shortened(name: str, length: int = 40) -> str:
    """A name of at most this many letters."""
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    Examples:
        >>> counted(1, "user"), counted(12000, "class", "classes")
        ('1 user', '12,000 classes')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
