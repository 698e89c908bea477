"""What an extraction made, in a few lines for its owner's terminal."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embed.store import EmbeddingSet
from pretrain.datasets import SPLITS, ImageSet
from pretrain.intake.names import counted


def described(done: EmbeddingSet, images: ImageSet, out: Path) -> list[str]:
    """Rows, classes and users with their counts, what was skipped, size and mode of pictures."""
    first = {number: name for name, number in reversed(SPLITS.items())}
    numbers, counts = np.unique(done.split, return_counts=True)
    parts = ", ".join(f"{count} {first[k]}" for k, count in zip(numbers, counts, strict=True))
    lines = [("rows", f"{len(done)}: {parts}")]
    if (done.labels < 0).all():
        lines.append(("classes", "no labels: rows for public use or prediction only"))
    else:
        counts = np.bincount(done.labels, minlength=len(images.class_names))
        lines.append(("classes", _spread(counts, images.class_names)))
    if done.users is not None:
        numbers, counts = np.unique(done.users, return_counts=True)
        names = images.user_names
        lines.append(("users", _spread(counts, [names[k] if names else str(k) for k in numbers])))
    lines.append(("pictures", _pictures(images, done)))
    skipped = list(images.skipped)
    if (file := out / "unreadable.txt").exists():
        found = file.read_text(errors="surrogateescape").splitlines()
        skipped += [(line.partition("\t")[0], f"unreadable, see {file}") for line in found]
    lines += [("skipped", words) for words in counted(skipped)]
    whole = (f"{what:10} {words}" for what, words in lines)
    return [line.encode("utf-8", "replace").decode() for line in whole]  # names may be no Unicode


def _spread(counts: np.ndarray, names: Sequence[str]) -> str:
    """Smallest, median and largest count."""
    least, most = int(counts.argmin()), int(counts.argmax())
    if counts[least] == counts[most]:
        return f"{len(counts)}, of {counts[least]} rows each"
    ends = f"{counts[least]} ({names[least]}) to {counts[most]} ({names[most]})"
    return f"{len(counts)}, of {ends} rows, median {np.median(counts):g}"


def _pictures(images: ImageSet, done: EmbeddingSet) -> str:
    """Size and mode of those that were read now: all, unless an extraction was continued."""
    height, width = done.meta["image_shape"][1:]
    words = f"embedded as {width} x {height}"
    modes = sorted({mode for seen in images.seen for mode in seen.modes})
    if not modes:
        return words
    ends = [size for seen in images.seen for size in (seen.smallest, seen.largest) if size]
    least, most = (end(ends, key=lambda size: size[0] * size[1]) for end in (min, max))
    size = " to ".join(f"{w} x {h}" for w, h in dict.fromkeys((least, most)))
    return f"{size}, {', '.join(modes)}; {words}"
