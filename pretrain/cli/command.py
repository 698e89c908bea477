"""Running a command: it ends with its result, or with one line that says what was wrong."""

import contextlib
import io
import os
import re
import select
import sys
from collections.abc import Callable
from typing import Protocol

from pretrain.cli.interrupts import listen
from pretrain.cli.terminal import replace_missing

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
