"""Public encoders: image readers, SimCLR pretraining, conversion, probes."""

from typing import TYPE_CHECKING

import pretrain.surroundings  # noqa: F401  (before anything imports other libraries)
from pretrain.public import public_names

if TYPE_CHECKING:
    from pretrain.commands import convert_checkpoint, pretrain_simclr, probe_encoder
    from pretrain.encoder import build_encoder

    __version__: str

__all__ = ["build_encoder", "convert_checkpoint", "pretrain_simclr", "probe_encoder"]

if not TYPE_CHECKING:
    _HOMES = {"build_encoder": "encoder"}
    __getattr__, __dir__ = public_names(
        __name__, {name: _HOMES.get(name, "commands") for name in __all__}
    )
