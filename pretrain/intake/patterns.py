"""Files by a pattern: braces and stars, several divided by "::"."""

import glob
from pathlib import Path


def matching_files(pattern: str) -> list[Path]:
    """The files that `DIR/part-{000..009}.tar::other/*.tar` means, in its order.

    Braces are expanded as WebDataset does; what a star finds is sorted.

    Raises:
        ValueError: a file that is not there, or a star that finds none.
    """
    found: list[Path] = []
    for each in pattern.split("::"):
        for name in _expanded(each):
            files = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
            missing = [file for file in files if not Path(file).is_file()]
            if missing or not files:
                raise ValueError(f"files must exist, got {(missing or [name])[0]}")
            found += map(Path, files)
    return found


def _expanded(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    try:
        from braceexpand import braceexpand
    except ImportError as error:
        raise ValueError(
            "braces must have braceexpand installed: pip install 'blind-averaging[intake]'"
        ) from error
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ValueError(f"braces must be closed, got {pattern}") from error
