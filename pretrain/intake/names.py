"""Names of classes, users and splits: one spelling for what is one thing, in every intake.

Two spellings of one word (`ü` as one character or as two, a blank at the end) are the same name.
Two classes whose names differ in case only are refused: nobody can tell whether they are one.
"""

import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import NamedTuple

INVISIBLE = "\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\ufeff"  # come along in copies
SPLIT_WORDS = {  # in any case; `pretrain.datasets.SPLITS` says what each is for
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    "evaluation": "evaluation",
}
SYSTEM_FOLDERS = frozenset(  # casefolded; those with a leading dot need no entry
    {
        "__macosx", "network trash folder", "temporary items",  # macOS
        "$recycle.bin", "system volume information", "found.000",  # Windows
        "lost+found", "~snapshot",  # Linux, NetApp
        "@eadir", "@tmp", "#recycle", "#snapshot",  # Synology
        "@recycle", "@recently-snapshot",  # QNAP
        "__pycache__",
    }
)  # fmt: skip


class Skipped(NamedTuple):
    """File or folder of a source that is not read."""

    name: str  # path in the source; a folder's ends with /
    why: str  # the same words for all of one kind, such as "hidden"


def counted(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Lines that count skipped files and folders by suffix and reason, the most first.

    Examples:
        >>> counted([("a.txt", "no picture"), ("b.TXT", "no picture"), ("c/", "hidden")])
        ['2 .txt: no picture', '1 folder: hidden']
    """
    kinds: Counter[tuple[str, str]] = Counter()
    for name, why in skipped:
        kind = PurePath(name).suffix.lower() or "without suffix"
        kinds["folder" if name.endswith("/") else kind, why] += 1
    return [
        f"{number} {kind}{'s' * (kind == 'folder' and number > 1)}: {why}"
        for (kind, why), number in kinds.most_common()
    ]


def canonical_name(text: str) -> str:
    r"""The one spelling of a name: NFC, without white or invisible characters around it.

    Examples:
        >>> canonical_name("u\u0308ber \u00a0") == "\u00fcber"
        True
    """
    before, text = None, unicodedata.normalize("NFC", text)
    while text != before:
        before, text = text, text.strip().strip(INVISIBLE)
    return text


def split_named(word: str) -> str | None:
    """Split that a word names in any case: train, test, val or evaluation; None for other words.

    Examples:
        >>> [split_named(word) for word in ("Train", "valid", "dev", "cat")]
        ['train', 'val', 'val', None]
    """
    return SPLIT_WORDS.get(canonical_name(word).casefold())


def left_by_systems(name: str) -> bool:
    """Whether an operating system or a program leaves files and folders of this name."""
    return name.startswith(".") or name.casefold() in SYSTEM_FOLDERS


def case_twins(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups of names that differ only in case, in width or in kinds of blanks.

    Examples:
        >>> case_twins(["Normal", "other", "normal"])
        [('Normal', 'normal')]
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        folded = unicodedata.normalize("NFKC", name).casefold()
        groups.setdefault(" ".join(folded.split()), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def class_spellings(
    where: str, found: Iterable[str], declared: Sequence[str] = (), *, ignore_case: bool = False
) -> dict[str, str]:
    """Class that each name means, where classes that differ only in case must be meant.

    They are two classes where `declared` has both. With `ignore_case` they are one, spelled as
    declared, else as the first in order.

    Args:
        where: file or folder, for errors.
        found: names of classes, as `canonical_name` gives them.
        declared: names that the options of the command declare; not those of the source itself.
        ignore_case: join them.

    Raises:
        ValueError: neither, or more than one declared name that another could mean.
    """
    found = set(found)
    meant = {name: name for name in found}
    for group in case_twins(found | set(declared)):
        known = [name for name in group if name in declared]
        others = [name for name in group if name not in known]
        if not others:
            continue
        if not ignore_case or len(known) > 1:
            remedy = "declare each with --class-names"
            remedy = remedy if len(known) > 1 else f"{remedy}, or join them with --ignore-case"
            got = " and ".join(map(repr, group))
            raise ValueError(
                f"{where}: classes must differ in more than case (or {remedy}), got {got}"
            )
        meant |= dict.fromkeys(found.intersection(group), (known or others)[0])
    return meant


def warn_of_case_twins(where: str, users: Iterable[str]) -> None:
    """Prints on stderr which users differ only in case: they may be one, or ids that do so."""
    if twins := case_twins(users):
        first = " and ".join(map(repr, twins[0]))
        more = f", and {len(twins) - 1} groups more" if len(twins) > 1 else ""
        print(
            f"warning: {where} has users whose names differ only in case: {first}{more}; each is "
            "a user of its own",
            file=sys.stderr,
        )
