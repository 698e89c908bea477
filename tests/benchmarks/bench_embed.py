"""Images/s of every engine of `embed run` beside a plain eager float32 loop, in one run.

    python tests/benchmarks/bench_embed.py --reference-data DIR [--rows 25000] [--write FILE]

JPEG CIFAR-10 through four encoders. The plain loop and the engines take turns on blocks of the same
images, so that whatever else the machine does falls on all. The plain loop decodes, resizes and
embeds batch after batch, in the memory layout that PyTorch gives by default. What an engine needs
before it embeds, imports, conversion and comparison with torch, is told apart, with an empty cache
and with a full one. Exit code 1 unless EfficientNet-Lite0's best engine is 3 times as fast as the
plain loop; how much is to be gained with the others, which embed a tenth of the rows, depends on
what the CPU multiplies.
"""

import contextlib
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import nn

from embed.engines import ENGINES, Engine, choose
from embed.extract import embedded, spans
from pretrain import build_encoder
from pretrain.cli.provenance import CPU_BATCH
from pretrain.datasets import ImageSet
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from tests.benchmarks.saving import save

BLOCK, PLAIN_BATCH, BAR = 256, 64, 3.0
LITE0 = "timm:tf_efficientnet_lite0"
ENCODERS = {  # with their weights and the size of their input
    LITE0: ("package", 128),
    "resnet50-v1": ("random", 128),
    "simclr-small": (None, 32),
    "timm:vit_small_patch14_dinov2": ("random", 98),
}
CPU = torch.device("cpu")
Way = Callable[[ImageSet], np.ndarray]


def plain_loop(encoder: nn.Module, preprocess: Preprocess) -> Way:
    def run(images: ImageSet) -> np.ndarray:
        rows = []
        with torch.inference_mode():
            for start in range(0, len(images), PLAIN_BATCH):
                pixels = torch.from_numpy(images.images(slice(start, start + PLAIN_BATCH)))
                rows.append(encoder(preprocess(pixels)).numpy())
        return np.concatenate(rows)

    return run


def streamed(engine: Engine, preprocess: Preprocess) -> Way:
    def run(images: ImageSet) -> np.ndarray:
        batches = spans(0, len(images), CPU_BATCH)
        shape = images.images(slice(0, 1)).shape[1:]
        rows = embedded(images, batches, lambda x: engine.forward(preprocess(x)), shape=shape)
        return np.concatenate([block for _, block in rows])

    return run


def begun(
    name: str, size: int, images: ImageSet, weights: str | None, engine: str, compute: str
) -> tuple[Engine, float]:
    """An engine, and the seconds until it is there."""
    encoder = build_encoder(name, weights=weights, image_size=size)
    first = Preprocess(image_size=size)(torch.from_numpy(images.images(slice(0, CPU_BATCH))))
    begin = time.perf_counter()
    found = choose(
        encoder,
        CPU,
        lambda: first,
        rows=sys.maxsize,
        batch_size=CPU_BATCH,
        engine=engine,
        compute=compute,
    )
    return found, time.perf_counter() - begin


def lowest_cosine(x: np.ndarray, y: np.ndarray) -> float:
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return float(((x * y).sum(1) / norms).min())


def compared(name: str, images: ImageSet) -> list[dict[str, Any]]:
    """A line for the plain loop and for each engine in each precision."""
    weights, size = ENCODERS[name]
    preprocess = Preprocess(image_size=size)
    plain = plain_loop(build_encoder(name, weights=weights, image_size=size), preprocess)
    ways: dict[tuple[str, str], Way] = {("plain", "float32"): plain}
    lines: dict[tuple[str, str], dict[str, Any]] = {("plain", "float32"): {}}
    for engine, compute in itertools.product(ENGINES, ("float32", "auto")):
        try:
            _, cold = begun(name, size, images, weights, engine, compute)
            found, warm = begun(name, size, images, weights, engine, compute)
        except ValueError as error:
            print(error, file=sys.stderr)
            continue
        key = found.name, found.compute
        if key not in ways:
            ways[key] = streamed(found, preprocess)
            lines[key] = {"begins_first": round(cold, 1), "begins_again": round(warm, 1)}
    seconds, cosine = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 1.0)
    warmed = images.take(slice(0, PLAIN_BATCH))
    for way in ways.values():
        way(warmed)
    for start in range(0, len(images), BLOCK):
        block, expected = images.take(slice(start, start + BLOCK)), np.empty(0)
        for key, way in ways.items():
            begin = time.perf_counter()
            rows = way(block)
            seconds[key] += time.perf_counter() - begin
            expected = rows if key[0] == "plain" else expected
            cosine[key] = min(cosine[key], lowest_cosine(rows, expected))
    base = seconds["plain", "float32"]
    return [
        {
            "encoder": name,
            "pixels": size,
            "rows": len(images),
            "engine": key[0],
            "compute": key[1],
            "images_per_second": round(len(images) / seconds[key], 1),
            "ratio": round(base / seconds[key], 2),
            "lowest_cosine": cosine[key],
            **line,
        }
        for key, line in lines.items()
    ]


def main(reference_data: Path, rows: int = 25_000, write: Path | None = None) -> int:
    """Prints a line for every engine, encoder and precision."""
    images = open_npz(reference_data / "data" / "cifar10_jpeg.npz")
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for name in ENCODERS:
            with contextlib.redirect_stderr(sys.stdout):
                count = rows if name == LITE0 else rows // 10
                table += compared(name, images.take(slice(0, count)))
    result = {
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[1],
        "torch": torch.__version__,
        "table": table,
    }
    print(json.dumps(result, indent=1))
    for name in ENCODERS:
        ratio = max(line["ratio"] for line in table if line["encoder"] == name)
        print(f"{name}: best engine {ratio} times the plain loop")
    save(write, result)
    reached = max(line["ratio"] for line in table if line["encoder"] == LITE0)
    return 0 if reached >= BAR else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
