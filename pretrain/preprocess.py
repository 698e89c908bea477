"""Preprocessing of pictures: from uint8 pixels to the input of an encoder."""

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pretrain import check

if TYPE_CHECKING:  # a set's description is read without torch
    from torch import Tensor

FITS = ("crop", "shortest", "longest", "squash")
INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
BLACK = (0.0, 0.0, 0.0)
Size = int | tuple[int, int]  # side of a square, or (height, width)
Step = tuple[str, tuple[Any, ...]]  # cut, scale or frame, and how


@dataclass(frozen=True)
class Preprocess:
    """Crop and scale pictures, pixels in [0, 1].

    `fit` says how a picture is brought to `image_size`:

    crop: scale its largest central part of the input's shape, or the share `crop` of that part.
    shortest: scale it until it just covers `resize`, then cut out the centre.
    longest: scale it until it just fits into `resize`, then put `border` around it.
    squash: scale each side to `resize`, then cut out the centre.

    timm and Hugging Face describe their models by the last three.

    With `pictures` it says what becomes of a picture of any size: that is first scaled until it
    just covers `pictures`, and its centre is cut out, as `pretrain.intake.decode.squared` does.
    Then `same_as` compares what is done, however it was written.

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
    pictures: Size | None = None  # of what is prepared; None: unknown, or of an encoder alone

    def __post_init__(self) -> None:
        for name in ("image_size", "resize", "pictures"):
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
        words = ["as stored"] if self.pictures is None else [_pixels(self.pictures)]
        if self.pictures is None or self.steps(*pair(self.pictures)):
            if self.image_size is not None:
                size = _pixels(self.image_size)
                words = [size] if self.pictures is None else [*words, f"brought to {size}"]
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
        """Fields for JSON; `pictures` only where they are known, as in hashes of older versions."""
        given = asdict(self)
        if self.pictures is None:
            del given["pictures"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}

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
        for kind, how in self.steps(*x.shape[-2:]):
            x = STEPS[kind](x, *how)
        return x

    def of_pictures(self, size: Size | None) -> "Preprocess":
        """Preprocessing that is for pictures of this size; None: of an unknown one.

        Raises:
            ValueError: it is for another.
        """
        if size is None:
            return self
        found = replace(self, pictures=size)
        if self.pictures not in (None, found.pictures):
            raise ValueError(f"pictures must be {_pixels(self.pictures)}, got {_pixels(size)}")
        return found

    def same_as(self, other: "Preprocess") -> bool:
        """Whether both make the same of every picture, so far as both know of what size it is."""
        if self.pictures is None or other.pictures is None:
            return self == other
        size = pair(self.pictures)
        steps = self.steps(*size) == other.steps(*size)
        return steps and (self.pictures, self.invert) == (other.pictures, other.invert)

    @property
    def side(self) -> int | None:
        """Side S, where a picture's shorter side is scaled to S and its central square is all.

        That is what the intake does with `resize` S. None: more is done, or less.
        """
        simple = self.fit in ("crop", "shortest") and self.resize in (None, self.image_size)
        simple = simple and self.crop == 1 and self.interpolation == "bicubic"
        return self.image_size if simple and isinstance(self.image_size, int) else None

    def steps(self, height: int, width: int) -> list[Step]:
        """Operations on pictures of this size, in order, without those that change nothing."""
        return (self._cropped if self.fit == "crop" else self._fitted)(height, width)

    def _cropped(self, height: int, width: int) -> list[Step]:
        if self.image_size is None:
            side = round(self.crop * min(height, width))
            kept = (side, side) if self.crop < 1 else (height, width)
        else:
            rows, columns = pair(self.image_size)
            scale = self.crop * min(height / rows, width / columns)
            kept = (round(scale * rows), round(scale * columns))
        top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
        size = kept if self.image_size is None else pair(self.image_size)
        steps: list[Step] = [] if kept == (height, width) else [("cut", (top, left, *kept))]
        return steps if kept == size else [*steps, self._interpolated(size, antialias=size < kept)]

    def _fitted(self, height: int, width: int) -> list[Step]:
        found, steps = self._scaled_sides(height, width), list[Step]()
        if found != (height, width):
            steps.append(self._interpolated(found, antialias=True))
        assert self.image_size is not None  # checked at construction
        size = pair(self.image_size)
        rows, columns = min(size[0], found[0]), min(size[1], found[1])
        if (rows, columns) != found:
            top, left = round((found[0] - rows) / 2), round((found[1] - columns) / 2)
            steps.append(("cut", (top, left, rows, columns)))
        return steps if (rows, columns) == size else [*steps, ("frame", (size, self.border))]

    def _interpolated(self, size: tuple[int, int], *, antialias: bool) -> Step:
        nearest = self.interpolation == "nearest"
        mode = "nearest-exact" if nearest else self.interpolation
        return "scale", (size, mode, antialias and not nearest)

    @property
    def _scaled(self) -> tuple[int, int]:
        size = self.resize or self.image_size
        assert size is not None  # checked at construction
        return pair(size)

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


def pair(size: Size) -> tuple[int, int]:
    """(height, width) of a size."""
    return (size, size) if isinstance(size, int) else size


def _pixels(size: Size) -> str:
    return "{} x {} px".format(*pair(size))


def _cut(x: "Tensor", top: int, left: int, rows: int, columns: int) -> "Tensor":
    return x[..., top : top + rows, left : left + columns]


def _scale(x: "Tensor", size: tuple[int, int], mode: str, antialias: bool) -> "Tensor":
    from torch.nn import functional

    if mode == "nearest-exact":
        return functional.interpolate(x, size=size, mode=mode)
    return functional.interpolate(x, size=size, mode=mode, antialias=antialias).clamp_(0, 1)


def _frame(x: "Tensor", size: tuple[int, int], border: tuple[float, float, float]) -> "Tensor":
    """The picture in the middle of a larger one."""
    rows, columns = x.shape[-2:]
    framed = x.new_tensor(border).view(1, 3, 1, 1).repeat(x.shape[0], 1, *size)
    top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
    framed[..., top : top + rows, left : left + columns] = x
    return framed


STEPS = {"cut": _cut, "scale": _scale, "frame": _frame}


def _size(name: str, given: Any) -> Size | None:
    """Normal form of a size: a number for a square."""
    if given is None:
        return None
    sides = (given, given) if not isinstance(given, tuple | list) else tuple(given)
    if len(sides) != 2 or not all(type(side) is int and side >= 1 for side in sides):
        raise ValueError(f"{name} must be >= 1, got {given}")
    return sides[0] if sides[0] == sides[1] else sides
