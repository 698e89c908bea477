"""What happens when a process is killed, stopped or started twice, at every stage of a session.

python kill_matrix.py OUT.md runs `test_kills.py`, and writes the table of what it found.
"""

import platform
import subprocess
import sys
from pathlib import Path

from tests.train_distributed.federation.test_kills import TIMEOUT

HEAD = f"""# Killed, stopped, started twice

Five users, real processes and TLS on loopback, one session agreed, time-out {TIMEOUT:g} s, on
{platform.machine()} with Python {platform.python_version()}. Written by
`python tests/train_distributed/federation/kill_matrix.py results/secure_sum/kill-matrix.md`.
A sum is compared with the plain sum of the same users, bit for bit; after each session no process
was left. Seconds include the time-outs waited for and the start of every process.

| what | when asking | outcome | seconds |
|---|---|---|---|
"""


def main() -> int:
    tests = str(Path(__file__).with_name("test_kills.py"))
    given = ["-m", "slow", "-n", "0", "-s", "-q", "-k", "struck or doubles", tests]
    rows = list[str]()
    command = [sys.executable, "-m", "pytest", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout or ():
            print(line, end="", flush=True)
            rows += [line] * line.startswith("| ")
    Path(sys.argv[1]).write_text(HEAD + "".join(rows))
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
