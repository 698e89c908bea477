"""Embeddings with their labels, users and split, on disk or in memory."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from embed.encoding import Encoding
from pretrain import check
from pretrain.cli.json_text import read_object
from pretrain.cli.output import new_directory
from pretrain.datasets import EVALUATION, UNLABELLED, ImageSet, decode_name, encode_names

FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))
DTYPES = {"labels": np.int64, "users": np.int64, "split": np.uint8}
COMPANIONS = {**DTYPES, "findings": np.int8}
ASK = "ask"  # `unknown` in meta.json: findings may be unknown, and are told apart from absent ones
INFERRED = "inferred"  # classes counted from the labels that occur
BLOCK = 1 << 22  # size: numbers that are read, made or looked at together


@dataclass(frozen=True, kw_only=True)
class EmbeddingSet:
    """N embedded images. Unlabelled sets have the label -1 in every row.

    A set of several findings a picture has no classes: its labels are -1, and `class_names` of its
    `meta` name the findings. Unknown ones are refused unless `meta` has `"unknown": "ask"`.

    Raises:
        ValueError: at construction, where the arrays do not fit together.
    """

    embeddings: np.ndarray  # (N, p) float16, float32 or float64; memory-mapped if opened
    labels: np.ndarray  # (N,) int64; all -1: unlabelled
    users: np.ndarray | None = None  # (N,) int64
    split: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))  # TRAIN, TEST, …
    meta: dict[str, Any] = field(default_factory=dict)
    names: np.ndarray | None = None  # (N,) of the images, as str or UTF-8 bytes
    findings: np.ndarray | None = None  # (N, K) int8: 1 present, 0 absent, -1 unknown
    directory: Path | None = field(default=None, init=False, compare=False)  # it was opened from

    def __post_init__(self) -> None:
        for name in ("embeddings", *COMPANIONS, "names"):
            if not isinstance(getattr(self, name), np.ndarray | None):
                kind = type(getattr(self, name)).__name__
                raise ValueError(f"{name} must be a NumPy array, got a {kind}")
        x = self.embeddings
        if x.ndim != 2 or not x.size or x.dtype not in FLOATS:
            raise ValueError(f"embeddings must be a float (N, p), got {x.dtype} {x.shape}")
        if not self.split.size:
            object.__setattr__(self, "split", np.zeros(len(x), np.uint8))
        for name, target in DTYPES.items():
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != (len(x),) or not np.issubdtype(values.dtype, np.integer):
                raise ValueError(
                    f"{name} must be {len(x)} integers, got {values.dtype} {values.shape}"
                )
            unlabelled = name == "labels" and (values == UNLABELLED).all()
            unknown = name == "split" and values.max() > EVALUATION
            if unknown or (values.min() < 0 and not unlabelled):
                rule = {"split": "0, 1 or 2", "labels": ">= 0, or -1 in every row"}.get(
                    name, ">= 0"
                )
                raise ValueError(f"{name} must be {rule}, got {values.min()} to {values.max()}")
            object.__setattr__(self, name, values.astype(target, copy=False))
        names, classes = self.names, self.meta.get("class_names", [])
        if names is not None and (names.shape != (len(x),) or names.dtype.kind not in "SU"):
            raise ValueError(f"names must be {len(x)} strings, got {names.dtype} {names.shape}")
        if not isinstance(classes, list | tuple) or len(set(map(str, classes))) < len(classes):
            raise ValueError(f"class_names must be a list of distinct names, got {classes}")
        check.no_nan(class_names=classes)
        dropped = self.meta.get("dropped_rows", 0)
        if not isinstance(dropped, int) or dropped < 0:
            raise ValueError(f"dropped_rows must be a whole number >= 0, got {dropped!r}")
        if self.findings is not None:
            self._check_findings(self.findings, len(classes))
        if classes and self.labels.max() >= len(classes):
            most = self.labels.max()
            raise ValueError(f"labels must be < {len(classes)} class names, got {most}")

    def _check_findings(self, findings: np.ndarray, named: int) -> None:
        rows, found = len(self.embeddings), (findings.dtype, findings.shape)
        whole = findings.ndim == 2 and np.issubdtype(findings.dtype, np.integer)
        if not whole or len(findings) != rows or findings.shape[1] < 2:
            raise ValueError(f"findings must be {rows} x 2 or more integers, got {found}")
        if named and named != findings.shape[1]:
            raise ValueError(f"findings must be named by {findings.shape[1]} names, got {named}")
        if (self.labels != UNLABELLED).any():
            raise ValueError("labels must be -1 in every row of a set with findings, got others")
        asked = self.meta.get("unknown") == ASK
        least, most = int(findings.min()), int(findings.max())
        if most > 1 or least < (-1 if asked else 0):
            rule = "0, 1 or -1 (unknown)" if asked else "0 or 1"
            raise ValueError(f"findings must be {rule}, got {least} to {most}")
        object.__setattr__(self, "findings", findings.astype(np.int8, copy=False))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> np.ndarray:
        """Training targets of the rows: (N, K) findings, or (N,) labels where there are none."""
        return self.labels if self.findings is None else self.findings

    @property
    def labelled(self) -> bool:
        """Whether its rows have labels, which learning and measuring need."""
        return self.findings is not None or bool(self.labels[0] != UNLABELLED)

    def need_labels(self, called: str = "embeddings") -> None:
        """Raises ValueError unless its rows have labels; `called` names it in the error."""
        if not self.labelled:
            where = self.directory or f"a set of {len(self)} rows"
            raise ValueError(f"{called} must have labels to learn from, got {where} without any")

    def check_finite(self, called: str = "embeddings") -> None:
        """Raises ValueError naming the first row that holds NaN or infinity, and its file."""
        start = 0
        for block in self.blocks():
            finite = np.isfinite(block)
            if not finite.all():
                row = int(finite.all(1).argmin())
                value = block[row][~finite[row]][0]
                raise ValueError(
                    f"{called} must be finite, got {value} in {self.place(start + row)}"
                )
            start += len(block)

    def name(self, row: int) -> str:
        """Name of a row's image, such as its path below the data; else the row's number."""
        return f"row {row}" if self.names is None else decode_name(self.names[row])

    def place(self, row: int) -> str:
        """Number, file and image of a row, as far as known, for errors."""
        image = "" if self.names is None else f" ({self.name(row)})"
        file = "" if self.directory is None else f" of {self.directory / 'embeddings.npy'}"
        return f"row {row}{file}{image}"

    @property
    def declared_classes(self) -> tuple[str, ...]:
        """Declared names of the classes; empty if none were declared.

        Classes that an extraction counted from the labels are not declared: one private record
        could add a class. Such a set has `"classes": "inferred"` in its meta.json; sets of older
        extractions, which lack the entry, counted them as well.
        """
        names = tuple(map(str, self.meta.get("class_names", ())))
        silent = "encoder" in self.meta and "classes" not in self.meta
        counted = silent and names == tuple(map(str, range(len(names))))
        return () if counted or self.meta.get("classes") == INFERRED else names

    def check_classes(self, names: tuple[str, ...], why: str) -> None:
        """Raises ValueError unless its labels stand for these names; the error says `why`.

        Counted names bind like declared ones, unless either list is 0, 1, …, as labels are anyway.
        """
        own = tuple(map(str, self.meta.get("class_names", ())))
        if own != names and (self.declared_classes or not numbered(own, names)):
            raise ValueError(f"class_names must be {names} {why}, got {own}")

    @property
    def meta_of_rows(self) -> dict[str, Any]:
        """`meta` without the hash of the values, for a set of other rows."""
        return {name: value for name, value in self.meta.items() if name != "content_hash"}

    @property
    def is_compared(self) -> bool:
        """Whether its rows are raw, or made by a transform that was fitted on none of them."""
        made_by = self.meta.get("transform")
        return made_by is None or (isinstance(made_by, dict) and made_by.get("compared") is True)

    @property
    def encoding(self) -> Encoding | None:
        """Encoder and preprocessing of the rows; None if unknown."""
        return Encoding.of(self.meta)

    @property
    def parts(self) -> tuple[int, ...]:
        """Columns of each encoder whose rows lie side by side; empty for rows of one encoder.

        Raises:
            ValueError: they do not come to all columns.
        """
        parts = () if "transform" in self.meta else tuple(self.meta.get("parts", ()))
        if parts and not (all(type(part) is int for part in parts) and sum(parts) == self.dim):
            raise ValueError(f"parts must be whole and come to {self.dim} columns, got {parts}")
        return parts

    @property
    def held_out_seed(self) -> int | None:
        """Seed of the held-out rows; None: no rows are held out, or the operating system drew."""
        held_out = self.meta.get("held_out")
        return held_out.get("seed") if isinstance(held_out, dict) else None

    @property
    def dropped_rows(self) -> int:
        """Number of private rows that an earlier version removed from a public set."""
        return self.meta.get("dropped_rows", 0)

    @property
    def dim(self) -> int:
        """Number of columns p."""
        return self.embeddings.shape[1]

    @classmethod
    def open(cls, directory: Path | str) -> "EmbeddingSet":
        """Memory-maps the set that `save` or `python -m embed run` wrote.

        Raises:
            ValueError: naming the file that is missing, damaged or does not fit.
        """
        path = Path(directory)
        if not path.is_dir():
            raise ValueError(f"embeddings must be an existing directory, got {path}")
        meta = read_object(path / "meta.json")
        places = {name: path / f"{name}.npy" for name in ("embeddings", *COMPANIONS, "names")}
        optional = ("users", "names", "findings")
        found = {k: v for k, v in places.items() if k not in optional or v.exists()}
        arrays = {name: read_array(place) for name, place in found.items()}
        try:
            opened = cls(**arrays, meta=meta)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        object.__setattr__(opened, "directory", path)
        return opened

    def subset(self, rows: np.ndarray | slice) -> "EmbeddingSet":
        """The rows selected by a mask, indices or a slice, in memory unless it is a slice."""
        kept = {"embeddings": self.embeddings[rows], **columns(self, rows)}
        return EmbeddingSet(**kept, meta=self.meta_of_rows)

    def blocks(self) -> Iterator[np.ndarray]:
        """The rows in order, in blocks of bounded size, (b, p)."""
        size = max(1, BLOCK // self.dim)
        for start in range(0, len(self), size):
            yield np.asarray(self.embeddings[start : start + size])

    def content_hash(self) -> str:
        """SHA-256 of the embedding values; raises ValueError if `meta` states another."""
        found, stated = self._hash, self.meta.get("content_hash", self._hash)
        if found != stated:
            raise ValueError(
                f"embeddings must be those of the content_hash in meta.json, {stated}, got changed "
                f"ones{'' if self.directory is None else f' in {self.directory}'}, {found}"
            )
        return found

    @cached_property
    def _hash(self) -> str:
        return hash_rows(self.blocks())

    def save(self, directory: Path, *, overwrite: bool = False) -> None:
        """Writes the set; it appears whole or not at all."""
        with new_directory(Path(directory), overwrite=overwrite) as partial:
            write_rows(partial / "embeddings.npy", self.blocks(), self.embeddings.shape)
            meta = self.meta | {"content_hash": self.content_hash()}
            write_companions(partial, **columns(self), meta=meta)


def numbered(*names: Sequence[str]) -> bool:
    """Whether one of several lists of class names is the numbers from 0, as labels are."""
    return any(tuple(each) == tuple(map(str, range(len(each)))) for each in names)


def columns(rows: EmbeddingSet | ImageSet, kept: Any = slice(None)) -> dict[str, Any]:
    """Labels, users, split, names and findings of some rows; None where the set has none."""
    held = ("labels", "users", "split", "names", "findings")
    values = {name: getattr(rows, name, None) for name in held}
    return {name: None if held is None else held[kept] for name, held in values.items()}


def select_rows(blocks: Iterable[np.ndarray], kept: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of all blocks that `kept`, (N,) bool, selects; one block for each."""
    start = 0
    for block in blocks:
        yield block[kept[start : start + len(block)]]
        start += len(block)


def hash_rows(blocks: Iterable[np.ndarray]) -> str:
    """SHA-256 over the values of all rows as float32; it does not depend on the blocks."""
    digest = hashlib.sha256()
    for block in blocks:
        with np.errstate(over="ignore"):  # float64 rows beyond float32 hash as infinite
            digest.update(np.ascontiguousarray(block, dtype=np.float32).tobytes())
    return digest.hexdigest()


def read_blocks(path: Path) -> Iterator[np.ndarray]:
    """Rows of an npy file in bounded blocks, not mapped: pages would count as this process's."""
    mapped = read_array(path)
    width = mapped.shape[1] * mapped.itemsize
    size = max(1, BLOCK // mapped.shape[1])
    with path.open("rb") as file:
        file.seek(mapped.offset)
        for first in range(0, len(mapped), size):
            data = file.read(min(size, len(mapped) - first) * width)
            yield np.frombuffer(data, mapped.dtype).reshape(-1, mapped.shape[1])


def write_rows(path: Path, blocks: Iterable[np.ndarray], shape: tuple[int, ...]) -> None:
    """Streams blocks of rows, all of one dtype, into an npy file of the given shape."""
    with path.open("wb") as file:
        for index, block in enumerate(blocks):
            if not index:
                write_header(file, shape, block.dtype)
            file.write(np.ascontiguousarray(block).tobytes())


def write_header(file: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Writes the npy header of a row-major array."""
    described = np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": described, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)


def write_companions(
    directory: Path, meta: dict[str, Any], *, names: np.ndarray | None = None, **numbers: Any
) -> None:
    """Writes all files of a set but its embeddings; `numbers` are those of `COMPANIONS`."""
    for name, values in numbers.items():
        if values is not None:
            np.save(directory / f"{name}.npy", values.astype(COMPANIONS[name]))
    if names is not None:
        encoded = encode_names(names.tolist()) if names.dtype.kind == "U" else names
        np.save(directory / "names.npy", encoded)
    (directory / "meta.json").write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")


def read_array(path: Path) -> np.memmap:
    """Array of an npy file, on the disk; raises ValueError if it is missing or damaged."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
        raise ValueError(f"{path} must be a complete npy file, got: {error}") from error
