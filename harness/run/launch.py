"""The first code of a child process: from here on it dies with its parent, also while it imports
its own module.

Its arguments are those of :mod:`harness.run.protocol`. It imports little, to be ready at once.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import select
import signal
import sys
import threading


def die_with_parent(parent: int = 0) -> None:
    """Have Linux kill this process when its parent dies.

    Ends now if `parent` is given and already dead.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if parent and os.getppid() != parent:
        # The parent may have died between the fork and the call above, and its signal would never
        # come.
        os._exit(0)


def _die_with_requests(requests: int) -> None:
    """Wait until the parent closes its end of the requests, or dies.

    Then end this process and its group.
    """
    # Without events to wait for, poll reports only that the other end was closed.
    poll = select.poll()
    poll.register(requests, 0)
    poll.poll()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def words_of(module: str, *arguments: str, parent: int) -> list[str]:
    """The arguments of Python that run `module` here, as a child of the process `parent`.

    0 is for a child whose parent is another program.
    """
    # -P: the working directory may hold a `torch.py` of the user.
    return ["-P", "-m", "harness.run.launch", str(parent), module, *arguments]


def begin_imports() -> None:
    """Have Python look for no garbage until :func:`end_imports`.

    What is imported stays, so each look would be in vain, and torch alone would cause hundreds.
    """
    gc.disable()


def end_imports() -> None:
    """Let Python look for garbage again, but not among what was imported.

    A fork then writes to less of the memory that it shares with its server.
    """
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    parent = int(sys.argv[1])
    module = sys.argv[2]
    del sys.argv[1:3]
    if parent and sys.platform == "linux":
        die_with_parent(parent)
    else:
        # A copy of the descriptor: the module puts /dev/null in the place of standard input.
        threading.Thread(target=_die_with_requests, args=(os.dup(0),), daemon=True).start()
    # The module imports first, and says itself when it has.
    begin_imports()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
