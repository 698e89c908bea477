"""Rules name what breaks them, by name and value; JSON of many levels is an ordinary error."""

import json
import math

import numpy as np
import pytest

from pretrain import check
from pretrain.cli.json_text import parsed

SHAPES = (np.zeros((7, 2)), np.zeros(3), np.zeros((1, 7, 3)))


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", (1e-300, 1), (0, math.nextafter(1, 2), math.nan)),
        ("[1, inf)", (1, 1e300), (0.5, math.inf, math.nan)),
        ("[0, 2^63)", (0, 2**63 - 1), (-1, 2**63)),
        ("[-2, -1]", (-2, -1), (0, -3)),
    ],
)
def test_an_interval_reads_as_in_mathematics(interval, inside, outside) -> None:
    for value in inside:
        check.within(interval, share=value)
    for value in outside:
        with pytest.raises(ValueError, match="share must be in "):
            check.within(interval, share=value)
    with pytest.raises(TypeError, match="interval"):  # a mistake of the program
        check.within(interval.replace(", ", ".."), share=0.5)


@pytest.mark.parametrize(
    ("rule", "kept", "refused", "words"),
    [
        (check.positive, 0.5, (0, -1, math.nan, math.inf), "must be finite and > 0"),
        (lambda **x: check.at_least(2, **x), 2, (1, math.nan), "must be >= 2"),
        (lambda **x: check.at_most(2, **x), 2, (3, math.nan), "must be <= 2"),
        (lambda **x: check.one_of(("a", "b"), **x), "a", ("none",), "must be one of a, b"),
        (lambda **x: check.equal(2, **x), 2, (3,), "must be 2"),
        (lambda **x: check.byte_length(3, **x), b"abc", (b"abcd",), "must be 3 bytes"),
        (lambda **x: check.shape(("n", 3), **x), np.zeros((7, 3)), SHAPES, r"must be \(n, 3\)"),
        (check.given, 0, (None,), "must be given"),
    ],
)
def test_a_rule_names_what_breaks_it(rule, kept, refused, words) -> None:
    rule(first=kept, second=kept)
    for value in refused:
        with pytest.raises(ValueError, match=f"^second {words}, got ") as error:
            rule(first=kept, second=value)
        assert "abcd" not in str(error.value)  # bytes may be a key
    if rule is not check.given:  # only options that say so may be left out
        with pytest.raises((TypeError, ValueError, AttributeError)):
            rule(a=None)


def test_what_may_be_left_out() -> None:
    assert check.drop_none(a=None, b=0, c="") == {"b": 0, "c": ""}
    check.not_set("here", a=None, b=(), c="", d=False)
    for port in (0, 7):
        with pytest.raises(ValueError, match="port must be left out with an invitation, got"):
            check.not_set("with an invitation", port=port)
    check.exactly_one(a=0, b=None)
    check.exactly_one(a=(), b="x")
    for values, got in (({"a": None, "b": ()}, "neither"), ({"a": 1, "b": 2}, "both")):
        with pytest.raises(ValueError, match=f"exactly one of a and b must be given, got {got}"):
            check.exactly_one(**values)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 500_000 + "]" * 500_000])
def test_json_of_more_levels_than_the_stack_holds_is_an_ordinary_error(text: str) -> None:
    with pytest.raises(ValueError, match="few levels"):
        parsed(text)
    with pytest.raises(json.JSONDecodeError):
        parsed("{")
    text = '{"a": [1, 2.5, null], "b": {"c": "ü"}}'
    assert parsed(text) == parsed(text.encode()) == json.loads(text)
    assert parsed("[1, 2]", parse_int=str) == ["1", "2"]
