"""Images/s of our SimCLR step against lightly's, same backbone and batch, in one run.

    python tests/benchmarks/bench_simclr.py --reference-data DIR [--steps 20] [--write FILE]

Tiny-ImageNet at 32 pixels, the recipe of the shipped encoder. lightly gets its own transform,
loader (one worker per core), projection head and loss, and the same optimiser; both take turns, and
lightly's workers are stopped while it is our turn. Once in float32, once both in bfloat16 autocast.

Exit code 1 if the better of our rates is below 2.2 times the better of lightly's.
"""

import multiprocessing
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from pretrain.intake.archive import open_npz
from pretrain.recipes import SMALL
from pretrain.resnet import SmallResNet
from pretrain.simclr import _Run
from tests.benchmarks.saving import save

BAR, ROUND = 2.2, 5  # times lightly's rate; steps between turns


class Views(Dataset[list[Tensor]]):
    """Set for lightly's loader: pictures, transformed one by one."""

    def __init__(self, images: Tensor, transform: Any) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.transform(Image.fromarray(self.images[index].permute(1, 2, 0).numpy()))


class Lightly:
    """The training step of lightly's SimCLR tutorial."""

    def __init__(self, images: Tensor, half: bool) -> None:
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
        self.half = half
        self.loss = NTXentLoss(temperature=SMALL.temperature)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            SMALL.learning_rate,
            weight_decay=SMALL.weight_decay,
            fused=True,
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
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = self.loss(self.model(views[0]), self.model(views[1]))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class Ours:
    """The training step of `pretrain.simclr`."""

    def __init__(self, images: Tensor, half: bool) -> None:
        self.run = _Run.start(replace(SMALL, half=half), torch.Generator().manual_seed(0), "cpu")
        self.images, self.order = images, self.run.order(len(images), 0)

    def step(self) -> None:
        size = SMALL.batch_size
        start = (self.run.step * size) % (len(self.order) - size)
        self.run.train(self.images, self.order[start : start + size], total=10_000)


def signal_workers(number: signal.Signals) -> None:
    """Stops or continues lightly's workers, which otherwise load ahead while it is our turn."""
    for worker in multiprocessing.active_children():
        os.kill(worker.pid or 0, number)


def images_per_second(images: Tensor, steps: int, half: bool) -> dict[str, float]:
    """Measures both in turns."""
    sides = {"lightly": Lightly(images, half), "ours": Ours(images, half)}
    seconds = dict.fromkeys(sides, 0.0)
    for side in sides.values():
        side.step()  # warm
    for _ in range(0, steps, ROUND):
        for name, side in sides.items():
            signal_workers(signal.SIGSTOP if name == "ours" else signal.SIGCONT)
            begin = time.perf_counter()
            for _ in range(ROUND):
                side.step()
            seconds[name] += time.perf_counter() - begin
    signal_workers(signal.SIGCONT)
    count = -(-steps // ROUND) * ROUND * SMALL.batch_size
    return {name: round(count / s, 1) for name, s in seconds.items()}


def main(reference_data: Path, steps: int = 20, write: Path | None = None) -> None:
    """Prints both rates in both precisions."""
    archive = open_npz(reference_data / "data" / "tinyimagenet32_jpeg_a.npz")
    images = torch.from_numpy(archive.images(slice(0, 10_000)))
    rates = {
        name: images_per_second(images, steps, half)
        for name, half in (("float32", False), ("bfloat16", True))
    }
    ratios = {name: round(of["ours"] / of["lightly"], 2) for name, of in rates.items()}
    best = [max(of[side] for of in rates.values()) for side in ("ours", "lightly")]
    ratios["each in its best"] = round(best[0] / best[1], 2)
    result = {
        "images_per_second": rates,
        "ratio": ratios,
        "batch_size": SMALL.batch_size,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
    }
    print(result)
    holds = best[0] >= BAR * best[1]
    print(f"ratio >= {BAR}: {holds}")
    save(write, result)
    sys.exit(not holds)


if __name__ == "__main__":
    tyro.cli(main)
