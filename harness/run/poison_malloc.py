"""A program whose malloc hands out filled memory: the environment to start it with.

The poison of torch's allocator does not reach what C++ takes from malloc. Here a small library
stands before that of glibc (`LD_PRELOAD`). It is compiled when it is asked for.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.core.errors import InputError
from harness.core.files import made_once

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O1", "-shared", "-fPIC")


def environment(byte: int, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process whose malloc fills blocks with `byte`, 0 to 255.

    `folder` keeps the compiled library. Raises InputError where it cannot be made.
    """
    library = compiled(folder)
    before = environ.get("LD_PRELOAD")
    return {
        **environ,
        "LD_PRELOAD": f"{library}:{before}" if before else str(library),
        "POISON_MALLOC_BYTE": str(byte),
        "POISON_MALLOC_TELL": "1",
    }


def compiled(folder: Path) -> Path:
    """The library in `folder`, which is made if it is not there.

    Raises InputError without glibc or a C compiler, and for one that fails.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        raise InputError("--poison-malloc: needs Linux with glibc and a C compiler, such as cc")
    named = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = folder / f"poison-malloc-{named}.so"

    def compile_to(made: Path) -> None:
        command = [compiler, *FLAGS, "-o", str(made), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.split())[:200]
            raise InputError(f"--poison-malloc: {compiler} fails: {why}")

    return made_once(library, compile_to)
