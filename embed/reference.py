"""`python -m embed import-reference`: embeddings of the paper's reference implementation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embed.store import INFERRED, EmbeddingSet, read_array, write_companions, write_rows
from pretrain.cli.output import new_directory, output_directory
from pretrain.datasets import TEST, TRAIN
from pretrain.public import function


@dataclass(frozen=True, kw_only=True)
class ImportReference:
    """Import the reference implementation's `code_space_*.npy`, `labels_*.npy`, `userid_*.npy`."""

    source: Path
    """Directory of the files."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    num_classes: int | None = None
    """Number K of classes: labels are 0 to K - 1 (default: counted from the labels, which serves
    simulations only)."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Writes one embedding set of all of them, streamed.

        Parts with test, val or eval in their name become the test split. Users are kept only if
        every part has them.

        Raises:
            ValueError: no such files, a part without labels, arrays that do not fit together, a
                label that is not in [0, num_classes), or a row that is not finite.
        """
        from pretrain.datasets import declared_classes

        source = self.source
        out = output_directory(self.out, "import-reference", source, overwrite=self.overwrite)
        codes = sorted(source.glob("code_space_*.npy"))
        if not codes:
            raise ValueError(f"{source} must hold code_space_*.npy, got none")
        parts = [_read_part(path) for path in codes]
        dims = {part.dim for part in parts}
        if len(dims) > 1:
            raise ValueError(f"{source}: all parts must have one dimension, got {sorted(dims)}")
        users = [part.users for part in parts if part.users is not None]
        labels = np.concatenate([part.labels for part in parts])
        names = _class_names(labels, declared_classes(self.num_classes))
        dtype = max(part.embeddings.dtype for part in parts)
        for path, part in zip(codes, parts, strict=True):
            part.check_finite(str(path))
        blocks = (block.astype(dtype, copy=False) for part in parts for block in part.blocks())
        with new_directory(out, overwrite=self.overwrite) as partial:
            write_rows(partial / "embeddings.npy", blocks, (len(labels), dims.pop()))
            write_companions(
                partial,
                labels=labels,
                users=np.concatenate(users) if len(users) == len(parts) else None,
                split=np.concatenate([part.split for part in parts]),
                meta={
                    "data": source.name,
                    "encoder": "reference implementation",
                    **names,
                    "parts": [path.name for path in codes],
                },
            )
        done = EmbeddingSet.open(out)
        print(f"{len(done)} embeddings of dimension {done.dim} in {out}")
        return out


import_reference = function("import_reference", ImportReference)


def _class_names(labels: np.ndarray, declared: tuple[str, ...]) -> dict[str, Any]:
    from pretrain.datasets import check_labels

    if declared:
        check_labels("labels", labels, len(labels), len(declared))
        return {"class_names": list(declared), "classes": "declared"}
    return {"class_names": [str(k) for k in range(labels.max() + 1)], "classes": INFERRED}


def _read_part(path: Path) -> EmbeddingSet:
    suffix = path.name.removeprefix("code_space_")
    users = path.with_name(f"userid_{suffix}")
    embeddings = read_array(path)
    if embeddings.ndim < 2:
        raise ValueError(f"{path} must be (n, p), got shape {embeddings.shape}")
    embeddings = embeddings.reshape(len(embeddings), -1) if embeddings.ndim > 2 else embeddings
    is_test = any(word in suffix.lower() for word in ("test", "val", "eval"))
    try:
        return EmbeddingSet(
            embeddings=embeddings,
            labels=_integers(path.with_name(f"labels_{suffix}")),
            users=_integers(users) if users.exists() else None,
            split=np.full(len(embeddings), TEST if is_test else TRAIN, np.uint8),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _integers(path: Path) -> np.ndarray:
    """Whole numbers (n,), whatever their dtype; one-hot rows become their index."""
    values = np.array(read_array(path))
    if values.ndim == 2 and values.shape[1] > 1:
        one_hot = (values.sum(1) == 1).all() and np.isin(values, (0, 1)).all()
        if not one_hot:
            raise ValueError(f"{path.name} must be labels or one-hot rows, got {values.shape}")
        return values.argmax(1)
    if values.size != (len(values) if values.ndim else 0):
        raise ValueError(f"{path.name} must be labels or one-hot rows, got {values.shape}")
    values = values.reshape(len(values))
    with np.errstate(invalid="ignore"):  # NaN: reported below
        whole = values.astype(np.int64)
    if not (np.isfinite(values).all() and (whole == values).all()):
        raise ValueError(f"{path.name} must be whole numbers, got {values.dtype}")
    return whole
