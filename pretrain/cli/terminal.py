"""Characters that a terminal has not: Greek letters and signs become words, all else its number."""

import codecs
import contextlib
import io
import sys

HANDLER = "in-ascii"
WORDS = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "Λ": "Lambda"},
    **{"λ": "lambda", "μ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi"},
    **{"±": "+-", "−": "-", "–": "-", "—": "-", "×": "x", "·": ".", "…": "...", "²": "^2"},
    **{"≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "√": "sqrt", "‖": "||", "’": "'"},
}  # a class's name, such as é, keeps a spelling of its own: \xe9


def replace_missing() -> None:
    """Lets standard output and error replace what their encoding has not, instead of failing."""
    codecs.register_error(HANDLER, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one of another kind is somebody else's
            with contextlib.suppress(io.UnsupportedOperation):
                stream.reconfigure(errors=HANDLER)


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    words = (WORDS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(words), error.end
