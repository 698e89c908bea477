"""Rates of `embed run`: `engines` beside a plain loop, and `formats` of pictures."""

import contextlib
import io
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from embed import EmbeddingSet
from embed.engines import ENGINES, Engine, choose
from embed.extract import embedded, spans
from pretrain import build_encoder
from pretrain.cli.provenance import CPU_BATCH, provenance
from pretrain.datasets import ImageSet
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from tests.benchmarks.common import Table, alone, command_line, save
from tests.train_distributed.research.audit.neighbours import Options, Record, rows_of, write_source
from tests.train_distributed.sized_pictures import tiny_encoder

BLOCK, PLAIN_BATCH, BAR = 256, 64, 3.0
LITE0 = "timm:tf_efficientnet_lite0"
ENCODERS = {  # with their weights and the size of their input
    LITE0: ("package", 128),
    "resnet50-v1": ("random", 128),
    "simclr-small": (None, 32),
    "timm:vit_small_patch14_dinov2": ("random", 98),
}
Way = Callable[[ImageSet], np.ndarray]


@torch.inference_mode()
def plain_loop(encoder: nn.Module, preprocess: Preprocess, images: ImageSet) -> np.ndarray:
    rows = []
    for start in range(0, len(images), PLAIN_BATCH):
        pixels = torch.from_numpy(images.images(slice(start, start + PLAIN_BATCH)))
        rows.append(encoder(preprocess(pixels)).numpy())
    return np.concatenate(rows)


def streamed(engine: Engine, preprocess: Preprocess, images: ImageSet) -> np.ndarray:
    batches = spans(0, len(images), CPU_BATCH)
    shape = images.images(slice(0, 1)).shape[1:]
    rows = embedded(images, batches, lambda x: engine.forward(preprocess(x)), shape=shape)
    return np.concatenate([block for _, block in rows])


def begun(name: str, images: ImageSet, **chosen: str) -> tuple[Engine, float]:
    """An engine, and the seconds until it is there."""
    weights, size = ENCODERS[name]
    encoder = build_encoder(name, weights=weights, image_size=size)
    first = Preprocess(image_size=size)(torch.from_numpy(images.images(slice(0, CPU_BATCH))))
    given: dict[str, Any] = {"rows": sys.maxsize, "batch_size": CPU_BATCH} | chosen
    begin = time.perf_counter()
    found = choose(encoder, torch.device("cpu"), lambda: first, **given)
    return found, time.perf_counter() - begin


def compare(name: str, images: ImageSet, table: Table) -> None:
    """Adds a line for the plain loop and for each engine in each precision."""
    weights, size = ENCODERS[name]
    preprocess = Preprocess(image_size=size)
    encoder = build_encoder(name, weights=weights, image_size=size)
    plain = partial(plain_loop, encoder, preprocess)
    ways: dict[tuple[str, str], Way] = {("plain", "float32"): plain}
    lines: dict[tuple[str, str], dict[str, Any]] = {("plain", "float32"): {}}
    for engine, compute in itertools.product(ENGINES, ("float32", "auto")):
        try:
            _, cold = begun(name, images, engine=engine, compute=compute)
            found, warm = begun(name, images, engine=engine, compute=compute)
        except ValueError as error:
            print(error, file=sys.stderr)
            continue
        key = found.name, found.compute
        if key not in ways:
            ways[key] = partial(streamed, found, preprocess)
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
            alike = torch.cosine_similarity(torch.from_numpy(rows), torch.from_numpy(expected))
            cosine[key] = min(cosine[key], alike.min().item())
    base = seconds["plain", "float32"]
    for (engine, compute), line in lines.items():
        took = seconds[engine, compute]
        each = {"encoder": name, "pixels": size, "rows": len(images), "engine": engine}
        each |= {"compute": compute, "images_per_second": round(len(images) / took, 1)}
        each |= {"ratio": round(base / took, 2), "lowest_cosine": cosine[engine, compute]}
        table.add(each, **line)


def engines(reference_data: Path, rows: int = 25_000, write: Path | None = None) -> int:
    """Images/s of every engine of `embed run` beside a plain eager float32 loop, in one run.

    JPEG CIFAR-10 through four encoders. The plain loop and the engines take turns on blocks of the
    same images, so that whatever else the machine does falls on all. The plain loop decodes,
    resizes and embeds batch after batch, in PyTorch's usual memory layout. What an engine needs
    before it embeds, imports, conversion and comparison with torch, is listed apart, with an empty
    cache and with a full one. Exit code 1 unless EfficientNet-Lite0's best engine is 3 times as
    fast as the plain loop; the others embed a tenth of the rows.
    """
    images, table = open_npz(reference_data / "data" / "cifar10_jpeg.npz"), Table()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for name in ENCODERS:
            with contextlib.redirect_stderr(sys.stdout):
                count = rows if name == LITE0 else rows // 10
                compare(name, images.take(slice(0, count)), table)
    found = {"threads": torch.get_num_threads(), "machine": platform.machine()}
    found |= {"cpu": torch.backends.cpu.get_cpu_capability(), "load": os.getloadavg()[1]}
    save(write, found | {"torch": torch.__version__, "table": table.rows})
    return int(max(line["ratio"] for line in table.rows if line["encoder"] == LITE0) < BAR)


SIDE, USERS, CLASSES, MOST_MB = 32, 100, 10, 300
FORMATS = ("user folders", "csv", "parquet", "wds", "hf")
ROOT = Path(__file__).parents[2]


def write_formats(rows: int, place: Path) -> dict[str, Options]:
    """Every format and an encoder below `place`; the options with which each format is read."""
    tiny_encoder(place / "encoder.safetensors")
    rng, records = np.random.default_rng(0), []
    for number in range(rows):
        picture = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).resize((SIDE, SIDE))
        picture.save(buffer := io.BytesIO(), "JPEG", quality=85)
        user, label = f"hospital-{number % USERS:02d}", f"class-{number // USERS % CLASSES}"
        records.append(Record(f"{number:06d}", label, user, buffer.getvalue()))
    classes = [f"class-{k}" for k in range(CLASSES)]
    return {name: write_source(name, records, place / name, classes) for name in FORMATS}


def measure(given: Options, encoder: Path, out: Path) -> dict[str, float]:
    """Seconds and peak of memory of one extraction in its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.run_by", "--data", given["data"]]
    command += ["--layout", given.get("layout", "auto"), "--encoder", str(encoder)]
    command += ["--out", str(out), "--compute", "float32"]
    command += ["--engine", "torch"]  # the least memory, so that what pictures need can be seen
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {status}")
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), "peak_mb": round(usage.ru_maxrss * 1024 / 1e6)}


def formats(rows: int = 100_000, folder: Path | None = None, write: Path | None = None) -> int:
    """The same pictures in every format: are the embeddings equal, and what does memory do?

    JPEG pictures of 32 pixels, 100 users, 10 classes; `embed run` embeds each format in a process
    of its own, with a small untrained encoder. Exit code 1 unless all rows with their labels, users
    and splits are equal and the peaks of memory are within 300 MB of one another.
    """
    table = Table()
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        place = Path(directory)  # written by another process: no child's peak is below its parent's
        for name, given in alone(write_formats, rows, place).items():
            out = place / f"out-{name}"
            table.add({"format": name} | measure(given, place / "encoder.safetensors", out))
        outs = [place / f"out-{row['format']}" for row in table.rows]
        counts = [Counter(rows_of(EmbeddingSet.open(out))) for out in outs]
    equal = all(each == counts[0] for each in counts) and counts[0].total() == rows
    peaks = [row["peak_mb"] for row in table.rows]
    print(f"{rows} pictures; rows equal: {equal}; peaks within {max(peaks) - min(peaks):.0f} MB")
    formats = {row.pop("format"): row for row in table.rows}
    save(write, provenance() | {"rows": rows, "formats": formats, "equal": equal})
    return int(not equal or max(peaks) - min(peaks) > MOST_MB)


if __name__ == "__main__":
    command_line(engines=engines, formats=formats)
