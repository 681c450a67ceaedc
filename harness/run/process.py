"""One worker process as its parent sees it: a deadline, a log, replies, and how it died."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from typing import NamedTuple

from harness.core.python_path import python_path
from harness.run.protocol import Reply, Request, decode_reply, encode

LOG_TAIL_BYTES = 6_000
MAX_LOG_BYTES = 8_000_000
STACK_SECONDS = 0.5
"""How long a hanging worker gets to print its stack before it is killed."""
MAX_LINE_BYTES = 64_000_000


class Death(NamedTuple):
    """How a worker ended, after how long, and the end of what it printed."""

    how: str
    seconds: float
    log: str


class WorkerProcess:
    """A child in a process group of its own, so that ending it ends what its kernels started too."""

    def __init__(self, execute: str, environ: dict[str, str] | None, start_timeout_seconds: float) -> None:
        self.is_ready = False
        self._replies: deque[Reply] = deque()
        self._buffer = bytearray()
        self._closed_stream = False
        self._garbled = False
        self._timed_out = False
        self._is_killed = False
        self._budget_seconds = start_timeout_seconds
        self._started = time.monotonic()
        self._log = tempfile.TemporaryFile(mode="a+b", prefix="mla-harness-worker-")  # noqa: SIM115
        command = [sys.executable, "-P", "-m", "harness.run.worker", "--execute", execute, "--parent", str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_child_environ(environ),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def fileno(self) -> int:
        """The descriptor that replies come from, for a selector."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, request: Request, timeout_seconds: float) -> bool:
        """Hand over one request and start its clock; False when the worker was dead before it could begin."""
        self._empty_log()
        self._budget_seconds = timeout_seconds
        self._started = time.monotonic()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(request))
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def read(self) -> None:
        """Take in what has arrived."""
        if self._closed_stream:
            return
        try:
            while chunk := os.read(self.fileno(), 1 << 16):
                self._buffer += chunk
                if len(self._buffer) > MAX_LINE_BYTES:
                    self._garbled = True
                    return
            self._closed_stream = True
        except BlockingIOError:
            pass
        self._split_lines()

    def _split_lines(self) -> None:
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            try:
                self._replies.append(decode_reply(line))
            except ValueError:
                self._garbled = True

    @property
    def reply(self) -> Reply | None:
        """The oldest reply that nobody took."""
        return self._replies[0] if self._replies else None

    def take_reply(self) -> Reply | None:
        """The oldest reply, or None when there is none yet; taking it stops the clock."""
        if not self._replies:
            return None
        self._budget_seconds = math.inf
        return self._replies.popleft()

    def ended(self) -> bool:
        """Whether nothing more can be expected: it died, ran out of time, or talks nonsense."""
        if self._process.poll() is not None:
            self.read()
            return not self._replies
        if time.monotonic() - self._started > self._budget_seconds and not self._replies:
            self._timed_out = True
            return True
        return self._garbled or (self._closed_stream and not self._replies)

    def take_death(self) -> Death:
        """How it ended; kills it when it has not. Call after `ended`."""
        seconds = time.monotonic() - self._started
        if self._timed_out and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STACK_SECONDS)
        elif self._closed_stream:
            # The stream closes a moment before the process is gone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        code = self._process.poll()
        self._kill()
        return Death(self._words(code), seconds, self._log_tail())

    def _words(self, code: int | None) -> str:
        if self._timed_out:
            return f"no answer within {self._budget_seconds:g} s; the worker was killed"
        if self._garbled:
            return "the worker's answers were garbled: something wrote to its protocol stream"
        if code is None:
            return "the worker closed its protocol stream and was killed"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"the worker died of {name}"
        return f"the worker exited with code {code} in the middle of its work"

    def keep_log_small(self) -> None:
        """Drop what was printed when a kernel prints without end."""
        if os.fstat(self._log.fileno()).st_size > MAX_LOG_BYTES:
            self._empty_log()

    def close(self) -> None:
        """End the process and everything in its group, and free what it held. Safe to call twice."""
        self._kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _kill(self) -> None:
        # Once only: the group's id is ours until its last member is gone, and somebody else's some time after.
        if self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _empty_log(self) -> None:
        # Both ends append, so the worker goes on writing at the new end.
        self._log.truncate(0)

    def _log_tail(self) -> str:
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        raw = os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return raw.decode("utf-8", "replace")


def _child_environ(extra: dict[str, str] | None) -> dict[str, str]:
    """The worker's environment: ours, this package importable, and one thread for each numeric library."""
    environ = dict(os.environ) | (extra or {})
    return environ | {"PYTHONPATH": python_path(environ=environ), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
