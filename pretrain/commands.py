"""The commands `python -m pretrain simclr|convert|probe`."""

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain import check
from pretrain.cli.output import new_directory, output_directory, write_json
from pretrain.cli.provenance import usual_device, versions
from pretrain.public import function
from pretrain.recipes import SMALL, SimCLRConfig

if TYPE_CHECKING:  # what works is imported by the command that runs
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from pretrain.datasets import ImageSet


LIBRARIES = ("torch", "torchvision", "timm", "numpy")


def _pixels(images: "ImageSet") -> "Tensor":
    """All images, decoded, (N, 3, h, w) uint8."""
    import torch

    return torch.from_numpy(images.images(slice(None)))


@dataclass(frozen=True, kw_only=True)
class Simclr:
    """Pretrain an encoder without labels; the same command continues an interrupted run.

    Under torchrun the processes share every batch.
    """

    data: tuple[str, ...]
    """Public image sets. Their training splits are used, their labels are not."""
    out: Path | None = None
    """Directory to write: encoder.safetensors, report.json, history.png (default: a new one under
    runs/)."""
    markers = ()  # of tyro: options of the group keep its name before theirs
    config: SimCLRConfig = field(default_factory=lambda: SMALL)
    monitor: str | None = None
    """Labelled image set whose kNN accuracy is measured after every epoch."""
    seed: int = 0
    """Seed of the weights, the order and the views."""
    device: str | None = None
    """Device to train on (default: cuda if there is one, else cpu)."""
    overwrite: bool = False
    """Replace a finished directory."""

    def run(self) -> Path:
        """Trains or continues; prints the last epoch, returns the directory."""
        from torch import distributed

        inputs = (*self.data, self.monitor)
        out = output_directory(self.out, "simclr", *inputs, overwrite=self.overwrite)
        check.within("[0, 2^63)", seed=self.seed)
        parallel = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if parallel:
            distributed.init_process_group(
                "nccl" if usual_device(self.device) == "cuda" else "gloo"
            )
        try:
            return self._train(out, first=not parallel or distributed.get_rank() == 0)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"the last checkpoint is in {out}.partial") from stop
        finally:
            if parallel:
                distributed.destroy_process_group()

    def _train(self, out: Path, *, first: bool) -> Path:
        import torch

        from pretrain import simclr
        from pretrain.encoder import encoder_hash, save_encoder
        from pretrain.sources import open_images

        device = usual_device(self.device)
        unlabelled: Any = {"splits": ["train"], "columns": "label=,user="}
        images = torch.cat([_pixels(open_images(s, **unlabelled)) for s in self.data])
        partial, start = out.with_name(f"{out.name}.partial"), time.perf_counter()
        encoder, history = simclr.pretrain(
            images,
            self.config,
            torch.Generator().manual_seed(self.seed),
            directory=partial,
            monitor=None if self.monitor is None else knn_monitor(open_images(self.monitor)),
            device=device,
        )
        if not first:
            return out
        report = {
            "command": "simclr",
            "config": asdict(self.config),
            "data": [Path(source).name for source in self.data],
            "images": len(images),
            "seed": self.seed,
            "encoder_hash": encoder_hash(encoder),
            "parameters": sum(p.numel() for p in encoder.parameters()),
            "history": history,
            "seconds_of_last_run": round(time.perf_counter() - start, 1),
            "device": device,
            "versions": versions(*LIBRARIES),
        }
        with new_directory(out, overwrite=self.overwrite) as directory:
            save_encoder(encoder.cpu(), directory / "encoder.safetensors")
            write_json(directory / "report.json", report)
            _draw_history(history).savefig(directory / "history.png", dpi=150)
        shutil.rmtree(partial)
        print(f"{json.dumps(history[-1])}\nencoder in {out}")
        return out


pretrain_simclr = function("pretrain_simclr", Simclr)


def knn_monitor(images: "ImageSet") -> "Callable[[nn.Module], dict[str, float]]":
    """Monitor of the kNN accuracy: up to 2,000 rows, test rows if any, against 10,000 others."""
    import numpy as np

    from pretrain.probe import embed_all, knn_accuracy

    images.need_labels()
    keys, queries = np.flatnonzero(images.split == 0), np.flatnonzero(images.split == 1)
    if not len(queries):
        keys, queries = keys[: len(keys) * 5 // 6], keys[len(keys) * 5 // 6 :]
    parts = [images.take(rows) for rows in (keys[:10_000], queries[:2000])]
    pixels = [_pixels(part) for part in parts]

    def measure(encoder: "nn.Module") -> dict[str, float]:
        train, test = (embed_all(encoder, p) for p in pixels)
        return {"knn": knn_accuracy(train, parts[0].labels, test, parts[1].labels)}

    return measure


def _draw_history(history: list[dict[str, float]]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel="NT-Xent loss")
    epochs = [entry["epoch"] for entry in history]
    axes.plot(epochs, [entry["loss"] for entry in history], marker=".", color="C0")
    if "knn" in history[-1]:
        right = axes.twinx()
        right.plot(epochs, [entry.get("knn", math.nan) for entry in history], color="C1")
        right.set_ylabel("kNN accuracy", color="C1")
    return figure


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Turn a SimCLRv2 checkpoint of TensorFlow into safetensors."""

    checkpoint: Path
    """Path of the checkpoint, without `.index`."""
    arch: str
    """Architecture, such as r50_1x_sk1."""
    out: Path | None = None
    """Directory to write: weights.safetensors, report.json (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Reads, checks every variable, writes."""
        from pretrain import simclr_v2
        from pretrain.encoder import encoder_hash
        from pretrain.encoders.weights import write_tensors

        out = output_directory(self.out, "convert", self.checkpoint, overwrite=self.overwrite)
        network = simclr_v2.from_variables(self.arch, simclr_v2.read_tensorflow(self.checkpoint))
        report = {
            "command": "convert",
            "arch": self.arch,
            "checkpoint": self.checkpoint.name,
            "encoder_hash": encoder_hash(network),
            "embedding_dim": network.embedding_dim,
            "versions": versions(*LIBRARIES),
        }
        with new_directory(out, overwrite=self.overwrite) as directory:
            tensors = network.state_dict()
            write_tensors(directory / "weights.safetensors", tensors, {"arch": self.arch})
            write_json(directory / "report.json", report)
        print(f"{self.arch}: {network.embedding_dim} dimensions in {out}")
        return out


convert = function("convert", Convert)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measure an encoder on labelled images by kNN and a linear probe."""

    data: str
    """Labelled image set with a training and a test split."""
    encoder: str = "simclr-small"
    """Encoder, named as for `python -m embed run`."""
    weights: str | None = None
    """Weights for an --encoder that is named by its architecture, as for `python -m embed run`."""
    out: Path | None = None
    """Directory to write: report.json (default: a new one under runs/)."""
    device: str | None = None
    """Device to compute embeddings on (default: cuda if there is one, else cpu)."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Measures and prints percentages."""
        import torch

        from pretrain.encoder import build_encoder, encoder_hash, origin, without_directory
        from pretrain.probe import embed_all, knn_accuracy, linear_accuracy
        from pretrain.sources import open_images

        inputs = (self.data, self.encoder, self.weights)
        out = output_directory(self.out, "probe", *inputs, overwrite=self.overwrite)
        images = open_images(self.data)
        images.need_labels()
        train, test = (images.take(images.split == split) for split in (0, 1))
        if not (len(train) and len(test)):
            raise ValueError(f"{self.data} must have a training and a test split, got one")
        encoder = build_encoder(self.encoder, weights=self.weights)
        device = usual_device(self.device)
        encoder = encoder.eval().to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        x, z = (embed_all(encoder, _pixels(part), encoder.preprocess) for part in (train, test))
        rows = (x, train.labels, z, test.labels)
        scores = {"knn": knn_accuracy(*rows), "linear": linear_accuracy(*rows)}
        report: dict[str, Any] = {
            "command": "probe",
            "data": images.name,
            "rows": [len(train), len(test)],
            "encoder": without_directory(self.encoder),
            "encoder_hash": encoder_hash(encoder),
            "weights": origin(self.encoder, self.weights),
            "preprocess": encoder.preprocess.to_json(),
            "accuracy": scores,
            "versions": versions(*LIBRARIES),
        }
        with new_directory(out, overwrite=self.overwrite) as directory:
            write_json(directory / "report.json", report)
        print(json.dumps(scores, indent=2))
        return out


probe = function("probe", Probe)
