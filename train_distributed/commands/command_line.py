"""From the configuration that a report keeps back to what was typed."""

import shlex
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from pretrain.cli.provenance import public_argument

ALWAYS = ("epsilon", "delta")  # are said, whatever the default is
_IN_CONFIG = ("method", "options", "transform_options")  # which a file of `select` says


def command_line(program: str, command: type, configuration: Mapping[str, Any]) -> str:
    """Command line for a configuration that a report keeps, defaults left out.

    Of files outside the working directory only the names appear: where they lie is nobody's
    business.

    Args:
        program: the words before the options.
        command: the dataclass whose fields are the options.
        configuration: its fields, JSON-ready; those it does not have are left out.
    """
    given = dict(configuration)
    if given.get("config") is not None:
        given = {k: v for k, v in given.items() if k not in _IN_CONFIG}
    if given.get("transform") is not None:  # whose file says how it was fitted
        given.pop("transform_options", None)
    words = program.split()
    for each in fields(command):
        value, usual = given.get(each.name), _default(each)
        if isinstance(value, Mapping):
            for name, setting in value.items():
                words += _typed(name, setting, getattr(usual, name, None))
        elif each.name in given:
            words += _typed(each.name, value, usual)
    return shlex.join(words)


def _default(field: Field) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _typed(name: str, value: Any, usual: Any) -> list[str]:
    """An option as it is typed; nothing for what it is anyway."""
    if value is None or (value == usual and name not in ALWAYS):
        return []
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", public_argument(str(value))]
