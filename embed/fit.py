"""Fits the public transform to one embedding set and applies it to another."""

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from embed.store import EmbeddingSet, write_companions, write_rows
from embed.transform import PublicTransform
from pretrain.output import new_directory

SHARED_ROWS = 0.01  # share of private rows that may also be public: blank images repeat


def shared_rows(public: EmbeddingSet, private: EmbeddingSet) -> int:
    """Number of private rows that are, value for value, among the public ones.

    Values are compared to half precision, in which either set may have been stored.
    """
    known = set(_row_digests(public))
    return sum(digest in known for digest in _row_digests(private))


def _row_digests(rows: EmbeddingSet) -> Iterator[bytes]:
    for block in rows.blocks():
        for row in _half(np.ascontiguousarray(block, dtype=np.float32)):
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _half(values: np.ndarray) -> np.ndarray:
    """Float32 values with the 11 significant bits of float16, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return rounded & np.uint32(0xFFFFE000)


def refuse_leak(public: EmbeddingSet, private: EmbeddingSet) -> None:
    """Checks that what counts as public is not the private set itself, or part of it.

    Raises:
        ValueError: more than 1 % of the private rows are among the public ones.
    """
    same = public.content_hash() == private.content_hash()
    if same or (public.dim == private.dim and not _disjoint(public, private)):
        raise ValueError(
            "public must be another set than the one it is applied to "
            "(or pass --i-know-this-leaks), got shared rows"
        )


def _disjoint(public: EmbeddingSet, private: EmbeddingSet) -> bool:
    return shared_rows(public, private) <= SHARED_ROWS * len(private)


def fit_and_apply(
    public_directory: Path,
    private_directory: Path | None,
    out: Path,
    options: dict[str, Any],
    *,
    leak: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes `transform.safetensors`, `report.json` and, if asked, the transformed set.

    Args:
        public_directory: embedding set to fit on.
        private_directory: embedding set to apply the transform to; None: only fit.
        out: directory to write.
        options: keyword arguments of `PublicTransform.fit`.
        leak: allow both to be the same.
        overwrite: replace `out`.

    Returns:
        The report.
    """
    public = EmbeddingSet.open(public_directory)
    private = None if private_directory is None else EmbeddingSet.open(private_directory)
    if private is not None and not leak:
        refuse_leak(public, private)
    transform = PublicTransform.fit(public, **options)
    report = {
        "public": public.meta.get("data"),
        "public_rows": len(public),
        "public_hash": transform.fitted_on,
        "options": options,
        "dim": transform.dim,
        "leaks": leak,
        "versions": {name: version(name) for name in ("torch", "numpy")},
    }
    with new_directory(out, overwrite=overwrite) as partial:
        transform.save(partial / "transform.safetensors")
        if private is not None:
            report["applied_to"] = private.meta.get("data")
            _write_transformed(private, transform, partial / "embeddings")
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _write_transformed(private: EmbeddingSet, transform: PublicTransform, path: Path) -> None:
    """The rows [a, clip(x)] as an embedding set of their own, streamed."""
    path.mkdir()
    rows = (transform(block).numpy() for block in private.blocks())
    write_rows(path / "embeddings.npy", rows, (len(private), transform.dim))
    kept = {key: value for key, value in private.meta.items() if key != "content_hash"}
    bounds = {"clip_norm": transform.clip_norm, "constant": transform.constant}
    write_companions(
        path,
        labels=private.labels,
        users=private.users,
        split=private.split,
        meta=kept | {"transform": bounds | {"fitted_on": transform.fitted_on}},
    )
