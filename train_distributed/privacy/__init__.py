"""From a promise to noise on integers: promises, guarantees, fixed point, discrete Gaussian."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_distributed.privacy.guarantee import Guarantee
    from train_distributed.privacy.promise import Privacy

__all__ = ["Guarantee", "Privacy"]

_HOMES = {"Guarantee": "guarantee", "Privacy": "promise"}


def __getattr__(name: str) -> Any:
    """Loads a name with its module when it is asked for: a promise is read without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
