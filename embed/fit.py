"""Fits the public transform to one embedding set and applies it to another, with no row in both."""

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from embed.encoding import refuse_other
from embed.guesses import added_to
from embed.identity import found, known_rows, row_hashes
from embed.options import Knowledge
from embed.store import EmbeddingSet, columns, select_rows, write_companions, write_rows
from embed.transform import PublicTransform
from pretrain.cli.output import new_directory, write_json


def shared_rows(public: EmbeddingSet, private: EmbeddingSet) -> int:
    """Number of public rows that are among the private ones; see `embed.identity`."""
    return sum(int(mask.sum()) for mask in _shared(public, private))


def refuse_leak(public: EmbeddingSet, private: EmbeddingSet) -> None:
    """Checks that public and private rows have one encoder and no row in common.

    Raises:
        ValueError: another encoder or preprocessing, or some row is in both.
    """
    refuse_other(public.encoding, private.encoding)
    shared = 0 if public.dim != private.dim else shared_rows(public, private)
    if shared:
        raise ValueError(
            "public must be another set than the one it is applied to, without any of its rows "
            "(`embed exclude` takes them out of the private set), "
            f"got {shared} of {len(public)} rows in both"
        )


def refuse_seen(seen: np.ndarray, private: EmbeddingSet) -> None:
    """Raises ValueError if a private row is among examples, of which `seen` has the hashes."""
    shared = sum(int(found(row_hashes(block), seen).sum()) for block in private.blocks())
    if shared:
        raise ValueError(f"examples must hold no private rows, got {shared} of {len(private)}")


def exclude(
    directory: Path, public: Sequence[Path], out: Path, *, overwrite: bool = False
) -> tuple[EmbeddingSet, int]:
    """Writes a private set without the rows that public sets hold too, streamed.

    Whether a row stays depends on that row and on public rows alone. The public sets stay whole: if
    private rows removed some of theirs, each record would change the transform fitted on them.

    Args:
        directory: the private set.
        public: public sets.
        out: directory to write.
        overwrite: replace `out`.

    Returns:
        The set, and the number of rows left out.

    Raises:
        ValueError: sets of another encoder, preprocessing or width, or no row is left.
    """
    private = EmbeddingSet.open(directory)
    kept = np.ones(len(private), bool)
    for place in public:
        other = EmbeddingSet.open(place)
        refuse_other(private.encoding, other.encoding, ("embeddings", "public"))
        if other.dim != private.dim:
            raise ValueError(
                f"public must have {private.dim} columns as embeddings, got {other.dim} in {place}"
            )
        kept &= ~np.concatenate(list(_shared(private, other)))
    count = int(kept.sum())
    if not count:
        raise ValueError("embeddings must hold rows that are not public, got 0 such rows")
    with new_directory(out, overwrite=overwrite) as partial:
        rows = select_rows(private.blocks(), kept)
        write_rows(partial / "embeddings.npy", rows, (count, private.dim))
        write_companions(partial, **columns(private, kept), meta=private.meta_of_rows)
    return EmbeddingSet.open(out), len(private) - count


def _shared(rows: EmbeddingSet, others: EmbeddingSet) -> Iterator[np.ndarray]:
    """Per block of rows, (b,) bool: whether each is among the others."""
    known = known_rows(others.blocks())
    for block in rows.blocks():
        yield found(row_hashes(block), known)


def fit_and_apply(
    public_directory: Path,
    private_directory: Path | None,
    out: Path,
    options: dict[str, Any],
    *,
    knowledge: Knowledge | None = None,
    leak: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes `transform.safetensors`, `report.json` and, if asked, the transformed set.

    Args:
        public_directory: embedding set to fit on.
        private_directory: embedding set to apply the transform to; None: only fit.
        out: directory to write.
        options: keyword arguments of `PublicTransform.fit`.
        knowledge: public knowledge of the private classes; None: nothing.
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
    if knowledge is not None:
        declared = () if private is None else private.declared_classes
        transform = added_to(knowledge, transform, public, declared)
        if private is not None and transform.seen is not None and not leak:
            refuse_seen(transform.seen, private)
    report = {
        "public": public.meta.get("data"),
        "public_rows": len(public),
        "public_hash": transform.fitted_on,
        "options": options,
        "dim": transform.dim,
        "leaks": leak,
        "known_before": transform.known.words if transform.known else [],
        "versions": {name: version(name) for name in ("torch", "numpy")},
    }
    with new_directory(out, overwrite=overwrite) as partial:
        transform.save(partial / "transform.safetensors")
        if private is not None:
            report["applied_to"] = private.meta.get("data")
            _write_transformed(private, transform, partial / "embeddings", compared=not leak)
        write_json(partial / "report.json", report)
    return report


def _write_transformed(
    private: EmbeddingSet, transform: PublicTransform, path: Path, *, compared: bool
) -> None:
    """Writes the rows [a, clip(x)] as an embedding set, streamed.

    They cannot be compared with raw rows any more, so meta.json says whether that was done before.
    """
    path.mkdir()
    rows = (transform(block).numpy() for block in private.blocks())
    write_rows(path / "embeddings.npy", rows, (len(private), transform.dim))
    made_by = {
        "clip_norm": transform.clip_norm,
        "constant": transform.constant,
        "fitted_on": transform.fitted_on,
        "compared": compared,
    }
    write_companions(path, **columns(private), meta=private.meta_of_rows | {"transform": made_by})
