"""From uint8 pixels to what an encoder takes."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what reads a set's description needs no torch
    from torch import Tensor


@dataclass(frozen=True)
class Preprocess:
    """Centre crop, bicubic resize, pixels in [0, 1]; each step only where asked for."""

    image_size: int | None = None  # pixels of the square input; None: as stored
    crop: float = 1.0  # share of the shorter side kept; SimCLR evaluates with 0.875
    invert: bool = False  # 1 - x, as the paper does for EMNIST

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise ValueError(f"image_size must be >= 1, got {self.image_size}")
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop must be in (0, 1], got {self.crop}")

    def __str__(self) -> str:
        """In a few words, for an error message."""
        size = "as stored" if self.image_size is None else f"{self.image_size} px"
        crop = "" if self.crop == 1 else f", crop {self.crop:g}"
        return f"{size}{crop}{', inverted' if self.invert else ''}"

    def to_json(self) -> dict[str, Any]:
        """Plain fields for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Any) -> "Preprocess":
        """Reads what `to_json` gave, of this version or an older one with fewer fields.

        Raises:
            ValueError: an unknown field, or a value out of range.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or not given.keys() <= known:
            raise ValueError(f"preprocess must have fields {sorted(known)}, got {given!r:.200}")
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(f"preprocess must have numbers, got {given!r:.200}") from error

    def __call__(self, images: "Tensor") -> "Tensor":
        """Maps (n, 3, h, w) uint8 to (n, 3, size, size) float32 in [0, 1]."""
        import torch
        from torch.nn import functional

        x = images.to(torch.float32) / 255
        if self.invert:
            x = 1 - x
        height, width = x.shape[-2:]
        side = round(self.crop * min(height, width))
        if self.crop < 1 or (self.image_size is not None and height != width):
            top, left = (height - side) // 2, (width - side) // 2
            x = x[..., top : top + side, left : left + side]
        size = self.image_size
        if size is None or x.shape[-2:] == (size, size):
            return x
        shrink = size < x.shape[-1]
        x = functional.interpolate(x, size=(size, size), mode="bicubic", antialias=shrink)
        return x.clamp_(0, 1)
