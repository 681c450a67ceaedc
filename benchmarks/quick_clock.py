"""Run a command whose clock runs RATE times as fast:

`python benchmarks/quick_clock.py RATE -- COMMAND...`.

To the command, and to all processes that it starts, the machine is RATE times as slow: every time
limit comes RATE times as early. It finds in minutes what a load such as `stress.py` shows in hours:
a test, or the harness itself, that depends on how quick a machine is. Must be green:

    python benchmarks/quick_clock.py 15 -- pytest -n 2 -m "not nightly"

Linux with glibc and a C compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def environment(rate: float, folder: Path) -> dict[str, str]:
    """The environment variables of a command with the quick clock. Builds its library in `folder`.

    Raises OSError without a C compiler, and subprocess.CalledProcessError if it fails.
    """
    library = folder / "quick_clock.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lm"], check=True
    )
    preload = os.pathsep.join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    return {
        "LD_PRELOAD": preload,
        "QUICK_CLOCK_RATE": str(rate),
        "QUICK_CLOCK_SINCE": str(time.monotonic()),
    }


def main() -> None:
    """Read the command line, and run the command."""
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit(f"usage: {sys.argv[0]} RATE -- COMMAND...")
    with tempfile.TemporaryDirectory() as folder:
        variables = environment(float(sys.argv[1]), Path(folder))
        sys.exit(
            subprocess.run(sys.argv[3:], env={**os.environ, **variables}, check=False).returncode
        )


if __name__ == "__main__":
    main()
