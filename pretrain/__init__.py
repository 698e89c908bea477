"""Public encoders: image readers, SimCLR pretraining, conversion, probes."""

import pretrain.surroundings  # noqa: F401  (before anything imports other libraries)
from pretrain.public import attach

__getattr__, __dir__, __all__ = attach(__name__)
