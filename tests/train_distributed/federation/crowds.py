"""Crowds that an operator has to bear. Run as a process; "ready" is printed once all are there.

python crowds.py flood FOLDER PARTY PORT: an enrolled party, whose polls follow each other on eight
lines without a pause, every second one with an answer as long as may be.

python crowds.py idlers PORT IDLE SLOW: strangers that hold connections, and come back when they
lose them. Of IDLE ones half say nothing at all, half nothing after their TLS handshake; SLOW ones
send a header that never ends, a byte a second.
"""

import asyncio
import base64
import resource
import ssl
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx

from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.orders import Poll, name_of_question, write_poll

LINES = 8


def flood(folder: Path, party: str, port: int) -> None:
    federation, keys = Federation.load(folder / "federation.json"), read_private(folder / party)
    tls = ssl.create_default_context(cafile=str(folder / "tls" / "server.pem"))
    user, ready = int(party.removeprefix("user")), threading.Event()
    path = f"https://127.0.0.1:{port}/relay/{federation.digest.hex()}"

    def line(number: int) -> None:
        while True:
            try:
                with httpx.Client(verify=tls, timeout=0.5) as http:
                    while True:
                        number += LINES
                        content = bytes(federation.largest_frame if number // LINES % 2 else 0)
                        poll = Poll(user, name_of_question(b"%d" % number), content)
                        body, shown = write_poll(federation, poll, keys)
                        headers = {SUMMARY: base64.b64encode(shown).decode()}
                        http.post(path, content=body, headers=headers)
                        ready.set()
            except httpx.TransportError:
                ready.set()

    for number in range(LINES):
        threading.Thread(target=line, args=(number,), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    threading.Event().wait()


async def stranger(port: int, kind: str, came: asyncio.Event) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        with suppress(OSError):
            tls = None if kind == "silent" else context
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            came.set()
            if kind != "slow":
                await reader.read()
            else:
                writer.write(b"POST /relay/0 HTTP/1.1\r\nx-a: ")
                while not writer.is_closing():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(1)
            writer.close()
        await asyncio.sleep(1)


async def idle(port: int, idlers: int, slow: int) -> None:
    kinds = ["silent"] * (idlers // 2) + ["idle"] * (idlers - idlers // 2) + ["slow"] * slow
    came = [asyncio.Event() for _ in kinds]
    tasks = [asyncio.create_task(stranger(port, *each)) for each in zip(kinds, came, strict=True)]
    await asyncio.gather(*(event.wait() for event in came))
    print("ready", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1] == "flood":
        flood(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    asyncio.run(idle(*map(int, sys.argv[2:])))
