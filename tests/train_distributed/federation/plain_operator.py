"""An operator that saves the sum instead of a model. Run as a process by the tests.

python plain_operator.py FOLDER PORT
"""

import sys
from pathlib import Path

import numpy as np

from train_distributed.federation.documents.certificates import SERVER, serving
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.operation import Operation, operate
from train_distributed.federation.record import settle


def main() -> int:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    operation = Operation(
        federation=Federation.load(folder / "federation.json"),
        keys=read_private(folder / "server0"),
        tls=serving(folder / "tls", folder / "tls" / SERVER),
        host="127.0.0.1",
        port=port,
        state=folder / "state",
        run=folder / "run",
        ready=lambda: (folder / "ready").touch(),
    )
    try:
        (opened,), _ = operate(operation)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    np.savez(folder / "opened.npz", total=opened.total, users=sorted(opened.users))
    settle(operation.state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
