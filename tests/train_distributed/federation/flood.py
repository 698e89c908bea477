"""An enrolled party that floods its operator. Run as a process.

python flood.py FOLDER PARTY PORT: on eight lines polls follow each other without a pause, every
second one with an answer as long as may be. "ready" is printed once the first was answered.
"""

import base64
import ssl
import sys
import threading
from pathlib import Path

import httpx

from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.orders import Poll, name_of_question, write_poll

LINES = 8


def main(folder: Path, party: str, port: int) -> None:
    federation, keys = Federation.load(folder / "federation.json"), read_private(folder / party)
    tls = ssl.create_default_context(cafile=str(folder / "tls" / "server.pem"))
    user, ready = int(party.removeprefix("user")), threading.Event()
    path = f"https://127.0.0.1:{port}/relay/{federation.digest.hex()}"

    def flood(number: int) -> None:
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

    for line in range(LINES):
        threading.Thread(target=flood, args=(line,), daemon=True).start()
    ready.wait()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
