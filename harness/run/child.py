"""A child process, as its parent handles it: requests, replies, time limits, a log, and how it
died.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, Protocol, Self, cast

import torch_poison

import harness
from harness.core.cause_codes import Code
from harness.core.checkout import adapter_folders
from harness.core.crash_stack import shortened
from harness.core.errors import HarnessError, InputError, NoRoomError
from harness.core.files import keep_for_reader
from harness.core.params import Record
from harness.run.launch import words_of
from harness.run.protocol import Reply, encode

LOG_TAIL_BYTES = 6_000
MAX_STACK_BYTES = 64_000
"""The end of a log in which the stack of a crash is looked for; faulthandler prints 100 frames of
each thread.
"""
# A log above this size is emptied while its child runs: a kernel may print in a loop.
MAX_LOG_BYTES = 8_000_000
MAX_LINE_BYTES = 64_000_000
FULL_BYTES = 4 << 20
"""A disk with less room counts as full: what ends because of it frees its own files."""
STACK_SECONDS = 30.0
"""How long a hanging child gets to print its stack, which ends it.

Only one that no signal reaches takes so long.
"""
END_SECONDS = 30.0
"""How long a child that has closed its replies gets to be gone.

Only one that hangs takes so long.
"""
# How long one wait lasts at most: after it, time limits and Ctrl-C are looked at.
TICK_SECONDS = 0.2
MEASURED = "COVERAGE_PROCESS_CONFIG"
"""The environment variable that coverage.py sets for the children of a process that it measures."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The environment of a child that works on small matrices: one thread for each numeric library."""
CRASH_TITLE = "Fatal Python error: "
"""The first words of the stack that a crash leaves in the log."""


class Death(NamedTuple):
    """How a child ended."""

    how: str
    """One sentence."""
    cause: str
    """Two words: "SIGSEGV", "exit code 7"."""
    code: int | None
    """The exit code, negative for a signal; None if the harness killed the child."""
    is_hang: bool
    seconds: float
    """Since the last request."""
    log: str
    """The end of its output, and its stack if it crashed or hung."""

    @property
    def as_cause(self) -> dict[str, Any]:
        """Its code, and the signal or exit code, as fields of a finding."""
        return (
            {"cause": Code.TIME_LIMIT}
            if self.is_hang
            else {"cause": Code.DIED, "error": self.cause}
        )

    @property
    def ended(self) -> str:
        """The end of a sentence that begins with the name of the process."""
        return (
            f"ended with {self.cause}"
            if self.code is not None and self.code >= 0
            else f"died ({self.cause})"
        )


class ChildDied(HarnessError):
    """A child died, hung, or wrote garbage instead of a reply."""

    def __init__(self, name: str, death: Death) -> None:
        super().__init__(f"{name} died ({death.cause})")
        self.death = death
        self.log = death.log


class Process(Protocol):
    """The part of `subprocess.Popen` that `Child` uses."""

    pid: int

    @property
    def stdin(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


class ForkStarter(Protocol):
    """Starts a module in a fork; see :class:`harness.run.fork_server.ForkServer`."""

    def start(
        self, module: str, *arguments: str, environ: Mapping[str, str], log: int, replies: int
    ) -> Process: ...


def _started(program: Sequence[str], log: int, replies: int, environ: dict[str, str]) -> Process:
    """The new process of `program`, which writes to the descriptors `log` and `replies`."""
    return subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=(replies,),
        env=environ,
        # A session of its own: Ctrl-C reaches the parent alone, which then ends its children in
        # order.
        start_new_session=True,
    )


class Child:
    """A child in its own process group, so that ending it also ends the processes that its kernels
    started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        name: str,
        python: str = sys.executable,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
        seconds: float = math.inf,
        forks: ForkStarter | None = None,
    ) -> None:
        """Start `module` in a new interpreter.

        The module calls :func:`harness.run.protocol.run_child`.

        `name` is for sentences, such as "the worker". `prefix` is a program, with its arguments,
        that runs the interpreter. `environ` is added to this process's environment. The log is a
        temporary file unless `log` names one. `seconds` limits the time to the first reply. `forks`
        starts the module in a fork instead. Raises HarnessError if the program cannot be started.
        """
        self.name = name
        self._replies: deque[Reply] = deque()
        self._buffer = bytearray()
        self._is_closed_stream = self._is_garbled = self._is_late = self._is_killed = False
        self._death: Death | None = None
        self._stack_begins: int | None = None
        self._log = _open_log(log)
        # The child inherits the descriptor, which does not append by the mode of its file object.
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        self._stream, replies = os.pipe()
        # The parent reads what is there and goes on: it has other children to serve.
        os.set_blocking(self._stream, False)
        self.allow(seconds)
        settings = _child_environ(environ or {})
        log_of_child = self._log.fileno()
        try:
            if forks is not None:
                self._process: Process = forks.start(
                    module, *arguments, environ=settings, log=log_of_child, replies=replies
                )
            else:
                # The child ends with its parent. Behind a prefix, such as a sanitizer, that program
                # is its parent.
                parent = 0 if prefix else os.getpid()
                words = words_of(module, str(replies), *arguments, parent=parent)
                program = [*prefix, python, *words]
                self._process = _started(program, log_of_child, replies, settings)
        except BaseException as error:
            os.close(self._stream)
            self._log.close()
            if isinstance(error, OSError):
                raise HarnessError(f"{name} cannot be started: {error}") from None
            raise
        finally:
            os.close(replies)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor of the replies, for a selector."""
        return self._stream

    def send(self, request: Record, seconds: float = math.inf) -> bool:
        """Send one request and start its clock. Returns False if the child is already dead."""
        self.allow(seconds)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(request))
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def allow(self, seconds: float) -> None:
        """Start the clock of the next reply."""
        self._budget_seconds = seconds
        self._started = time.monotonic()

    def read(self) -> None:
        """Read the replies that have arrived, without waiting."""
        if self._is_closed_stream:
            return
        try:
            while chunk := os.read(self._stream, 1 << 16):
                self._buffer += chunk
                # A kernel that writes to our descriptor without a newline would fill the parent's
                # memory.
                if len(self._buffer) > MAX_LINE_BYTES:
                    self._is_garbled = True
                    return
            self._is_closed_stream = True
        except BlockingIOError:
            pass
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            try:
                self._replies.append(Reply.model_validate_json(line))
            except ValueError:
                self._is_garbled = True

    def take(self) -> Reply | None:
        """The oldest reply, or None.

        Taking a reply stops the clock. Raises NoRoomError if that ended the request.
        """
        if not self._replies:
            return None
        # An idle child has no time limit. The next request starts the clock again.
        self._budget_seconds = math.inf
        if (reply := self._replies.popleft()).is_full:
            raise NoRoomError(reply.failed)
        return reply

    def ended(self) -> bool:
        """Whether no more replies will come: the child died, ran out of time, or wrote garbage."""
        if self._process.poll() is not None:
            # What the child said before it died is still in the pipe, and counts.
            self.read()
            return not self._replies
        if self._elapsed() > self._budget_seconds and not self._replies:
            self._is_late = True
            return True
        return self._is_garbled or (self._is_closed_stream and not self._replies)

    def receive(self) -> Reply:
        """Wait for the next reply.

        Raises ChildDied if none will come, and NoRoomError if a full disk may be why.
        """
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        while (reply := self.take()) is None:
            if self.ended():
                self.check_room()
                raise ChildDied(self.name, self.death())
            poll.poll(TICK_SECONDS * 1000)
            self.read()
        return reply

    def answer(self) -> Reply:
        """Like `receive`, but raises InputError if the child refused, and HarnessError if it
        failed.
        """
        reply = self.receive()
        if reply.refused is not None:
            raise InputError(reply.refused)
        if reply.failed is not None:
            where = (
                f"; traceback in {keep_for_reader(reply.traceback, 'traceback')}"
                if reply.traceback
                else ""
            )
            raise HarnessError(reply.failed + where)
        return reply

    def wait(self, seconds: float) -> int | None:
        """The exit code once the process has ended, or None if it has not after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def death(self) -> Death:
        """How the child ended; kills a child that still runs.

        Call it when no reply is expected any more.
        """
        if self._death is None:
            seconds = self._elapsed()
            self._stack_begins = self._log_size()
            if self._is_late and self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    # The child answers with the stacks of its threads in the log: they say where it
                    # hangs.
                    self._process.send_signal(signal.SIGUSR1)
                self.wait(STACK_SECONDS)
            elif not self._is_garbled:
                # The stream closes a moment before the process is gone.
                self.wait(END_SECONDS)
            # Before the kill, or every code would be that of our own signal.
            code = self._process.poll()
            self.kill()
            how, cause = self._words(code)
            killed = self._is_late or self._is_garbled
            log = shortened(self.log(MAX_STACK_BYTES))
            self._death = Death(how, cause, None if killed else code, self._is_late, seconds, log)
        return self._death

    def _words(self, code: int | None) -> tuple[str, str]:
        if self._is_late:
            cause = f"no answer within {self._budget_seconds:g} s"
            return f"{cause}; {self.name} was killed", cause
        if self._is_garbled:
            return (
                f"{self.name}'s answers were garbled: something wrote to its protocol stream",
                "garbled answers",
            )
        if code is None:
            return (
                f"{self.name} closed its protocol stream and was killed",
                "closed protocol stream",
            )
        if code < 0:
            cause = next(
                # Linux has signals without a name in Python: `signal.Signals(40)` raises
                # ValueError.
                (known.name for known in signal.Signals if known == -code),
                f"signal {-code}",
            )
            return f"{self.name} died of {cause}", cause
        return f"{self.name} exited with code {code} in the middle of its work", f"exit code {code}"

    def log(self, num_bytes: int = LOG_TAIL_BYTES, end: int | None = None) -> str:
        """The last bytes of the log, or of its first `end` bytes."""
        end = self._log_size() if end is None else end
        begin = max(0, end - num_bytes)
        return os.pread(self._log.fileno(), end - begin, begin).decode("utf-8", "replace")

    def printed(self, num_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of the child's own output, without the stack that a crash or a hang left in the
        log.
        """
        text = self.log(num_bytes, self._stack_begins)
        died_of_signal = (
            self._death is not None and self._death.code is not None and self._death.code < 0
        )
        return text.rpartition(CRASH_TITLE)[0] if died_of_signal and CRASH_TITLE in text else text

    def check_room(self) -> None:
        """Raise NoRoomError if the log cannot grow: then what the child prints may have ended
        it.
        """
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        disk = os.fstatvfs(self._log.fileno())
        if disk.f_bavail * disk.f_frsize < FULL_BYTES or 0 < limit <= self._log_size():
            raise NoRoomError(
                f"{tempfile.gettempdir()}: no room for the log of {self.name}; make room, or set"
                " TMPDIR"
            )

    def last_line(self) -> str:
        """The end of the last line of the child's own output."""
        lines = [line.strip() for line in self.printed().splitlines() if line.strip()]
        return lines[-1][-300:] if lines else "it printed nothing"

    def empty_log(self, above_bytes: int = 0) -> None:
        """Empty the log if it is larger than `above_bytes`."""
        if self._log_size() > above_bytes:
            # Both ends append, so the child goes on writing at the new end.
            self._log.truncate(0)

    def close(self) -> None:
        """End the process and its group, and close its files. Safe to call twice."""
        if self._log.closed:
            return
        if MEASURED in os.environ:
            # Coverage is written at the end of a process that is not killed.
            with contextlib.suppress(BrokenPipeError):
                cast(IO[bytes], self._process.stdin).close()
            self.wait(END_SECONDS)
        self.kill()
        os.close(self._stream)
        self._log.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End the process and its group. What it said stays to be read."""
        # Only once: after the group's last member is gone, another program may get its id.
        if not self._is_killed:
            self._is_killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # The group, because a kernel's own children would hold the GPU.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size


def ask(
    module: str,
    request: Record,
    *,
    name: str,
    environ: Mapping[str, str] | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Start a child, send it one request, and return the result.

    `on_progress` gets what it reports meanwhile.

    Raises InputError if the child refuses, and HarnessError if it fails or dies.
    """
    with Child(module, name=name, environ=environ) as child:
        child.send(request)
        try:
            while (reply := child.answer()).result is None:
                if on_progress is not None and reply.progress is not None:
                    on_progress(reply.progress)
        except ChildDied as died:
            where = keep_for_reader(child.log(MAX_LOG_BYTES), "log")
            raise HarnessError(f"{died}: {child.last_line()}; its log is in {where}") from None
        return reply.result


def _open_log(path: Path | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile(mode="a+b", prefix="mla-harness-")
    path.write_bytes(b"")
    return path.open("a+b")


def _child_environ(extra: Mapping[str, str]) -> dict[str, str]:
    """This environment with `extra`, and with this package, the poison and adapters importable:

    `python -P` ignores the working directory.
    """
    environ = {**os.environ, **extra}
    # One folder where they are installed, several in a checkout.
    packages = (
        str(Path(file).resolve().parents[1]) for file in (harness.__file__, torch_poison.__file__)
    )
    ours = dict.fromkeys([*packages, *adapter_folders()])
    return environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [*ours, environ.get("PYTHONPATH")]))
    }
