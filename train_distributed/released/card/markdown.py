"""A card as Markdown, for repositories and wikis: all of it but the pictures."""

import re

from train_distributed.released.card.content import (
    Block,
    Card,
    Code,
    Items,
    Pairs,
    Picture,
    Table,
    Warned,
    Words,
)

MARKUP = re.compile(r"([\\`*_\[\]|~$])")
LEADING = re.compile(r"^(\d*)([#+.)-])(?=[\s#-]|$)")  # of headings, lists and rules


def as_markdown(card: Card) -> str:
    """The page; whatever a name or a report holds appears as text, never as markup."""
    verdict = f"**{card.verdict}**"
    parts = [
        f"# {plain(card.title)}",
        plain(card.summary),
        verdict if card.suitable else f"## ⚠ {verdict}",
    ]
    parts += [_items(card.reasons)] if card.reasons else []
    parts.append(
        _table(
            ("", "", ""), tuple((tile.label, tile.value, tile.note) for tile in card.tiles), True
        )
    )
    for section in card.sections:
        parts += [f"## {plain(section.title)}", *map(_block, section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """Text on one line that Markdown, and HTML within it, take for nothing else."""
    escaped = MARKUP.sub(r"\\\1", " ".join(text.split()))
    escaped = LEADING.sub(r"\1\\\2", escaped)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _block(block: Block) -> str:
    match block:
        case Words(text):
            return plain(text)
        case Warned(text):
            return f"**{plain(text)}**"
        case Items(items):
            return _items(items)
        case Pairs(pairs):
            return _table(("", ""), pairs, False)
        case Table(caption, head, rows, numeric):
            return f"{plain(caption)}:\n\n{_table(head, rows, numeric)}"
        case Code(text):
            return "\n".join(f"    {line}" for line in text.splitlines())
        case Picture():
            return ""


def _items(items: tuple[str, ...]) -> str:
    return "\n".join(f"* {plain(item)}" for item in items)


def _table(head: tuple[str, ...], rows: tuple[tuple[str, ...], ...], numeric: bool) -> str:
    rule = ["---", *(["---:"] if numeric else ["---"]) * (len(head) - 1)]
    lines = [_line(map(plain, head)), _line(rule), *(_line(map(plain, row)) for row in rows)]
    return "\n".join(lines)


def _line(cells) -> str:
    return "| " + " | ".join(cells) + " |"
