"""The folders and files below one folder: each real folder once, and regular files only."""

import os
from collections.abc import Iterator
from pathlib import Path

from pretrain.intake.files import start_of
from pretrain.intake.formats import HEAD, kind_of, suffix_of, suffixes
from pretrain.intake.names import Skipped, canonical_name, left_by_systems

Identity = tuple[int, int]  # device and number of a folder or file, whatever its name


class Walk:
    """Lists folders below `root` and notes in `skipped` what is not read, and why.

    Names that systems leave are passed over unless they are among the `declared` classes. A link
    to a folder above is skipped, since it would be walked for ever; a folder that has two names
    would count every picture twice, and is refused.
    """

    def __init__(self, root: Path, declared: tuple[str, ...], skipped: list[Skipped]) -> None:
        self.root, self.skipped = root, skipped
        self._declared = frozenset(declared)
        self._known: dict[Identity, Path] = {_identity(root): root}
        self._above = {_identity(parent) for parent in root.resolve().parents}
        self._folders: dict[Path, list[Path]] = {}
        self.linked = False  # whether a picture was a link

    def folders(self, folder: Path) -> list[Path]:
        """Folders in a folder, sorted.

        Raises:
            ValueError: one that was found by another name.
        """
        if folder not in self._folders:
            inside = [Path(each) for each in _entries(folder) if _is_folder(each)]
            self._folders[folder] = [each for each in inside if self._is_new(each)]
        return self._folders[folder]

    def is_deep(self, folder: Path, levels: int) -> bool:
        """Whether folders lie in it one in another, so many levels."""
        return levels == 0 or any(self.is_deep(each, levels - 1) for each in self.folders(folder))

    def pictures(self, folder: Path) -> Iterator[Path]:
        """Pictures in a folder, sorted; other files are skipped."""
        for entry in _entries(folder):
            if not _is_folder(entry):
                if not (why := self._reason(entry)):
                    self.linked |= entry.is_symlink()
                    yield Path(entry)
                else:
                    self._skip(Path(entry), why)

    def holds_pictures(self, folder: Path) -> bool:
        """Whether a picture lies in it, not in a folder inside it."""
        return any(not _is_folder(e) and not self._reason(e) for e in _entries(folder))

    def skip_files(self, folder: Path, why: str) -> None:
        """Skips all files in a folder."""
        for entry in _entries(folder):
            if not _is_folder(entry):
                self._skip(Path(entry), self._by_system(entry.name) or why)

    def skip_folders(self, folder: Path, why: str) -> None:
        """Skips all folders in a folder."""
        for entry in _entries(folder):
            if _is_folder(entry):
                self._skip(Path(entry), self._by_system(entry.name) or why, folder=True)

    def _is_new(self, folder: Path) -> bool:
        """Whether a folder is to be read."""
        if why := self._by_system(folder.name):
            self._skip(folder, why, folder=True)
            return False
        identity = _identity(folder)
        other = self._known.setdefault(identity, folder)
        if other in folder.parents or identity in self._above:
            self._skip(folder, "a link to a folder above it", folder=True)
            return False
        if other != folder:
            raise ValueError(
                f"{self.root}: a folder must have one name (or remove the link), got "
                f"{other.relative_to(self.root)} and {folder.relative_to(self.root)} for one"
            )
        return True

    def _by_system(self, name: str) -> str:
        kept = canonical_name(name) in self._declared or not left_by_systems(name)
        return "" if kept else "hidden, or left by a system"

    def _reason(self, entry: os.DirEntry[str]) -> str:
        """Why a file is no picture; "" if it is one, or a link to one that is gone."""
        if why := self._by_system(entry.name):
            return why
        suffix = suffix_of(entry.name)
        if suffix and suffix not in suffixes():
            return "no picture by its suffix"
        if not _is_file(entry) and not (entry.is_symlink() and not os.path.exists(entry)):
            return "no regular file"
        if not suffix and not kind_of(start_of(Path(entry), HEAD)):
            return "no picture by its first bytes"
        return ""

    def _skip(self, path: Path, why: str, *, folder: bool = False) -> None:
        name = path.relative_to(self.root).as_posix()
        self.skipped.append(Skipped(f"{name}/" if folder else name, why))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise ValueError(f"{folder} must be a readable folder, got: {error.strerror}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino
