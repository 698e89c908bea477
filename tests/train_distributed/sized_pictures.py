"""Pictures of several sizes, and sets of their rows under every spelling of one preprocessing."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from embed.run import Run
from pretrain.encoder import save_encoder
from pretrain.resnet import ResNetConfig, SmallResNet

COLOURS = {"amber": (230, 160, 30), "slate": (60, 80, 110), "teal": (20, 150, 140)}
STORED = 40  # pixels of most pictures

# What a picture of any size becomes is the same by all of these, and another by each of those.
SAME: dict[str, dict[str, Any]] = {
    "resize": {"resize": 32},
    "image-size": {"after": "@32"},
    "both": {"resize": 32, "after": "@32"},
    "crop all": {"resize": 32, "after": "@crop=1.0"},
    "as stored": {"stored": 32},
    "image-size as stored": {"stored": 32, "after": "@32"},
}
OTHER: dict[str, dict[str, Any]] = {
    "resize": {"resize": 24},
    "image-size": {"after": "@24"},
    "as stored": {},
    "twice": {"resize": 36, "after": "@32"},
    "larger": {"resize": 64},
    "crop": {"resize": 32, "after": "@crop=0.5"},
    "inverted": {"resize": 32, "after": "@invert"},
    "oblong": {"stored": (32, 40)},
}


def draw(folder: Path, rows: int, seed: int, size: int | tuple[int, int] = STORED) -> Path:
    """Class folders of pictures: a disc of the class's colour on noise."""
    rng = np.random.default_rng(seed)
    high, wide = (size, size) if isinstance(size, int) else size
    y, x = np.mgrid[:high, :wide] / max(high, wide) - 0.5
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for row in range(rows):
            radius, light = rng.uniform(0.15, 0.4), rng.uniform(0.5, 1.1)
            disc = (x**2 + y**2 < radius**2)[..., None]
            pixels = np.where(disc, light * np.array(colour), 90) + rng.normal(0, 25, (*y.shape, 3))
            picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            picture.save(folder / name / f"{row:03d}.png")
    return folder


def tiny_encoder(path: Path, seed: int = 0) -> Path:
    """Checkpoint of an untrained network of 6 numbers, which takes pictures as stored."""
    generator = torch.Generator().manual_seed(seed)
    save_encoder(SmallResNet(ResNetConfig((4, 6), (1, 1)), generator), path)
    return path


def embedded(root: Path, name: str, seed: int, *, rows: int = 8, **spelling: Any) -> Path:
    """Embedding set ROOT/NAME of fresh pictures; `stored` is their size in the files.

    `after` follows the encoder's name.
    """
    spelling = dict(spelling)
    data = draw(root / f"{name} pictures", rows, seed, spelling.pop("stored", STORED))
    checkpoint = root / "network.safetensors"
    if not checkpoint.exists():
        tiny_encoder(checkpoint)
    given = {"layout": "class", "class_names": tuple(COLOURS)}
    encoder = f"{checkpoint}{spelling.pop('after', '')}"
    Run(data=str(data), encoder=encoder, out=root / name, **given, **spelling).run()
    return root / name
