"""Environment that other libraries find: no telemetry, and a folder for their caches.

`pretrain` sets it before any of them is imported; processes that this one starts inherit it.
"""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile

SILENCE = {"DO_NOT_TRACK": "1", "ORT_DISABLE_TELEMETRY": "1"}  # ONNX Runtime heeds its own alone


def silence() -> None:
    """Turns the telemetry of other libraries off, whatever the environment said before.

    Without it ONNX Runtime writes a device id and a queue of events below the home folder.
    """
    os.environ.update(SILENCE)


def provide_caches() -> None:
    """Names a place for caches where there is no home folder that can hold them.

    It is $XDG_CACHE_HOME, or a temporary folder, which stderr is told and which the end of this
    process removes. A user id that no file knows has no home; `~` is then a folder of that name in
    the working directory for some libraries, and an error for others.
    """
    home, place = os.path.expanduser("~"), os.environ.get("XDG_CACHE_HOME")
    known = os.path.isabs(home) and os.path.isdir(home)
    if known and (os.path.isdir(f"{home}/.cache") or os.access(home, os.W_OK | os.X_OK)):
        return
    with contextlib.suppress(OSError):  # no temporary folder either: whoever needs a cache says so
        place = place or _temporary()
        os.environ["XDG_CACHE_HOME"] = place
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(place, "matplotlib"))
        if not known:
            os.environ["HOME"] = place


def _temporary() -> str:
    place, process = tempfile.mkdtemp(prefix="blind-averaging-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a forked child leaves it to its parent
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    print(
        f"caches are in {place} until this ends, for there is no home folder that can be written; "
        "XDG_CACHE_HOME names a lasting place",
        file=sys.stderr,
    )
    return place


silence()
provide_caches()
