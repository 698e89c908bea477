"""Public names of a package, each loaded with its module when it is asked for."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

DISTRIBUTION = "blind-averaging"
SHOWN = ("__all__", "__doc__", "__file__", "__name__", "__version__")


def public_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        homes: public name -> the module that it is in, or is, below the package.
    """

    def load(name: str) -> Any:
        if name == "__version__":
            return version(DISTRIBUTION)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(f"{package}.{homes[name]}")
        found = home if homes[name] == name else getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: sorted([*homes, *SHOWN])
