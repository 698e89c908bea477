"""From a promise to noise on integers: promises, guarantees, fixed point, discrete Gaussian."""

from typing import TYPE_CHECKING

from pretrain.public import public_names

if TYPE_CHECKING:
    from train_distributed.privacy.guarantee import Guarantee
    from train_distributed.privacy.promise import Privacy

__all__ = ["Guarantee", "Privacy"]

if not TYPE_CHECKING:  # a promise is read without torch
    homes = {"Guarantee": "guarantee", "Privacy": "promise"}
    __getattr__, __dir__ = public_names(__name__, homes)
