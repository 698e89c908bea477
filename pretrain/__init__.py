"""Public encoders: image readers, SimCLR pretraining, conversion, probes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.encoder import build_encoder

__all__ = ["build_encoder"]


def __getattr__(name: str) -> Any:
    """Loads torch and timm only when an encoder is built."""
    if name != "build_encoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pretrain.encoder import build_encoder

    return build_encoder
