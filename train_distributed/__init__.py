"""All users: partition, accounting, noise, one secure sum, release."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_distributed.privacy import Privacy
    from train_distributed.release import Release, release

__all__ = ["Privacy", "Release", "release"]


def __getattr__(name: str) -> Any:
    """Loads a name with its module when it is asked for: keys are made without torch."""
    if name not in ("Privacy", "Release"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"train_distributed.{name.lower()}"), name)


class _Package(ModuleType):
    """`release` is the function, also after the import system has bound the module to its name."""

    @property
    def release(self) -> Any:
        return import_module("train_distributed.release").release

    @release.setter
    def release(self, module: ModuleType) -> None:
        """Ignored: only the import system sets it."""


sys.modules[__name__].__class__ = _Package
