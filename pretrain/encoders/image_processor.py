"""Translation of a Hugging Face image processor to a `Preprocess`.

There are hundreds of processors, and each may do something special. So translation and processor
are compared on a picture; a processor that does more than scale, cut and normalise is refused.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pretrain.preprocess import Preprocess, Size

INTERPOLATIONS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # PIL's numbers
SQUASHED_FROM = 384  # pixels from which ConvNeXt's processor cuts nothing off
TOLERANCE = 0.02  # mean difference of pixels in [0, 1]: PIL rounds after every step


@dataclass(frozen=True)
class Stated:
    """Size, crop and normalisation that a processor states."""

    preprocess: Preprocess
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of_size(self, image_size: Size) -> "Stated":
        """Keeps the normalisation, with another size and crop."""
        return Stated(Preprocess(image_size=image_size), self.mean, self.std)

    def to_json(self) -> dict[str, Any]:
        """Fields for JSON."""
        pixels = {"mean": list(self.mean), "std": list(self.std)}
        return {"preprocess": self.preprocess.to_json(), **pixels}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Stated":
        """Reads the result of `to_json`."""
        preprocess = Preprocess.from_json(fields["preprocess"])
        return cls(preprocess, tuple(fields["mean"]), tuple(fields["std"]))


def stated(processor: Any, what: str) -> Stated:
    """Translates an image processor.

    Args:
        processor: image processor of transformers.
        what: name of the model, for errors.

    Raises:
        ValueError: it does something that no `Preprocess` does.
    """
    fields = processor.to_dict()
    try:
        found = _translated(fields)
        difference = _difference(found, processor)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"preprocessing of {what} must be scaling, cutting and normalising, got {error}"
        ) from error
    if difference > TOLERANCE:
        raise ValueError(
            f"preprocessing of {what} must be scaling, cutting and normalising, got a "
            f"{fields.get('image_processor_type')} whose pixels differ by {difference:.3f}"
        )
    return found


def _translated(fields: dict[str, Any]) -> Stated:
    mean, std = (0.0,) * 3, (1.0,) * 3
    if fields.get("do_normalize"):
        mean, std = _three(fields["image_mean"]), _three(fields["image_std"])
    if fields.get("include_top"):  # EfficientNet's divides once more
        std = (std[0] ** 2, std[1] ** 2, std[2] ** 2)
    return Stated(_sizes(fields), mean, std)


def _sizes(fields: dict[str, Any]) -> Preprocess:
    cut = _sides(fields["crop_size"]) if fields.get("do_center_crop") else None
    if not fields.get("do_resize"):
        if cut is None:
            return Preprocess()
        raise ValueError("a crop of pictures that are not scaled")
    number = int(fields["resample"])
    if number not in INTERPOLATIONS:
        raise ValueError(f"resample {number}")
    given = fields["size"]
    if "shortest_edge" not in given:
        scaled, fit = _sides(given), "squash"
    else:
        side = given["shortest_edge"]
        scaled, fit = (side, side), "shortest"
        if str(fields.get("image_processor_type")).startswith("ConvNext"):
            cut = (side, side)
            if side >= SQUASHED_FROM:
                fit = "squash"
            else:
                side = int(side / fields["crop_pct"])
                scaled = (side, side)
        elif cut is None:
            raise ValueError("pictures of different shapes")
    size = scaled if cut is None else cut
    return Preprocess(
        image_size=size,
        fit=fit,
        resize=None if scaled == size else scaled,
        interpolation=INTERPOLATIONS[number],
    )


def _sides(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else (given["height"], given["width"])


def _three(given: Any) -> tuple[float, float, float]:
    one, two, three = map(float, given)
    return one, two, three


def _difference(found: Stated, processor: Any) -> float:
    """Mean absolute difference on a smooth oblong picture, in units of pixels in [0, 1]."""
    height, width = _trial(found.preprocess)
    y, x = np.mgrid[0:height, 0:width] * (300 / height)
    waves = [np.sin(x / a + y / b) for a, b in ((31, 47), (53, -29), (-37, 41))]
    picture = np.round(127.5 + 127.5 * np.stack(waves, 2)).astype(np.uint8)
    theirs = processor(images=picture, return_tensors="pt")["pixel_values"][0]
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None]
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in (found.mean, found.std))
    ours = ((found.preprocess(pixels) - mean) / std)[0]
    if theirs.shape != ours.shape:
        raise ValueError(f"inputs {tuple(theirs.shape)} instead of {tuple(ours.shape)}")
    return float(((ours - theirs) * std[0]).abs().mean())


def _trial(preprocess: Preprocess) -> tuple[int, int]:
    """Sides of an oblong picture whose scaled size has an exact centre, however it is rounded."""
    size, scaled = preprocess.image_size, preprocess.resize or preprocess.image_size
    if preprocess.fit != "shortest" or not isinstance(size, int) or not isinstance(scaled, int):
        return 300, 420
    longer = size + 2 * (scaled // 5 + (scaled - size) // 2 + 1)
    return 4 * scaled, 4 * longer
