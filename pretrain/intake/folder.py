"""Folders of pictures: by class, by user and class, or without either."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pretrain.datasets import SPLITS, ImageSet, decode_name
from pretrain.intake.files import (
    HEAD,
    file_reader,
    kind_of,
    same_file,
    start_of,
    suffix_of,
    suffixes,
)
from pretrain.intake.reading import (
    Layout,
    Reading,
    Skipped,
    canonical_name,
    class_spellings,
    counted,
    left_by_systems,
    split_named,
)
from pretrain.intake.table import Table

INSIDE = "inside a class folder (--layout user-class reads these)"
LEVELS = {"class": 1, "user-class": 2, "flat": 0}  # folders between a split and its pictures


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

    def skip(self, folder: Path, why: str, *, folders: bool = False) -> None:
        """Skips all files in a folder, or all folders."""
        for entry in _entries(folder):
            if _is_folder(entry) == folders:
                self._skip(Path(entry), self._by_system(entry.name) or why, folder=folders)

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
        if not os.path.isfile(entry) and not (entry.is_symlink() and not os.path.exists(entry)):
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
    """Whether it is one; links in a circle are none."""
    return os.path.isdir(entry) if entry.is_symlink() else entry.is_dir()


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino


def open_images_folder(path: Path, reading: Reading) -> ImageSet:
    """Opens a folder of pictures, or one of folders named like splits with such folders.

    Layouts: `class`, class folders with pictures; `user-class`, user folders with class folders;
    `flat`, pictures without labels at any depth. `auto` is `class` for a folder that has folders,
    else `flat`. Folders are splits where all have the name of one, in any case; where only some
    have, `layout` must say what they are.

    Class folders declare the classes. If users have different folders, or folders exist only for
    pictures that exist, `classes` must declare them instead; folders may then be missing or empty.

    Other files, what is hidden or left by a system, and links that lead back are in `skipped`.

    Raises:
        ValueError: no images, or none of a class or user that has a folder; a class that is not
            declared or not in the first split; a folder or picture by two names.
    """
    table = Table(str(path), reading)
    walk = Walk(path, reading.classes, table.skipped)
    roots = _roots(walk, reading)
    layout = reading.layout
    if layout == "auto":
        flat = not walk.folders(roots[0][0]) and walk.holds_pictures(roots[0][0])
        layout = "flat" if flat else "class"
    found = {root: _class_folders(walk, root, layout) for root, _ in roots}
    names = {name for folders in found.values() for _, name, _ in folders}
    spelled = class_spellings(str(path), names, reading.classes, ignore_case=reading.ignore_case)
    known, held = reading.classes, set[tuple[str, str | None]]()
    for root, split in roots:
        here = {spelled[name] for _, name, _ in found[root]}
        known = known or tuple(sorted(here))
        if unknown := here - set(known):
            raise ValueError(
                f"{root} must hold only the classes {list(known)} (or pass all as --class-names), "
                f"got {sorted(unknown)}"
            )
        before = len(table.names)
        if layout == "flat":
            rows = ((file, None, None) for file in _below(walk, root))
        else:
            rows = _pictures(walk, found[root], spelled, known)
        for file, label, user in rows:
            held |= {("class", label), ("user", user)}
            table.add(file.relative_to(path).as_posix(), label, user, split or None)
        if len(table.names) == before:
            folders = "class" if layout == "flat" else layout
            raise ValueError(
                f"{root} must hold {folders} folders with images, got none{_skipped(walk, root)}"
            )
    owners = [user for root, _ in roots for user in walk.folders(root)]
    wanted = [(folder, "user", _name(folder)) for folder in owners if layout == "user-class"]
    for folder, name, _ in (each for folders in found.values() for each in folders):
        wanted += [] if reading.classes else [(folder, "class", spelled[name])]
    _refuse_empty(walk, wanted, held)
    if walk.linked and (
        pair := same_file(np.arange(len(table.names)), lambda k: path / table.names[k])
    ):
        one, two = (table.names[k] for k in pair)
        raise ValueError(f"{path}: a picture must have one name, got {one} and {two} for one")
    table.class_names = known
    encoded = table.encoded_names
    return table.image_set(
        path.parent.name if split_named(path.name) else path.name,
        file_reader(path, encoded),
        lambda row: str(path / decode_name(encoded[row])),
    )


def _roots(walk: Walk, reading: Reading) -> list[tuple[Path, str]]:
    """Folder of every split that is asked for, with its name; the whole with "" without splits.

    Raises:
        ValueError: only some folders are named like splits and nothing says what they are, two
            are of one split, or none is asked for.
    """
    path = walk.root
    folders = walk.folders(path)
    named = {each: split for each in folders if (split := split_named(each.name))}
    levels = LEVELS.get(reading.layout, 0)
    whole = len(named) < len(folders) and reading.layout != "auto"
    if not named or whole or not any(walk.is_deep(each, levels) for each in named):
        return [(path, "")]
    if others := [each.name for each in folders if each not in named]:
        first = next(iter(named))
        if len(named) == 1 and not walk.folders(first):
            return [(path, "")]  # a class of that name: it holds what the others hold
        raise ValueError(
            f"{path} must hold folders of splits only, or none (or pass --layout, which takes all "
            f"as classes or users), got {first.name} beside {others[0]}"
        )
    walk.skip(path, "not in the folder of a split")
    places: dict[str, Path] = {}
    for folder, split in named.items():
        if split in places:
            got = f"{places[split].name} and {folder.name}"
            raise ValueError(f"{path} must hold one folder for each split, got {got}")
        places[split] = folder
    present = [split for split in SPLITS if split in places]
    chosen = [split for split in present if not reading.splits or split in reading.splits]
    if not chosen:
        raise ValueError(f"splits must be of {path}, {present}, got {list(reading.splits)}")
    return [(places[split], split) for split in chosen]


def _class_folders(walk: Walk, root: Path, layout: Layout) -> list[tuple[Path, str, str | None]]:
    """Class folders, each with its class and user as they are spelled there."""
    if layout == "flat":
        return []
    if layout == "class":
        walk.skip(root, "not in a class folder")
        return [(folder, _name(folder), None) for folder in walk.folders(root)]
    walk.skip(root, "not in a user's folder")
    users = walk.folders(root)
    for user in users:
        walk.skip(user, "not in a class folder")
    return [(folder, _name(folder), _name(user)) for user in users for folder in walk.folders(user)]


def _name(folder: Path) -> str:
    if not (name := canonical_name(folder.name)):
        raise ValueError(f"folders must have a name, got {str(folder)!r}")
    return name


def _pictures(
    walk: Walk,
    found: list[tuple[Path, str, str | None]],
    spelled: dict[str, str],
    classes: tuple[str, ...],
) -> Iterator[tuple[Path, str | None, str | None]]:
    """Files with their class and user, in the order of users, classes and names."""
    place = {name: number for number, name in enumerate(classes)}
    for folder, name, user in sorted(
        found, key=lambda f: (f[0].parent, place[spelled[f[1]]], f[0])
    ):
        walk.skip(folder, INSIDE, folders=True)
        for file in walk.pictures(folder):
            yield file, spelled[name], user


def _below(walk: Walk, folder: Path) -> Iterator[Path]:
    """Pictures of a folder and of the folders inside it, in the order of their names."""
    folders = set(walk.folders(folder))
    for path in sorted([*walk.pictures(folder), *folders]):
        if path in folders:
            yield from _below(walk, path)
        else:
            yield path


def _refuse_empty(
    walk: Walk, wanted: list[tuple[Path, str, str]], held: set[tuple[str, str | None]]
) -> None:
    """Raises ValueError for folders of users, or of classes, of whom there is no picture."""
    remedies = {"user": "remove the folder", "class": "declare all classes with --class-names"}
    for folder, what, name in wanted:
        if (what, name) not in held:
            raise ValueError(
                f"every {what} must have an image (or {remedies[what]}), got none in {folder}"
                f"{_skipped(walk, folder)}"
            )


def _skipped(walk: Walk, folder: Path) -> str:
    """End of an error: what a folder holds besides pictures."""
    inside = "" if folder == walk.root else f"{folder.relative_to(walk.root).as_posix()}/"
    kinds = counted(each for each in walk.skipped if each.name.startswith(inside))
    return f"; it holds {', '.join(kinds)}" if kinds else ""
