"""The command `python -m embed concat`: rows of the same pictures by several encoders, joined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embed.encoding import Encoding
from embed.store import EmbeddingSet, columns, write_companions, write_rows
from pretrain.cli.output import new_directory, output_directory

OF_PICTURES = ("data_hash", "rows", "class_names")  # what meta.json says of them


@dataclass(frozen=True, kw_only=True)
class Concat:
    """Write one set of rows that several encoders made of the same pictures, side by side.

    blind-averaging embed concat --sets mine-lite0 mine-lite2 --out mine

    The result equals that of `embed run --encoder concat:A@PIXELS+B@PIXELS`. Public pictures need
    the same sets in the same order; a transform brings all parts to the same public variance.
    """

    sets: tuple[Path, ...]
    """Embedding sets of the same pictures in the same order, one of each encoder."""
    out: Path | None = None
    """Directory to write (default: a new one under runs/)."""
    overwrite: bool = False
    """Replace an existing directory."""

    def run(self) -> Path:
        """Writes the joined set."""
        out = output_directory(self.out, "concat", *self.sets, overwrite=self.overwrite)
        done = concatenated(self.sets, out, overwrite=self.overwrite)
        print(f"{len(done)} embeddings of dimension {done.dim} in {out}")
        return out


def concatenated(
    directories: Sequence[Path], out: Path, *, overwrite: bool = False
) -> EmbeddingSet:
    """Joins sets of the same pictures, streamed; each row depends on its own picture alone.

    Raises:
        ValueError: fewer than two sets, of other pictures, or that do not say what made them.
    """
    sets = [EmbeddingSet.open(place) for place in directories]
    for place, each in zip(directories, sets, strict=True):
        if not _same_pictures(each, sets[0]):
            raise ValueError(
                f"sets must hold the same pictures in the same order, got {directories[0]} and "
                f"{place}"
            )
    encodings = [each.encoding for each in sets]
    known = [encoding for encoding in encodings if encoding is not None]
    if len(known) < len(sets):
        unknown = directories[encodings.index(None)]
        raise ValueError(f"sets must say which encoder made them, got none in {unknown}")
    first = sets[0]
    kept = {k: v for k, v in first.meta_of_rows.items() if all(e.meta.get(k) == v for e in sets)}
    encoding = Encoding.joined(known).to_json()
    meta = kept | encoding | {"parts": [each.dim for each in sets]}
    with new_directory(out, overwrite=overwrite) as partial:
        shape = (len(first), sum(each.dim for each in sets))
        write_rows(partial / "embeddings.npy", _joined(sets), shape)
        write_companions(partial, **columns(first), meta=meta)
    return EmbeddingSet.open(out)


def _same_pictures(one: EmbeddingSet, other: EmbeddingSet) -> bool:
    ours, theirs = columns(one), columns(other)
    alike = all(
        (ours[name] is None) == (theirs[name] is None) and np.array_equal(ours[name], theirs[name])
        for name in ours
    )
    return alike and all(one.meta.get(name) == other.meta.get(name) for name in OF_PICTURES)


def _joined(sets: Sequence[EmbeddingSet]) -> Iterator[np.ndarray]:
    size = 4096
    for start in range(0, len(sets[0]), size):
        yield np.concatenate([each.embeddings[start : start + size] for each in sets], 1)
