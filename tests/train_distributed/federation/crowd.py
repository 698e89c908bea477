"""Many users in one process, each with its endpoint and its own connection to the operator.

python crowd.py FOLDER PORT
"""

import sys
import threading
import time
from pathlib import Path

from train_distributed.federation.attendance import Attendance, attend
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.secure_sum.journal import VolatileJournal

sys.path.insert(0, str(Path(__file__).parent))
from plain_node import plain_vector


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    federation = Federation.load(folder / "federation.json")
    threads = [
        threading.Thread(target=_user, args=(folder, port, federation, user), daemon=True)
        for user in sorted(federation.users)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _user(folder: Path, port: int, federation: Federation, user: int) -> None:
    vector = plain_vector(user, federation.dimension)
    keys = read_private(folder / f"user{user}")
    attendance = Attendance(
        endpoint=UserEndpoint(federation, user, keys, lambda: vector, VolatileJournal()),
        federation=federation,
        party=user,
        keys=keys,
        address=f"127.0.0.1:{port}",
        certificates=folder / "tls" / "server.pem",
        say=lambda _: None,
    )
    attend(attendance)


if __name__ == "__main__":
    start = time.monotonic()
    main()
    print(f"crowd: {time.monotonic() - start:.1f} s, of them {time.process_time():.1f} CPU s")
