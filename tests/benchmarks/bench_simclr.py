"""Images/s of our SimCLR step beside lightly's, same backbone and batch, in one run.

    python tests/benchmarks/bench_simclr.py --reference-data DIR [--steps 20] [--json FILE]

Tiny-ImageNet at 32 pixels, the recipe of the shipped encoder. lightly gets its own transform,
loader (one worker per core), projection head and loss, and the same optimiser; both take turns.
"""

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pretrain.intake.archive import open_npz
from pretrain.lars import build_optimizer
from pretrain.recipes import SMALL
from pretrain.resnet import SmallResNet
from pretrain.simclr import _Run

BAR, TARGET, ROUND = 1.0, 1.5, 5  # steps between turns


class Views(Dataset[list[Tensor]]):
    """What lightly's loader reads: pictures, transformed one by one."""

    def __init__(self, images: Tensor, transform: Any) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.transform(Image.fromarray(self.images[index].permute(1, 2, 0).numpy()))


class Lightly:
    """The training step of lightly's SimCLR tutorial."""

    def __init__(self, images: Tensor) -> None:
        warnings.simplefilter("ignore")
        from lightly.loss import NTXentLoss  # pyright: ignore[reportMissingImports]
        from lightly.models.modules import SimCLRProjectionHead  # pyright: ignore[reportMissingImports]
        from lightly.transforms.simclr_transform import SimCLRTransform  # pyright: ignore

        augment = SMALL.augment
        transform = SimCLRTransform(
            input_size=augment.size,
            cj_strength=augment.strength,
            min_scale=augment.min_area,
            gaussian_blur=0.0,
        )
        encoder = SmallResNet(SMALL.encoder, torch.Generator().manual_seed(0))
        head = SimCLRProjectionHead(encoder.embedding_dim, SMALL.hidden, SMALL.projected)
        self.model = nn.Sequential(encoder, head).train()
        self.loss = NTXentLoss(temperature=SMALL.temperature)
        self.optimizer = build_optimizer(
            SMALL.optimizer, self.model.parameters(), SMALL.learning_rate, SMALL.weight_decay
        )
        loader = DataLoader(
            Views(images, transform),
            SMALL.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=os.cpu_count() or 1,
            persistent_workers=True,
        )
        self.batches = self._endless(loader)

    def _endless(self, loader: DataLoader[list[Tensor]]) -> Iterator[list[Tensor]]:
        while True:
            yield from loader

    def step(self) -> None:
        views = next(self.batches)
        loss = self.loss(self.model(views[0]), self.model(views[1]))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class Ours:
    """The training step of `pretrain.simclr`."""

    def __init__(self, images: Tensor) -> None:
        self.run = _Run.start(SMALL, torch.Generator().manual_seed(0), "cpu")
        self.images, self.order = images, self.run.order(len(images), 0)

    def step(self) -> None:
        size = SMALL.batch_size
        start = (self.run.step * size) % (len(self.order) - size)
        self.run.train(self.images, self.order[start : start + size], total=10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference-data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    archive = open_npz(options.reference_data / "data" / "tinyimagenet32_jpeg_a.npz")
    images = torch.from_numpy(archive.images(slice(0, 10_000)))
    sides = {"lightly": Lightly(images), "ours": Ours(images)}
    seconds = dict.fromkeys(sides, 0.0)
    for side in sides.values():
        side.step()  # warm
    for _ in range(0, options.steps, ROUND):
        for name, side in sides.items():
            begin = time.perf_counter()
            for _ in range(ROUND):
                side.step()
            seconds[name] += time.perf_counter() - begin
    count = -(-options.steps // ROUND) * ROUND * SMALL.batch_size
    ratio = seconds["lightly"] / seconds["ours"]
    result = {
        "images_per_second": {name: round(count / s, 1) for name, s in seconds.items()},
        "ratio": round(ratio, 3),
        "batch_size": SMALL.batch_size,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
    }
    print(json.dumps(result, indent=2))
    print(f"ratio >= {BAR}: {ratio >= BAR}; target {TARGET}: {ratio >= TARGET}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
