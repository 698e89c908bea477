"""Bytes and words from the network as they may be shown: printable ASCII, of limited length."""

LONGEST = 300  # characters


def safe(content: bytes | str, longest: int = LONGEST) -> str:
    """Control characters, colours and foreign scripts as escapes, the rest as it is."""
    text = content.decode(errors="backslashreplace") if isinstance(content, bytes) else content
    shown = ascii(text[: longest + 1])[1:-1]
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."
