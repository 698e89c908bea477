"""Images/s of `embed run` beside a plain eager float32 loop over the same model, in one run.

    python tests/benchmarks/bench_embed.py --reference-data DIR [--rows 25000] [--json FILE]

EfficientNet-Lite0 at 128 pixels on JPEG CIFAR-10. Both take turns on blocks of the same images,
so that whatever else the machine does falls on both. The plain loop decodes, resizes and embeds
batch after batch, in the memory layout that PyTorch gives by default.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from embed import EmbeddingSet
from embed.extract import ExtractOptions, extract
from pretrain import build_encoder
from pretrain.datasets import ImageSet
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess

BLOCK, PLAIN_BATCH, BAR, TARGET, COSINE = 256, 64, 1.2, 2.0, 0.999
PREPROCESS = Preprocess(image_size=128)


def plain_loop(images: ImageSet, encoder: nn.Module) -> np.ndarray:
    rows = []
    with torch.inference_mode():
        for start in range(0, len(images), PLAIN_BATCH):
            pixels = torch.from_numpy(images.images(slice(start, start + PLAIN_BATCH)))
            rows.append(encoder(PREPROCESS(pixels)).numpy())
    return np.concatenate(rows)


def ours(images: ImageSet, encoder: nn.Module, out: Path) -> EmbeddingSet:
    done = extract(
        images,
        encoder,
        out,
        encoder_name="timm:tf_efficientnet_lite0",
        preprocess=PREPROCESS,
        options=ExtractOptions(),
    )
    assert done is not None
    return done


def lowest_cosine(x: np.ndarray, y: np.ndarray) -> float:
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return float(((x * y).sum(1) / norms).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference-data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    images = open_npz(options.reference_data / "data" / "cifar10_jpeg.npz")
    plain, fast = (build_encoder("timm:tf_efficientnet_lite0", weights="package") for _ in range(2))
    seconds, cosine = {"plain": 0.0, "ours": 0.0}, 1.0
    with tempfile.TemporaryDirectory() as directory:
        warm = images.take(slice(0, PLAIN_BATCH))
        plain_loop(warm, plain)
        ours(warm, fast, Path(directory) / "warm")
        for start in range(0, options.rows, BLOCK):
            block = images.take(slice(start, min(start + BLOCK, options.rows)))
            begin = time.perf_counter()
            expected = plain_loop(block, plain)
            middle = time.perf_counter()
            found = ours(block, fast, Path(directory) / str(start))
            seconds["plain"] += middle - begin
            seconds["ours"] += time.perf_counter() - middle
            cosine = min(cosine, lowest_cosine(expected, np.asarray(found.embeddings)))
    ratio = seconds["plain"] / seconds["ours"]
    result = {
        "rows": options.rows,
        "images_per_second": {name: round(options.rows / s, 1) for name, s in seconds.items()},
        "ratio": round(ratio, 3),
        "lowest_cosine": cosine,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
    }
    print(json.dumps(result, indent=2))
    print(f"ratio >= {BAR}: {ratio >= BAR}; target {TARGET}: {ratio >= TARGET}")
    print(f"cosine >= {COSINE}: {cosine >= COSINE}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
