"""Sum of the masks of protocol `secagg`, by as many processes as there is work for.

Threads do not do: they wait longer for one another's turn in the interpreter than a second core
saves. A further process is a fresh interpreter: a server that runs threads must not be forked, and
`multiprocessing` would start its program again. It reads masks from its standard input, as fast as
it adds them, and writes their sum to its standard output: secrets are in no argument, variable or
file, and it ends soon after the server does, however that ends.
"""

import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from train_distributed.secure_sum.keys import agree, exchange_key
from train_distributed.secure_sum.prg import add_stream, derive, subtract_stream

MASK = struct.Struct(">II32s32s")  # user, peer, the user's secret, the peer's X25519 key
KEY_WORDS = 2**15  # of a mask, made in the time that its key is agreed in
PROCESS_WORDS = 2**30  # that a process is started for: 1 s of one core; the start takes 0.3 s
_SESSION = struct.Struct(">Q32s")  # dimension, digest
_ROOT = str(Path(__file__).parents[2])
_PROCESS = """import sys
sys.path[:] = sys.argv[1:]
from train_distributed.secure_sum.masks import serve
serve()"""


def pair_seed(
    digest: bytes, private: X25519PrivateKey, public: bytes, user: int, peer: int
) -> bytes:
    """The seed of the mask that `user` and `peer` share in a session; either's key gives it."""
    ends = struct.pack(">II", min(user, peer), max(user, peer))
    return derive(agree(private, public), b"mask" + digest + ends)


def cores() -> int:
    """Cores that this process may keep busy, by its affinity and its container's quota."""
    import joblib

    return joblib.cpu_count()


def processes_for(dimension: int, own: int, shared: int) -> int:
    """Number of processes for so many masks, whose secrets are seeds, or keys to agree on."""
    words = (own + shared) * dimension + shared * KEY_WORDS
    return min(cores(), 1 + words // PROCESS_WORDS)


def add_masks(total: NDArray[np.uint64], digest: bytes, masks: bytes) -> None:
    """Adds masks, each as MASK, to `total` (d,), in place, modulo 2^64.

    With itself, a user's own: the secret is the seed. With a peer, their shared one, as it stands
    in the peer's vector: the secret is the user's private key.
    """
    key = lru_cache(1)(exchange_key)  # takes as long to make as to use
    for user, peer, secret, public in MASK.iter_unpack(masks):
        if user == peer:
            add_stream(total, secret)
        else:
            seed = pair_seed(digest, key(secret), public, user, peer)
            (add_stream if peer < user else subtract_stream)(total, seed)


def sum_masks(
    dimension: int,
    digest: bytes,
    users: Iterable[int],
    masks_of: Callable[[int], bytes],
    processes: int,
) -> NDArray[np.uint64]:
    """(d,) the masks of all users, added up by this process and up to `processes - 1` others.

    Whoever is ready takes the next user, best those of many masks first, and adds its `masks_of`.
    Where fewer can be started, those do. When one fails, all end.

    Raises:
        ChildProcessError: a process failed or was killed.
    """
    total, left = np.zeros(dimension, np.uint64), deque(users)
    with ExitStack() as stack:
        others = [stack.enter_context(other) for other in _started(processes - 1)]
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        for other in others:
            stack.callback(other.kill)  # before the pool waits for who talks to it

        def part_of(other: subprocess.Popen[bytes]) -> bytes:
            told = map(masks_of, _taken(left))
            try:
                return _ask(other, _SESSION.pack(dimension, digest), told, total.nbytes)
            finally:
                left.clear()  # is empty, unless this one failed

        parts = [pool.submit(part_of, other) for other in others]
        for user in _taken(left):
            add_masks(total, digest, masks_of(user))
        for part in parts:
            total += np.frombuffer(part.result(), np.uint64)
    return total


def serve() -> None:
    """Adds up masks from standard input; the work of the other processes."""
    told = sys.stdin.buffer
    dimension, digest = _SESSION.unpack(told.read(_SESSION.size))
    total = np.zeros(dimension, np.uint64)
    while masks := told.read(64 * MASK.size):
        add_masks(total, digest, masks)
    sys.stdout.buffer.write(total.data)


def _started(most: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts processes, at most so many; fewer where the machine has no room for them."""
    with suppress(OSError):
        for _ in range(most):
            yield _start()


def _start() -> subprocess.Popen[bytes]:
    """A process that serves, whose modules are found where this one's are.

    Its pipes hold little, so that it takes no more than it can add at once.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _PROCESS, *sys.path, _ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pipesize=4096,
        start_new_session=True,  # an interruption ends this process, and this process ends it
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _ask(other: subprocess.Popen[bytes], head: bytes, told: Iterable[bytes], size: int) -> bytes:
    """Reads the sum of one process."""
    assert other.stdin is not None
    assert other.stdout is not None
    answer = b""
    with suppress(BrokenPipeError), other.stdout:
        with other.stdin:
            other.stdin.write(head)
            other.stdin.writelines(told)
        answer = other.stdout.read(size + 1)
    if other.wait() or len(answer) != size:
        raise ChildProcessError(
            f"a process that adds masks must give {size} bytes and end with 0, gave "
            f"{len(answer)} and ended with {other.returncode}; nothing is released"
        )
    return answer


def _taken(left: deque[int]) -> Iterator[int]:
    """Takes one after the other; threads may share what is left."""
    with suppress(IndexError):
        while True:
            yield left.popleft()
