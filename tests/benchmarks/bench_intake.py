r"""The same pictures in every format: are the embeddings equal, and what does memory do?

    python tests/benchmarks/bench_intake.py [--rows 100000] [--folder DIR] \
        [--write FILE]

JPEG pictures of 32 pixels, 100 users, 10 classes. They are written as folders of users and classes,
as a CSV table of files, as Parquet with a single row group, as a WebDataset shard and as a Hugging
Face data set; `embed run` embeds each in a process of its own, with a small untrained encoder. Exit
code 1 unless all rows with their labels, users and splits are equal and the peaks of memory are
within 300 MB of one another.
"""

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import tyro

from embed import EmbeddingSet
from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from tests.train_distributed.research.audit.neighbours import Options, Record, rows_of, write_source

SIDE, USERS, CLASSES, MOST_MB = 32, 100, 10, 300
FORMATS = ("user folders", "csv", "parquet", "wds", "hf")
ROOT = Path(__file__).parents[2]


def write_formats(rows: int, place: Path) -> dict[str, Options]:
    """Every format and an encoder below `place`; the options with which each format is read."""
    import torch
    from PIL import Image

    from pretrain.encoder import save_encoder
    from pretrain.resnet import ResNetConfig, SmallResNet

    network = SmallResNet(ResNetConfig((4, 6), (1, 1)), torch.Generator().manual_seed(0))
    save_encoder(network, place / "encoder.safetensors")
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


def main(rows: int = 100_000, folder: Path | None = None, write: Path | None = None) -> int:
    """Prints and writes a line for every format."""
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        place = Path(directory)
        # In a process of its own: a child's peak is never below that of its parent.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            formats = pool.apply(write_formats, (rows, place))
            pool.close()
            pool.join()
        results = dict[str, dict[str, float]]()
        print(f"{'format':13} {'seconds':>8} {'peak MB':>8}")
        for name, given in formats.items():
            found = measure(given, place / "encoder.safetensors", place / f"out-{name}")
            results[name] = found
            print(f"{name:13} {found['seconds']:8.1f} {found['peak_mb']:8.0f}", flush=True)
        counts = [Counter(rows_of(EmbeddingSet.open(place / f"out-{name}"))) for name in results]
    equal = all(each == counts[0] for each in counts) and counts[0].total() == rows
    peaks = [row["peak_mb"] for row in results.values()]
    near = max(peaks) - min(peaks)
    print(f"{rows} pictures; rows equal: {equal}; peaks within {near:.0f} MB")
    save(write, provenance() | {"rows": rows, "formats": results, "equal": equal})
    return 0 if equal and near <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
