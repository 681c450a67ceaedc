"""Run a command beside a load: `python benchmarks/stress.py [N] -- COMMAND...`.

N processes (20 unless given) use all the processor time that they get, until the command ends. The
exit code is the command's own. `python benchmarks/stress.py -- pytest -n 3 -m "not nightly"`
shows that no test depends on how quick the machine is.

A spinning process ends with the one that started it, by SIGKILL too: it looks who its parent is as
long as it spins.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

NUM_PROCESSES = 20


def spin(parent: int) -> None:
    """Use processor time as long as `parent` is the parent of this process."""
    number = 1
    while os.getppid() == parent:
        for _ in range(100_000):
            number = number * 1_103_515_245 % 2_147_483_647


def start_spinning() -> int:
    """The id of a new process that spins."""
    parent = os.getpid()
    if (pid := os.fork()) != 0:
        return pid
    # Ctrl-C is for the command. The spinning processes end with their parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        spin(parent)
    finally:
        os._exit(0)


def run_beside_load(num_processes: int, command: list[str]) -> int:
    """Run `command` to its end beside `num_processes` that spin, and return its exit code, as a
    shell would.
    """
    spinning = [start_spinning() for _ in range(num_processes)]
    try:
        with subprocess.Popen(command) as process:
            while True:
                try:
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    # The terminal has sent it to the command as well, which ends in its own way.
                    continue
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return 128 - code if code < 0 else code


def main() -> None:
    """Read the command line, and run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("n", nargs="?", type=int, default=NUM_PROCESSES, help="processes that spin")
    words = sys.argv[1:]
    if "--" not in words or words[-1] == "--":
        parser.error("name a command after --")
    place = words.index("--")
    given = parser.parse_args(words[:place])
    if given.n < 0:
        parser.error("N: at least 0")
    sys.exit(run_beside_load(given.n, words[place + 1 :]))


if __name__ == "__main__":
    main()
