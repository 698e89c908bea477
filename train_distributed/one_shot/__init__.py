"""Many users' rows, one sum, one model and its report; what a user submits."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_distributed.one_shot.faults import FaultInjection
    from train_distributed.one_shot.method import Method
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.registry import METHODS, build_method
    from train_distributed.one_shot.users import Chunk, Users

__all__ = ["METHODS", "Chunk", "FaultInjection", "Method", "Release", "Users", "build_method"]

_HOMES = {
    "METHODS": "registry",
    "Method": "method",
    "build_method": "registry",
    "Release": "model",
    "FaultInjection": "faults",
    "Chunk": "users",
    "Users": "users",
}  # the function `release` is `train_distributed.release`: here the name is its module's


def __getattr__(name: str) -> Any:
    """Loads a name with its module when it is asked for: options are read without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
