"""Fits the public transform to one embedding set and applies it to another, with no row in both."""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from embed.encoding import refuse_other
from embed.identity import found, known_rows, row_hashes
from embed.store import EmbeddingSet, write_companions, write_rows
from embed.transform import PublicTransform
from pretrain.cli.output import new_directory


def shared_rows(public: EmbeddingSet, private: EmbeddingSet) -> int:
    """Number of public rows that are among the private ones; see `embed.identity`."""
    return sum(int(mask.sum()) for mask in _private(public, private))


def refuse_leak(public: EmbeddingSet, private: EmbeddingSet) -> None:
    """Checks that what counts as public is of the same encoder and holds no private row.

    Raises:
        ValueError: another encoder or preprocessing, or some row is in both.
    """
    refuse_other(public.encoding, private.encoding)
    shared = 0 if public.dim != private.dim else shared_rows(public, private)
    if shared:
        raise ValueError(
            "public must be another set than the one it is applied to, without any of its rows "
            f"(`python -m embed exclude` drops them), got {shared} of {len(public)} rows in both"
        )


def exclude(
    public_directory: Path, private: Sequence[Path], out: Path, *, overwrite: bool = False
) -> tuple[EmbeddingSet, int]:
    """Writes a public set without the rows of others, streamed.

    That one of the public rows is gone says that it is among the private ones: whoever holds the
    public set as it was can see that of those rows, and no ε covers it.

    Returns:
        The set written, and how many rows it lacks.

    Raises:
        ValueError: fewer than two rows are left.
    """
    public = EmbeddingSet.open(public_directory)
    kept = np.ones(len(public), bool)
    for directory in private:
        kept &= ~np.concatenate(list(_private(public, EmbeddingSet.open(directory))))
    count, dropped = int(kept.sum()), int((~kept).sum())
    if count < 2:
        raise ValueError(f"public must hold rows that are not private, got {count} such rows")
    meta = {k: v for k, v in public.meta.items() if k != "content_hash"}
    meta["dropped_rows"] = public.dropped_rows + dropped
    with new_directory(out, overwrite=overwrite) as partial:
        write_rows(partial / "embeddings.npy", _kept(public, kept), (count, public.dim))
        write_companions(
            partial,
            labels=public.labels[kept],
            users=None if public.users is None else public.users[kept],
            split=public.split[kept],
            names=None if public.names is None else public.names[kept],
            meta=meta,
        )
    return EmbeddingSet.open(out), dropped


def _private(public: EmbeddingSet, private: EmbeddingSet) -> Iterator[np.ndarray]:
    """By blocks of public rows, (b,) bool: which are among the private ones."""
    known = known_rows(private.blocks())
    for block in public.blocks():
        yield found(row_hashes(block), known)


def _kept(rows: EmbeddingSet, kept: np.ndarray) -> Iterator[np.ndarray]:
    start = 0
    for block in rows.blocks():
        yield block[kept[start : start + len(block)]]
        start += len(block)


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
        leak: allow both to share rows; no release of them takes such a transform.
        overwrite: replace `out`.

    Returns:
        The report.
    """
    public = EmbeddingSet.open(public_directory)
    private = None if private_directory is None else EmbeddingSet.open(private_directory)
    if private is not None:
        refuse_other(public.encoding, private.encoding)
        if not leak:
            refuse_leak(public, private)
    transform = PublicTransform.fit(public, **options)
    report = {
        "public": public.meta.get("data"),
        "public_rows": len(public),
        "public_hash": transform.fitted_on,
        "public_rows_dropped": transform.dropped,
        "options": options,
        "dim": transform.dim,
        "leaks": leak,
        "versions": {name: version(name) for name in ("torch", "numpy")},
    }
    with new_directory(out, overwrite=overwrite) as partial:
        transform.save(partial / "transform.safetensors")
        if private is not None:
            report["applied_to"] = private.meta.get("data")
            _write_transformed(private, transform, partial / "embeddings", compared=not leak)
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _write_transformed(
    private: EmbeddingSet, transform: PublicTransform, path: Path, *, compared: bool
) -> None:
    """The rows [a, clip(x)] as an embedding set of their own, streamed.

    No raw row can be compared with them any more, so the set says whether that was done.
    """
    path.mkdir()
    rows = (transform(block).numpy() for block in private.blocks())
    write_rows(path / "embeddings.npy", rows, (len(private), transform.dim))
    kept = {key: value for key, value in private.meta.items() if key != "content_hash"}
    made_by = {
        "clip_norm": transform.clip_norm,
        "constant": transform.constant,
        "fitted_on": transform.fitted_on,
        "compared": compared,
    }
    write_companions(
        path,
        labels=private.labels,
        users=private.users,
        split=private.split,
        names=private.names,
        meta=kept | {"transform": made_by},
    )
