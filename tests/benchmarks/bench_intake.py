r"""The same pictures in every format: are the embeddings equal, and what does memory do?

    python tests/benchmarks/bench_intake.py [--rows 100000] [--folder DIR] \
        [--out results/speed/intake]

JPEG pictures of 32 pixels, 100 users, 10 classes. They are written as folders of users and classes,
as a CSV table of those files, as Parquet with a single row group, as WebDataset shards and as a
Hugging Face data set; `embed run` embeds each in a process of its own, with a small untrained
encoder. Exit code 1 unless all rows, labels, users and splits are equal and the peaks of memory are
within 300 MB of one another.
"""

import argparse
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embed import EmbeddingSet
from pretrain.cli.output import new_directory
from pretrain.cli.provenance import provenance

SIDE, USERS, CLASSES, SHARD, MOST_MB = 32, 100, 10, 10_000, 300
ROOT = Path(__file__).parents[2]
Row = tuple[str, str, str, bytes]  # path, user, class, JPEG


def pictures(rows: int) -> Iterator[Row]:
    """In the order in which a folder is read: by user, class and name."""
    from PIL import Image

    each = rows // (USERS * CLASSES)
    rng = np.random.default_rng(0)
    for user in range(USERS):
        for label in range(CLASSES):
            for number in range(each):
                coarse = rng.integers(0, 256, (4, 4, 3), np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(coarse).resize((SIDE, SIDE)).save(buffer, "JPEG", quality=85)
                names = (f"hospital-{user:02d}", f"class-{label}")
                yield f"{names[0]}/{names[1]}/{number:04d}.jpg", *names, buffer.getvalue()


def write(rows: int, place: Path) -> dict[str, list[str]]:
    """Every format and an encoder below `place`; the options with which each format is read."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    from pretrain.encoder import save_encoder
    from pretrain.resnet import ResNetConfig, SmallResNet

    network = SmallResNet(ResNetConfig((4, 6), (1, 1)), torch.Generator().manual_seed(0))
    save_encoder(network, place / "encoder.safetensors")

    datasets.disable_progress_bars()
    held = list(pictures(rows))
    with (place / "table.csv").open("w") as file:
        file.write("path,label,user\n")
        for path, user, label, content in held:
            target = place / "folder" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            file.write(f"folder/{path},{label},{user}\n")
    for start in range(0, len(held), SHARD):
        with tarfile.open(place / f"shard-{start // SHARD:03d}.tar", "w") as tar:
            for path, user, label, content in held[start : start + SHARD]:
                fields = json.dumps({"label": label, "user": user}).encode()
                for suffix, data in (("jpg", content), ("json", fields)):
                    info = tarfile.TarInfo(f"{path.removesuffix('.jpg')}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    columns: dict[str, Any] = {
        "image": [{"bytes": content, "path": path} for path, _, _, content in held],
        "label": [label for _, _, label, _ in held],
        "user": [user for _, user, _, _ in held],
    }
    pq.write_table(pa.table(columns), place / "table.parquet", row_group_size=rows)
    kinds = {name: datasets.Value("string") for name in ("label", "user")}
    features = datasets.Features({"image": datasets.Image()} | kinds)
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(place / "saved")
    return {
        "folder": [str(place / "folder"), "--layout", "user-class"],
        "csv": [f"csv:{place / 'table.csv'}"],
        "parquet": [f"parquet:{place / 'table.parquet'}"],
        "wds": [f"wds:{place / 'shard-*.tar'}"],
        "hf": [f"hf:{place / 'saved'}"],
    }


def measure(options: list[str], encoder: Path, out: Path) -> dict[str, float]:
    """Seconds and peak of memory of one extraction in its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.run_by", "--data", *options]
    command += ["--encoder", str(encoder), "--out", str(out), "--compute", "float32"]
    command += ["--engine", "torch"]  # the least memory, so that what pictures need can be seen
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {status}")
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), "peak_mb": round(usage.ru_maxrss * 1024 / 1e6)}


def compare(found: dict[str, EmbeddingSet]) -> dict[str, float]:
    """The largest difference of any number to the folder's, by format."""
    first, largest = found["folder"], {}
    for name, other in found.items():
        for part in ("labels", "users", "split"):
            if not np.array_equal(getattr(first, part), getattr(other, part)):
                raise SystemExit(f"{part} of {name} differ from those of the folder")
        if other.meta["user_names"] != first.meta["user_names"]:
            raise SystemExit(f"names of the users of {name} differ from those of the folder")
        pairs = zip(first.blocks(), other.blocks(), strict=True)
        largest[name] = max(float(np.abs(a - b).max()) for a, b in pairs)
    return largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=None, help="where to write the pictures")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as directory:
        place = Path(directory)
        # In a process of its own: a child's peak is never below that of its parent.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            formats = pool.apply(write, (options.rows, place))
            pool.close()
            pool.join()
        results: dict[str, dict[str, float]] = {}
        for name, given in formats.items():
            results[name] = measure(given, place / "encoder.safetensors", place / f"out-{name}")
            print(name, results[name], flush=True)
        sets = {name: EmbeddingSet.open(place / f"out-{name}") for name in results}
        for name, difference in compare(sets).items():
            results[name]["largest_difference"] = difference
    lines = [f"{'format':8} {'seconds':>8} {'peak MB':>8} {'largest difference':>20}"]
    lines += [
        f"{name:8} {row['seconds']:8.1f} {row['peak_mb']:8.0f} {row['largest_difference']:20g}"
        for name, row in results.items()
    ]
    peaks = [row["peak_mb"] for row in results.values()]
    lines.append(f"{options.rows} pictures; peaks within {max(peaks) - min(peaks):.0f} MB")
    print("\n".join(lines))
    if options.out is not None:
        with new_directory(options.out, overwrite=True) as partial:
            report = provenance() | {"rows": options.rows, "formats": results}
            (partial / "report.json").write_text(json.dumps(report, indent=1) + "\n")
            (partial / "table.txt").write_text("\n".join(lines) + "\n")
    equal = not any(row["largest_difference"] for row in results.values())
    return 0 if equal and max(peaks) - min(peaks) <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
