"""Strangers that hold connections to an operator, and come back when they lose them.

python idlers.py PORT IDLE SLOW: of IDLE ones half say nothing at all, half nothing after their TLS
handshake; SLOW ones send a header that never ends, a byte a second. "ready" is printed once all are
there.
"""

import asyncio
import resource
import ssl
import sys
from contextlib import suppress


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


async def main(port: int, idle: int, slow: int) -> None:
    kinds = ["silent"] * (idle // 2) + ["idle"] * (idle - idle // 2) + ["slow"] * slow
    came = [asyncio.Event() for _ in kinds]
    tasks = [asyncio.create_task(stranger(port, *each)) for each in zip(kinds, came, strict=True)]
    await asyncio.gather(*(event.wait() for event in came))
    print("ready", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main(*map(int, sys.argv[1:])))
