"""From a promise to noise on integers: promises, guarantees, fixed point, discrete Gaussian."""

from pretrain.public import attach

__getattr__, __dir__, __all__ = attach(__name__)  # a promise is read without torch
