"""Preprocessing of pictures: from uint8 pixels to the input of an encoder."""

import math
import os
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from pretrain import check

if TYPE_CHECKING:  # a set's description is read without torch
    from torch import Tensor

FITS = ("crop", "shortest", "longest", "squash")
INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
BLACK = (0.0, 0.0, 0.0)
Size = int | tuple[int, int]  # side of a square, or (height, width)


@dataclass(frozen=True)
class Preprocess:
    """Crop and scale pictures, pixels in [0, 1].

    `fit` says how a picture is brought to `image_size`:

    crop: scale its largest central part of the input's shape, or the share `crop` of that part.
    shortest: scale it until it just covers `resize`, then cut out the centre.
    longest: scale it until it just fits into `resize`, then put `border` around it.
    squash: scale each side to `resize`, then cut out the centre.

    timm, Hugging Face and open_clip describe their models by the last three.

    Raises:
        ValueError: at construction, for a value out of range.
    """

    image_size: Size | None = None  # pixels of the input; None: as stored
    crop: float = 1.0  # share of the central part that is kept; SimCLR evaluates with 0.875
    invert: bool = False  # 1 - x, as the paper does for EMNIST
    fit: str = "crop"
    interpolation: str = "bicubic"
    resize: Size | None = None  # None: image_size
    border: tuple[float, float, float] = BLACK  # colour where a scaled picture is too small

    def __post_init__(self) -> None:
        for name in ("image_size", "resize"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        check.within("(0, 1]", crop=self.crop)
        check.one_of(FITS, fit=self.fit)
        check.one_of(INTERPOLATIONS, interpolation=self.interpolation)
        if self.fit == "crop" and (self.resize is not None or self.border != BLACK):
            raise ValueError("resize and border must be left out for fit 'crop', got some")
        if self.fit != "crop" and (self.image_size is None or self.crop < 1):
            raise ValueError(f"image_size must be given, and no crop, for fit {self.fit!r}")
        if len(self.border) != 3 or not all(0 <= value <= 1 for value in self.border):
            raise ValueError(f"border must be three numbers in [0, 1], got {self.border}")

    def __str__(self) -> str:
        """Short description for error messages."""
        if self.image_size is None:
            words = ["as stored"]
        else:
            words = ["{} x {} px".format(*_pair(self.image_size))]
        if self.fit != "crop":
            side = "both sides" if self.fit == "squash" else f"{self.fit} side"
            words.append("{} to {} x {}".format(side, *self._scaled))
        if self.crop < 1:
            words.append(f"crop {self.crop:g}")
        if self.interpolation != "bicubic":
            words.append(self.interpolation)
        if self.border != BLACK:
            words.append(f"border {self.border}")
        return ", ".join(words + ["inverted"] * self.invert)

    def to_json(self) -> dict[str, Any]:
        """Fields for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, given: Any) -> "Preprocess":
        """Reads the result of `to_json`, also of an older version with fewer fields.

        Raises:
            ValueError: an unknown field, or a value out of range.
        """
        known = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or not given.keys() <= known:
            raise ValueError(f"preprocess must have fields {sorted(known)}, got {given!r:.200}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"preprocess must have numbers, got {given!r:.200}") from error

    def __call__(self, images: "Tensor") -> "Tensor":
        """Maps (n, 3, h, w) uint8 to (n, 3, *image_size) float32 in [0, 1]."""
        import torch

        x = images.to(torch.float32) / 255
        return self.scaled(1 - x if self.invert else x)

    def scaled(self, x: "Tensor") -> "Tensor":
        """Maps (n, 3, h, w) in [0, 1], as they are or inverted, to (n, 3, *image_size)."""
        return self._cropped(x) if self.fit == "crop" else self._fitted(x)

    def _cropped(self, x: "Tensor") -> "Tensor":
        height, width = x.shape[-2:]
        if self.image_size is None:
            side = round(self.crop * min(height, width))
            kept = (side, side) if self.crop < 1 else (height, width)
        else:
            rows, columns = _pair(self.image_size)
            scale = self.crop * min(height / rows, width / columns)
            kept = (round(scale * rows), round(scale * columns))
        top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
        x = x[..., top : top + kept[0], left : left + kept[1]]
        size = kept if self.image_size is None else _pair(self.image_size)
        if kept == size:
            return x
        return self._interpolated(x, size, antialias=size < kept)

    def _fitted(self, x: "Tensor") -> "Tensor":
        size = self._scaled_sides(*x.shape[-2:])
        if size != tuple(x.shape[-2:]):
            x = self._interpolated(x, size, antialias=True)
        assert self.image_size is not None  # checked at construction
        return _centre(x, _pair(self.image_size), self.border)

    @property
    def _scaled(self) -> tuple[int, int]:
        size = self.resize or self.image_size
        assert size is not None  # checked at construction
        return _pair(size)

    def _scaled_sides(self, height: int, width: int) -> tuple[int, int]:
        """Sides of the scaled picture, rounded as torchvision and timm do."""
        rows, columns = self._scaled
        if self.fit == "squash":
            return rows, columns
        if self.fit == "shortest" and rows == columns:
            short, long = min(height, width), max(height, width)
            other = int(rows * long / short)
            return (rows, other) if height <= width else (other, rows)
        choose = max if self.fit == "shortest" else min
        scale = choose(rows / height, columns / width)
        return max(1, round(height * scale)), max(1, round(width * scale))

    def _interpolated(self, x: "Tensor", size: tuple[int, int], *, antialias: bool) -> "Tensor":
        from torch.nn import functional

        if self.interpolation == "nearest":
            return functional.interpolate(x, size=size, mode="nearest-exact")
        mode = self.interpolation
        return functional.interpolate(x, size=size, mode=mode, antialias=antialias).clamp_(0, 1)


def refuse_too_large(image_size: Size | None, batch_size: int) -> None:
    """Checks that a batch of inputs takes at most a quarter of the machine's memory.

    Args:
        image_size: size of the inputs; None: unknown.
        batch_size: number of inputs that are held at once, in float32.

    Raises:
        ValueError: it takes more.
    """
    if image_size is None:
        return
    height, width = _pair(image_size)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bound = math.isqrt(memory // 4 // (12 * batch_size))
    if height * width > bound**2:
        raise ValueError(
            f"image_size must be <= {bound}, so that {batch_size} inputs (batch_size) take at most "
            f"a quarter of {memory / 2**30:.1f} GiB, got {image_size}"
        )


def _centre(x: "Tensor", size: tuple[int, int], border: tuple[float, float, float]) -> "Tensor":
    """The central `size` of (n, 3, h, w); a border is put around smaller pictures."""
    height, width = x.shape[-2:]
    rows, columns = min(size[0], height), min(size[1], width)
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    x = x[..., top : top + rows, left : left + columns]
    if (rows, columns) == size:
        return x
    framed = x.new_tensor(border).view(1, 3, 1, 1).repeat(x.shape[0], 1, *size)
    top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
    framed[..., top : top + rows, left : left + columns] = x
    return framed


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _size(name: str, given: Any) -> Size | None:
    """Normal form of a size: a number for a square."""
    if given is None:
        return None
    pair = (given, given) if not isinstance(given, tuple | list) else tuple(given)
    if len(pair) != 2 or not all(type(side) is int and side >= 1 for side in pair):
        raise ValueError(f"{name} must be >= 1, got {given}")
    return pair[0] if pair[0] == pair[1] else pair
