"""Running a command: it ends with its result, or with one line that says what was wrong.

Ctrl-C, SIGTERM and the end of its terminal interrupt it. Characters that a terminal has not become
words if they are Greek letters or signs, else their numbers.
"""

import codecs
import contextlib
import io
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

USAGE_ERROR, INTERRUPTED = 2, 130
SPINS = 3000  # about a tenth of a millisecond
GUESSES = 200  # letters of suggestions that are shown


class Command(Protocol):
    """A parsed subcommand: the dataclass whose fields were the options."""

    def run(self) -> object:
        """Checks its fields, does the work, returns what it wrote.

        Whole numbers are exit codes; so is the `code` of what has one. All else is 0.
        """
        ...


def run_command(parse: Callable[[], Command]) -> int:
    """Parses and runs a command; a bad input becomes one `error:` line and exit code 2.

    Args:
        parse: reads `sys.argv`; leaves by `SystemExit` on a wrong option, as tyro and argparse do.

    Returns:
        The exit code: the command's own, 2 for a bad input, 130 for an interruption.
    """
    listen()
    wait_asleep()
    replace_missing()
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            command = parse()
    except SystemExit as stop:
        if stop.code != USAGE_ERROR:
            raise
        return _fail(_one_line(box.getvalue()))
    except BrokenPipeError:
        return 0 if _unread() else USAGE_ERROR
    print(box.getvalue(), end="", file=sys.stderr)
    try:
        done = command.run()
        return done if isinstance(done, int) else getattr(done, "code", 0)
    except (ValueError, OSError, ArithmeticError) as error:
        if isinstance(error, BrokenPipeError) and _unread():
            return 0
        return _fail(_said(_message(error), error))
    except MemoryError as error:
        return _fail(_said(f"memory must suffice, got: {error or 'none left'}", error))
    except KeyboardInterrupt as stop:
        kept = " ".join(map(str, stop.args)) or "nothing was written"
        print(_said(f"interrupted; {kept}", stop), file=sys.stderr)
        return INTERRUPTED


def _unread() -> bool:
    """Whether nobody reads the output any more, as after `| head`; the rest of it is discarded."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # a pipe without a reader is an error
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def wait_asleep() -> None:
    """Lets OpenMP's threads sleep soon while they wait, unless the environment says otherwise.

    By default they spin for milliseconds, possibly on the core of the thread they wait for: with
    one other busy process on two cores, a second can become a minute. torch reads the setting when
    it is loaded, which is later.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def _message(error: ValueError | OSError | ArithmeticError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _said(message: str, error: BaseException) -> str:
    """One line of a message and the notes that were added to its error on the way."""
    return " ".join("; ".join((message, *getattr(error, "__notes__", ()))).split())


def _one_line(box: str) -> str:
    """Words of a multi-line error box without frames, rulers and long lists of guesses."""
    words = re.sub(r"[\u2500-\u257f]+|-{8,}", " ", re.sub(r"\x1b\[[0-9;]*m", "", box)).split()
    line = re.sub(
        r"^Value error Error parsing \w+: (.*) For full helptext.*", r"\1", " ".join(words)
    )
    guesses = re.search(r"Perhaps you meant: .*?(?=For full helptext|$)", line)
    if guesses and len(guesses[0]) > GUESSES:
        line = line.replace(guesses[0], "")
    return line or "unreadable options"


def _fail(message: str) -> int:
    if "codec can't encode" in message and sys.getfilesystemencoding() != "utf-8":
        message += " (set PYTHONUTF8=1: names of files are in UTF-8)"
    print(f"error: {message}", file=sys.stderr)
    return USAGE_ERROR


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen() -> None:
    """Makes SIGTERM and SIGHUP end a command as Ctrl-C does; what is ignored stays ignored."""
    for stop in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(stop) != signal.SIG_IGN:  # as `nohup` starts it
            signal.signal(stop, _interrupt)


@contextmanager
def held() -> Iterator[Callable[[], bool]]:
    """Lets interruptions wait until the block ends; yields a function that says if one has come.

    They are not masked, since another thread would take them. Only the main thread is ever
    interrupted: in others nothing is held.

    Raises:
        KeyboardInterrupt: at the end of a block that did not fail, if one has come.
    """
    came, before = list[int](), dict[signal.Signals, Callable[[int, FrameType | None], object]]()
    try:
        if threading.current_thread() is threading.main_thread():
            for stop in STOPS:
                if callable(now := signal.getsignal(stop)):  # else it kills, or is ignored
                    before[stop] = now
                    signal.signal(stop, lambda number, _: came.append(number))
        yield lambda: bool(came)
    finally:
        for stop, handler in reversed(before.items()):  # Ctrl-C last: it may end the loop
            signal.signal(stop, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def after(done: str) -> Iterator[None]:
    """Lets an interruption of the block say this in the place of "nothing was written"."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(done) from stop


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


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
