"""All users: partition, accounting, noise, one secure sum, release."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_distributed import accounting, partition
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.release import release
    from train_distributed.privacy.promise import Privacy

__all__ = ["Privacy", "Release", "accounting", "partition", "release"]

_HOMES = {
    "Privacy": "privacy.promise",
    "Release": "one_shot.model",
    "release": "one_shot.release",
}


def __getattr__(name: str) -> Any:
    """Loads a name with its module when it is asked for: keys are made without torch."""
    if name in ("accounting", "partition"):
        return import_module(f"train_distributed.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"train_distributed.{_HOMES[name]}"), name)
