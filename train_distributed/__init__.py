"""All users: partition, accounting, noise, one secure sum, release."""

from pretrain.public import attach

__getattr__, __dir__, __all__ = attach(__name__)
