"""The command `python -m embed concat`: rows of the same pictures by several encoders, joined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embed.encoding import Encoding
from embed.store import EmbeddingSet, columns, write_companions, write_rows
from pretrain.cli.output import new_directory, output_directory
from pretrain.public import function

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
        """Writes the joined set, streamed; each row depends on its own picture alone.

        Raises:
            ValueError: fewer than two sets, of other pictures, or that do not say what made them.
        """
        out = output_directory(self.out, "concat", *self.sets, overwrite=self.overwrite)
        sets = [EmbeddingSet.open(place) for place in self.sets]
        encodings: list[Encoding] = []
        for place, each in zip(self.sets, sets, strict=True):
            if not _same_pictures(each, sets[0]):
                raise ValueError(
                    "sets must hold the same pictures in the same order, got "
                    f"{self.sets[0]} and {place}"
                )
            if (encoding := each.encoding) is None:
                raise ValueError(f"sets must say which encoder made them, got none in {place}")
            encodings.append(encoding)
        first, widths = sets[0], [each.dim for each in sets]
        same = {
            k: v for k, v in first.meta_of_rows.items() if all(e.meta.get(k) == v for e in sets)
        }
        meta = same | Encoding.joined(encodings).to_json() | {"parts": widths}
        with new_directory(out, overwrite=self.overwrite) as partial:
            write_rows(partial / "embeddings.npy", _joined(sets), (len(first), sum(widths)))
            write_companions(partial, **columns(first), meta=meta)
        print(f"{len(first)} embeddings of dimension {sum(widths)} in {out}")
        return out


concat = function("concat", Concat)


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
