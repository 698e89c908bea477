"""Each rule refuses what breaks it by name, rule and value, and lets an option left out pass."""

import math

import numpy as np
import pytest

from pretrain import check


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_positive(value: float) -> None:
    with pytest.raises(ValueError, match=r"^epsilon must be finite and > 0, got "):
        check.positive(delta=0.5, epsilon=value)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", (1e-300, 1), (0, math.nextafter(1, 2), math.nan)),
        ("[1, inf)", (1, 1e300), (0.5, math.inf, math.nan)),
        ("[0, 2^63)", (0, 2**63 - 1), (-1, 2**63)),
        ("[-2, -1]", (-2, -1), (0, -3)),
    ],
)
def test_an_interval_reads_as_in_mathematics(
    interval: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    for value in inside:
        check.within(interval, share=value)
    for value in outside:
        with pytest.raises(ValueError, match="share must be in "):
            check.within(interval, share=value)


def test_a_bad_interval_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="interval"):
        check.within("0..1", share=0.5)


def test_bounds_refuse_nan() -> None:
    for refuse in (check.at_least, check.at_most):
        with pytest.raises(ValueError, match=r"rows must be .= 1, got nan"):
            refuse(1, rows=math.nan)
    with pytest.raises(ValueError, match="rows must be >= 2, got 1"):
        check.at_least(2, rows=1)
    with pytest.raises(ValueError, match="rows must be <= 2, got 3"):
        check.at_most(2, rows=3)


def test_choices_equality_and_lengths() -> None:
    with pytest.raises(ValueError, match="noise must be one of discrete, float, got 'none'"):
        check.one_of(("discrete", "float"), noise="none")
    with pytest.raises(ValueError, match="version must be 2, got 3"):
        check.equal(2, version=3)
    with pytest.raises(ValueError, match="key must be 32 bytes, got 3") as refused:
        check.byte_length(32, key=b"abc")
    assert "abc" not in str(refused.value)


def test_a_free_dimension_is_a_word() -> None:
    check.shape(("n", 3), rows=np.zeros((7, 3)))
    for wrong in (np.zeros((7, 2)), np.zeros(3), np.zeros((1, 7, 3))):
        with pytest.raises(ValueError, match=r"rows must be \(n, 3\), got "):
            check.shape(("n", 3), rows=wrong)


def test_given_and_left_out() -> None:
    with pytest.raises(ValueError, match="ledger must be given, got none"):
        check.given(ledger=None)
    with pytest.raises(ValueError, match="port must be left out with an invitation, got 7"):
        check.left_out("with an invitation", port=7)
    with pytest.raises(ValueError, match="port must be left out"):
        check.left_out("with an invitation", port=0)


def test_only_options_that_say_so_may_be_left_out() -> None:
    assert check.present(a=None, b=0, c="") == {"b": 0, "c": ""}
    check.left_out("here", a=None, b=(), c="", d=False)
    for rule in (
        check.positive,
        lambda **values: check.at_least(1, **values),
        lambda **values: check.at_most(1, **values),
        lambda **values: check.within("[0, 1]", **values),
        lambda **values: check.one_of((1,), **values),
        lambda **values: check.equal(1, **values),
        lambda **values: check.byte_length(1, **values),
        lambda **values: check.shape((1,), **values),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            rule(a=None)  # pyright: ignore[reportArgumentType]


def test_exactly_one_of_two() -> None:
    check.exactly_one(a=0, b=None)
    check.exactly_one(a=(), b="x")
    for values, got in (({"a": None, "b": ()}, "neither"), ({"a": 1, "b": 2}, "both")):
        with pytest.raises(ValueError, match=f"exactly one of a and b must be given, got {got}"):
            check.exactly_one(**values)
