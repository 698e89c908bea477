"""A node's process that talks to the network: fetches questions, hands them on, brings answers.

It holds the node's key, with which Flower knows it, and the operator's authority; the party's keys
and rows are in the process that started it, which it cannot read. It never fetches an app and
never runs one: what is not a query of the secure sum is answered with an error.

    party -> carrier   configuration (JSON) | ANSWER answer
    carrier -> party   QUESTION question | STATE words
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from train_distributed.flower.transport import frames
from train_distributed.flower.transport.envelope import Foreign
from train_distributed.flower.transport.fleet import Fleet, Refused, of_tls
from train_distributed.flower.transport.processes import started
from train_distributed.flower.transport.sandbox import confine

RETRY_SECONDS = 2.0
_HEARTBEAT_SECONDS = 3.0  # between looks at the line while the party works on an answer

Answer = Callable[[bytes, Callable[[], None]], bytes]


def main(line: int, parent: int) -> None:
    """Carries until the party hangs up.

    Args:
        line: file descriptor of the socket to the party.
        parent: the party's process.
    """
    with started(line, parent) as (party, config):
        largest = int(config["largest"])
        port = int(config["address"].rpartition(":")[2])
        own = Path(os.environ["TMPDIR"])
        confined = confine(own, (port,), 2**30 + 64 * largest)
        words = "confined" if confined else "no Landlock here: files of this user are readable"
        try:
            frames.send(party, frames.STATE, words.encode())
            carry(
                config,
                lambda question, beat: _ask(party, question, beat, largest),
                lambda words: frames.send(party, frames.STATE, words.encode()),
                lambda: not frames.hung_up(party),
            )
        except (ConnectionError, OSError):
            return  # the party is gone


def _ask(party: socket.socket, question: bytes, beat: Callable[[], None], largest: int) -> bytes:
    frames.send(party, frames.QUESTION, question)
    while True:
        frame = frames.receive(party, 1 + largest, _HEARTBEAT_SECONDS)
        if frame is not None:
            return frame[1:]
        beat()


def carry(
    config: dict[str, Any],
    answer: Answer,
    say: Callable[[str], None],
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Connects, again and again, and carries.

    Args:
        config: address, ca and key (PEM), largest (bytes), poll (seconds).
        answer: the party's; it is given a function to call now and then while it works.
        say: told in words how the connection stands, whenever that changes.
        wanted: asked before each step.
    """
    said = ""

    def tell(words: str) -> None:
        nonlocal said
        if words != said:
            said = words
            say(words)

    while wanted():
        try:
            with Fleet(config) as fleet:
                tell(frames.CONNECTED.decode())
                while wanted():
                    _step(fleet, answer, tell, float(config["poll"]))
        except Refused as error:
            tell(str(error))
        except httpx.HTTPError as error:
            tell(_cause(error))
        time.sleep(RETRY_SECONDS if wanted() else 0)


def _step(fleet: Fleet, answer: Answer, tell: Callable[[str], None], poll: float) -> None:
    try:
        question = fleet.pull()
    except Foreign as error:
        tell(f"refused what the operator sent: {error}")
        return
    if question is None:
        time.sleep(poll)
        return
    fleet.push(question, answer(question.content, fleet.beat))
    tell(frames.CONNECTED.decode())


def _cause(error: httpx.HTTPError) -> str:
    text = str(error)
    if "certificate" in text.lower():
        return of_tls(text)
    if isinstance(error, httpx.HTTPStatusError):
        return f"the operator refuses: {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return "the operator does not answer"
    return f"nobody listens: {text}"
