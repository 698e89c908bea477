import json

import pytest

from pretrain.cli.json_text import parsed


def test_it_is_what_the_standard_library_reads() -> None:
    text = '{"a": [1, 2.5, null], "b": {"c": "ü"}}'
    assert parsed(text) == parsed(text.encode()) == json.loads(text)
    assert parsed("[1, 2]", parse_int=str) == ["1", "2"]
    with pytest.raises(json.JSONDecodeError):
        parsed("{")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 500_000 + "]" * 500_000])
def test_more_levels_than_the_stack_holds_are_an_ordinary_error(text: str) -> None:
    with pytest.raises(ValueError, match="few levels"):
        parsed(text)
