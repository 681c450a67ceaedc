"""`python -P -m harness.cell.server SOCKET`: forks a cell for each connection.

torch is imported once, so a cell starts at once. Between the server and a cell stands a guard: it
ends the cell when the judge is gone, and tells the judge how a cell died.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
from pathlib import Path

import torch

import harness
from harness.cell import inside, walls
from harness.cell.channel import Channel
from harness.run.launch import die_with_parent, end_imports

HIDDEN = Path(harness.__file__).parent
"""Folder of the judge's code, which no cell sees."""
NUM_FILES = 3
"""Descriptors that come with a connection: the arena, the log, and the pipe for how it died."""
DIED = struct.Struct("!i")


def main(path: str) -> None:
    """Accept connections until the parent dies."""
    end_imports()
    # A fork has one thread. The pool of torch's threads would be gone in a cell, and waited for.
    torch.set_num_threads(1)
    _keep_triton_cache()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    # The kernel of Linux reaps guards.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        try:
            _guard(connection)
        finally:
            # No handlers at exit, as they belong to the server that this was forked from.
            os._exit(0)


def _keep_triton_cache() -> None:
    """Compiled kernels stay where they are, though a cell has a home of its own."""
    home = Path(os.environ.get("HOME", "/"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(home / ".triton" / "cache"))


def _guard(connection: socket.socket) -> None:
    """Fork the cell, wait for its end or the judge's, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    _, files, _, _ = socket.recv_fds(connection, 1, NUM_FILES)
    arena, log, deaths = files
    home = tempfile.mkdtemp(prefix="mla-harness-cell-")
    pid = os.fork()
    if not pid:
        os.close(deaths)
        _cell(connection, arena, log, home)
    code = _wait(pid, connection)
    shutil.rmtree(home, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.write(deaths, DIED.pack(code))


def _wait(pid: int, connection: socket.socket) -> int:
    """The exit code of the cell, negative for a signal. It is killed if the judge is gone."""
    watched = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(connection, select.POLLRDHUP)
    while True:
        ready = {file for file, _ in poll.poll()}
        if watched not in ready:
            # The cell may have forks of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            # It stays closed, and would end each further poll at once.
            poll.unregister(connection)
            continue
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            # What the kernel forked outlives it, and would hold the log and the arena.
            os.killpg(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)


def _cell(connection: socket.socket, arena: int, log: int, home: str) -> None:
    code = 1
    try:
        # A group of its own, which the guard kills with all that the kernel forked.
        os.setsid()
        die_with_parent()
        for standard in (1, 2):
            os.dup2(log, standard)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.enable(file=2, all_threads=True)
        os.chdir(home)
        os.environ["HOME"] = os.environ["TMPDIR"] = home
        standing = walls.raise_walls(HIDDEN)
        # The kernel may end this process, so what it prints must not wait in a buffer.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        channel = Channel(connection)
        channel.send(",".join(standing).encode())
        inside.serve(channel, arena, HIDDEN)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
