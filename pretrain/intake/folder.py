"""Folders of pictures: by class, by user and class, or without either."""

from collections.abc import Iterator
from pathlib import Path

from pretrain.datasets import SPLITS, ImageSet, decode_name
from pretrain.intake.decode import SUFFIXES
from pretrain.intake.files import file_reader
from pretrain.intake.reading import Layout, Reading
from pretrain.intake.table import Table


def open_images_folder(path: Path, reading: Reading) -> ImageSet:
    """Opens a folder of pictures, or of train/, test/, val/, evaluation/ with such folders.

    Layouts: `class`, class folders with pictures; `user-class`, user folders with class folders;
    `flat`, pictures without labels at any depth. `auto` is `class` for a folder that has folders,
    else `flat`.

    Class folders declare the classes, so an empty one counts as well. If users have different
    folders, or folders exist only for pictures that exist, `classes` must declare them instead;
    folders may then be missing.

    Files with another suffix, in another place, or hidden are skipped and listed in `skipped`.

    Raises:
        ValueError: no images, or a class that is not declared, or not in the first split.
    """
    present = [split for split in SPLITS if (path / split).is_dir()]
    chosen = [s for s in present if not reading.splits or s in reading.splits]
    if present and not chosen:
        raise ValueError(f"splits must be of {path}, {present}, got {list(reading.splits)}")
    roots = [(path / split, split) for split in chosen] or [(path, "")]
    layout = _layout(roots[0][0]) if reading.layout == "auto" else reading.layout
    table = Table(str(path))
    if chosen:
        table.skipped += [_shown(p, path) for p in _listed(path) if p.name not in SPLITS]
    known = reading.classes
    for root, split in roots:
        found = _class_names(root, layout)
        known = known or tuple(found)
        if unknown := set(found) - set(known):
            raise ValueError(
                f"{root} must hold only the classes {list(known)}, got {sorted(unknown)}"
            )
        before = len(table.names)
        for file, label, user in _pictures(root, layout, known, table.skipped):
            name = file.relative_to(path).as_posix()
            table.add(name, label, user, split if chosen else None)
        if len(table.names) == before:
            folders = "class" if layout == "flat" else layout
            raise ValueError(f"{root} must hold {folders} folders with images, got none")
    table.class_names = known
    names = table.encoded_names
    return table.image_set(
        path.parent.name if path.name in SPLITS else path.name,
        reading,
        file_reader(path, names),
        lambda row: str(path / decode_name(names[row])),
    )


def _layout(root: Path) -> Layout:
    if _folders(root) or not any(_is_picture(p, root, []) for p in _listed(root)):
        return "class"
    return "flat"


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def _folders(folder: Path) -> list[Path]:
    return [p for p in _listed(folder) if p.is_dir() and not p.name.startswith(".")]


def _class_names(root: Path, layout: Layout) -> list[str]:
    if layout == "flat":
        return []
    parents = [root] if layout == "class" else _folders(root)
    return sorted({folder.name for parent in parents for folder in _folders(parent)})


def _pictures(
    root: Path, layout: Layout, classes: tuple[str, ...], skipped: list[str]
) -> Iterator[tuple[Path, str | None, str | None]]:
    """Files with their class and user, in the order of users, classes and names."""
    if layout == "flat":
        yield from ((file, None, None) for file in _below(root, root, skipped))
        return
    users = _folders(root) if layout == "user-class" else [root]
    if layout == "user-class":
        skipped += [_shown(p, root) for p in _listed(root) if p not in users]
    for user in users:
        held = [user / name for name in classes if (user / name).is_dir()]
        skipped += [_shown(p, root) for p in _listed(user) if p not in held]
        for folder in held:
            for file in _listed(folder):
                if _is_picture(file, root, skipped):
                    yield file, folder.name, user.name if layout == "user-class" else None


def _below(folder: Path, root: Path, skipped: list[str]) -> Iterator[Path]:
    """Pictures of a folder and of the folders inside it."""
    for path in _listed(folder):
        if path.is_dir() and not path.name.startswith("."):
            yield from _below(path, root, skipped)
        elif _is_picture(path, root, skipped):
            yield path


def _is_picture(file: Path, root: Path, skipped: list[str]) -> bool:
    """Whether a file is a picture by its name; other files are added to `skipped`."""
    shown = file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    if shown and not file.is_dir():
        return True
    skipped.append(_shown(file, root))
    return False


def _shown(path: Path, root: Path) -> str:
    """Name in `skipped`: the path below the root."""
    return f"{path.relative_to(root).as_posix()}{'/' if path.is_dir() else ''}"
