"""Writes records in every format that `embed run` reads."""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.intake.decode import decode
from pretrain.sources import EMNIST_CLASSES, EMNIST_SIDE
from tests.train_distributed.research.audit.pipeline.records import Record

RESIZE = 32
ARRAYS = ("npz", "leaf")  # hold pixels, so that no picture of theirs is unreadable
Options = dict[str, Any]  # of `embed run`
Writer = Callable[[Sequence[Record], Path, Sequence[str]], Options]


def _folders(layout: str, place: str) -> Writer:
    def written(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
        for record in records:
            _write(folder / place.format(r=record), record.data)
        return {"data": str(folder), "layout": layout}

    return written


def _csv(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    for record in records:
        _write(folder / "pictures" / f"{record.name}.png", record.data)
    with (folder / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "user"])
        table.writerows([f"pictures/{r.name}.png", r.label, r.user] for r in records)
    return {"data": f"csv:{folder / 'table.csv'}"}


def _npz(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    pixels = np.stack([decode(record.data, record.name, size=RESIZE) for record in records])
    return _saved(folder / "set.npz", records, x_train=pixels)


def _npz_files(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    offsets = np.cumsum([0, *(len(record.data) for record in records)])
    blob = np.frombuffer(b"".join(record.data for record in records), np.uint8)
    return _saved(folder / "set.npz", records, jpeg_train=blob, off_train=offsets)


def _saved(path: Path, records: Sequence[Record], **pictures: np.ndarray) -> Options:
    users = np.array([record.user for record in records])
    labels = np.array([record.label for record in records])
    arrays: dict[str, Any] = {**pictures, "y_train": labels, "writer_train": users}
    np.savez(path, **arrays)
    return {"data": str(path)}


def _parquet(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(_pictures(records)), folder / "set.parquet")
    return {"data": f"parquet:{folder / 'set.parquet'}"}


def _hugging_face(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    import datasets

    kinds = {"label": datasets.Value("string"), "user": datasets.Value("string")}
    features = datasets.Features({"image": datasets.Image(), **kinds})
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict(_pictures(records), features=features)
    made.save_to_disk(str(folder / "set"))
    return {"data": f"hf:{folder / 'set'}"}


def _web_dataset(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    with tarfile.open(folder / "set.tar", "w") as tar:
        for record in records:
            members = {"png": record.data, "cls": record.label, "user": record.user}
            for extension, content in members.items():
                data = content.encode() if isinstance(content, str) else content
                member = tarfile.TarInfo(f"{record.name}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return {"data": f"wds:{folder / 'set.tar'}"}


def _leaf(records: Sequence[Record], folder: Path, classes: Sequence[str]) -> Options:
    """Federated EMNIST's classes take the place of the records', in their order."""
    users: dict[str, dict[str, list[Any]]] = {}
    for record in records:
        held = users.setdefault(record.user, {"x": [], "y": []})
        grey = decode(record.data, record.name, size=EMNIST_SIDE).mean(2) / 255
        held["x"].append(grey.flatten().tolist())
        held["y"].append(classes.index(record.label))
    for split in ("train", "test"):
        (folder / split).mkdir()
    content = {"users": list(users), "user_data": users}
    (folder / "train" / "data.json").write_text(json.dumps(content))
    return {"data": f"fed-emnist:{folder}", "splits": ("train",), "class_names": EMNIST_CLASSES}


SOURCES: dict[str, Writer] = {
    "class folders": _folders("class", "{r.label}/{r.name}.png"),
    "user folders": _folders("user-class", "{r.user}/{r.label}/{r.name}.png"),
    "flat folder": _folders("flat", "{r.name}.png"),
    "csv": _csv,
    "npz": _npz,
    "npz of files": _npz_files,
    "parquet": _parquet,
    "hf": _hugging_face,
    "wds": _web_dataset,
    "leaf": _leaf,
}


def write_source(
    name: str, records: Sequence[Record], folder: Path, classes: Sequence[str]
) -> Options:
    """Options of `embed run` that read the records, which are written into a new folder."""
    folder.mkdir(parents=True)
    named = sorted(records, key=lambda record: (record.label, record.name))
    given = SOURCES[name](named, folder, classes)
    names = () if name == "flat folder" else tuple(classes)
    return {"class_names": names, "resize": RESIZE} | given


def _pictures(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Columns of a table with whole files."""
    return {
        "image": [{"bytes": r.data, "path": f"{r.name}.png"} for r in records],
        "label": [r.label for r in records],
        "user": [r.user for r in records],
    }


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
