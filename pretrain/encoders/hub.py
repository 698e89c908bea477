"""Downloads by other libraries, which end in weights or in one line."""

import contextlib
import logging
import os
import socket
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

CONNECT_SECONDS = 5.0


@contextlib.contextmanager
def hub(what: str, *, local: bool = False) -> Iterator[None]:
    """Inside, the Hugging Face hub is asked; without network only its cache, at once.

    Left to itself its client tries for a minute and tells every trial.

    Args:
        what: is to be had, for the message.
        local: it lies in a directory here, so nobody is asked.

    Raises:
        ValueError: whatever goes wrong inside, in one line.
    """
    from huggingface_hub import constants

    offline, silent = constants.HF_HUB_OFFLINE, logging.root.manager.disable
    constants.HF_HUB_OFFLINE = offline or local or not _reachable(constants.ENDPOINT)
    logging.disable(logging.CRITICAL)
    try:
        yield
    except Exception as error:  # of the client, the network, the cache or the file
        rule = "readable" if local else "on the hub or in its cache"
        cut_off = constants.HF_HUB_OFFLINE and not (offline or local)
        state = "no network" if cut_off else type(error).__name__
        words = " ".join(str(error).split())[:200]
        raise ValueError(f"{what} must be {rule}, got {state}: {words}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.disable(silent)


def _reachable(endpoint: str) -> bool:
    """Whether somebody answers there; behind a proxy it is taken for granted."""
    address = urlsplit(endpoint)
    if address.scheme in urllib.request.getproxies() or "ALL_PROXY" in os.environ:
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
