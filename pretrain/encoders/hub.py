"""Downloads by other libraries, with one line for every error."""

import contextlib
import logging
import os
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

CONNECT_SECONDS = 5.0


@contextlib.contextmanager
def hub(what: str, *, local: bool = False) -> Iterator[None]:
    """Context for the client of the Hugging Face hub; without network it uses its cache at once.

    By default the client retries for a minute and logs every trial.

    Args:
        what: name of the download, for errors.
        local: the files are in a local directory, so the hub is not asked.

    Raises:
        ValueError: any error inside, in one line.
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
    """Whether the endpoint accepts connections; behind a proxy this is assumed."""
    address = urlsplit(endpoint)
    if address.scheme in urllib.request.getproxies() or "ALL_PROXY" in os.environ:
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silences transformers' progress bars and its table of heads that were left out."""
    log = transformers.utils.logging
    level = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
