"""Rights that a process gives up before it talks to the network.

On Linux: it dies with its parent, gains no privileges, writes no core dumps, and Landlock (kernel
5.13 and later) takes away every file but the programs', the configuration's and its own directory,
tracing and signalling of other processes, and all TCP but what is named. Elsewhere, or where the
kernel refuses, `confine` says so, and what remains is another process without keys or rows.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, the same number on every machine
_PATH_BENEATH, _NET_PORT = 1, 2  # kinds of rule
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, read a directory
_FILE_ONLY = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_CONNECT, _BIND = 1 << 1, 1 << 0
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/dev/null", "/dev/urandom", "/run/systemd/resolve")


def leash(parent: int) -> None:
    """Ties this process to the one that started it: killed when that dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Other processes of the same user may not trace this one, nor read its memory."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def confine(own: Path, connect: Iterable[int], memory: int) -> bool:
    """Gives up everything that a carrier of messages does not need; there is no way back.

    Args:
        own: the one directory to read and write.
        connect: TCP ports to connect to; none may be bound (sockets bound before stay).
        memory: bytes of data this process may hold.

    Returns:
        Whether files and other processes are out of reach: the kernel has Landlock.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = libc.syscall(_CREATE, None, 0, 1)
    return version >= 1 and _landlock(libc, version, own, connect)


def _landlock(libc: ctypes.CDLL, version: int, own: Path, connect: Iterable[int]) -> bool:
    every = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    fields = (
        [every] + [_CONNECT | _BIND] * (version >= 4) + [3] * (version >= 6)
    )  # abstract, signal
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = libc.syscall(_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    for path in (*_SYSTEM, *_programs()):
        _allow(libc, ruleset, Path(path), _READ)
    _allow(libc, ruleset, own, every)
    if version >= 4:
        for port in connect:
            rule = struct.pack("=QQ", _CONNECT, port)
            libc.syscall(_ADD_RULE, ruleset, _NET_PORT, rule, 0)
    done = libc.syscall(_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return done


def _programs() -> set[str]:
    """Directories of this Python, its packages and this package."""
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return places | {sys.base_prefix, str(Path(__file__).parents[1])}


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    if not path.exists():
        return
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", access if path.is_dir() else access & _FILE_ONLY, place)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
