"""Children that begin as a fork of a process which imported torch, or an engine, once.

`python -m harness.run.fork_server MODULE[:FUNCTION]...` imports the modules, calls the functions,
and forks for each request. It must not touch CUDA, because a CUDA context does not survive a fork,
and it runs nothing else, so no thread of its own is lost in a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from harness.core.errors import HarnessError
from harness.core.params import Record
from harness.run.child import TICK_SECONDS, Child
from harness.run.launch import begin_imports, die_with_parent, end_imports
from harness.run.protocol import Parent, Reply, run_child


class ForkRequest(Record):
    """A module to run as a child in a fork. The descriptors are open in the process `owner`."""

    module: str
    arguments: tuple[str, ...]
    environ: dict[str, str]
    owner: int
    requests: int
    replies: int
    log: int


class ForkedProcess:
    """A fork, with the part of `subprocess.Popen` that `Child` uses.

    Only the server can wait for it.
    """

    def __init__(self, server: ForkServer, pid: int, stdin: int) -> None:
        self.pid = pid
        self.stdin = os.fdopen(stdin, "wb")
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the fork runs."""
        if self._code is None:
            self._code = self._server.code(self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
            self._server.wait(TICK_SECONDS / 10)
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class ForkServer:
    """A server for the forks of this process. It dies with this process, and its forks with it."""

    def __init__(
        self,
        imports: Sequence[str],
        *,
        name: str,
        environ: Mapping[str, str],
        seconds: float,
        waits: bool = True,
    ) -> None:
        """Start the server, and wait as `wait_until_ready` does, unless `waits` is false.

        `name` is for sentences.
        """
        self._is_closed = self._is_ready = False
        # Exit codes that the server has reported, until the fork's own handle asks for its code.
        self._codes: dict[int, int] = {}
        self._child = Child(__name__, *imports, name=name, environ=environ, seconds=seconds)
        if waits:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the server has imported its modules.

        Raises HarnessError if an import fails, touches CUDA, or takes longer than the server's
        `seconds`.
        """
        if self._is_ready:
            return
        try:
            self._child.answer()
        except HarnessError:
            self.close()
            raise
        self._is_ready = True

    def start(
        self, module: str, *arguments: str, environ: Mapping[str, str], log: int, replies: int
    ) -> ForkedProcess:
        """Run `module` in a fork with this environment.

        `log` and `replies` are descriptors of this process.

        Raises HarnessError if the server is dead.
        """
        reader, writer = os.pipe()
        try:
            # Numbers of descriptors of this process: the server opens them by /proc, as a pipe
            # cannot be sent by a pipe.
            files = {"owner": os.getpid(), "requests": reader, "replies": replies, "log": log}
            self._child.send(
                ForkRequest(module=module, arguments=arguments, environ=dict(environ), **files)
            )
            while (progress := (reply := self._child.answer()).progress) is None:
                self._note(reply)
        except BaseException:
            os.close(writer)
            raise
        finally:
            # The fork has its own copy. A copy here would keep the pipe open when the fork is gone.
            os.close(reader)
        return ForkedProcess(self, progress["pid"], writer)

    def code(self, pid: int) -> int | None:
        """The exit code of a fork, or None while it runs. It is handed out once. A fork dies with
        its server.
        """
        if self._is_closed:
            # Forks die with their server, and no process is left to say how.
            return -signal.SIGKILL
        is_dead = self.is_dead()
        self._child.read()
        while (reply := self._child.take()) is not None:
            self._note(reply)
        return self._codes.pop(pid, -signal.SIGKILL if is_dead else None)

    def wait(self, seconds: float) -> None:
        """Wait until the server says something, at most `seconds`."""
        select.select([self._child.fileno()], [], [], seconds)

    def _note(self, reply: Reply) -> None:
        """Keep the exit code that the server reports when a fork ends."""
        if reply.result is not None:
            self._codes[reply.result["pid"]] = reply.result["code"]

    @property
    def pid(self) -> int:
        """The id of the process that forks."""
        return self._child.pid

    def is_dead(self) -> bool:
        return self._is_closed or self._child.ended()

    def close(self) -> None:
        self._is_closed = True
        self._child.close()


class Forks:
    """A server of forks that starts with its first use, again if it died, and never where it
    cannot.
    """

    def __init__(
        self,
        imports: Sequence[str],
        *,
        name: str,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`imports` as in :class:`ForkServer`; `name` is for sentences.

        `refused` is called once, with the reason, when it is found that there can be no server.
        """
        self._imports = imports
        self._name = name
        self._refused = refused
        self._server: ForkServer | None = None
        self.why_not = ""
        """Why there is no server, once it was found that none can be."""

    def begin(self, environ: Mapping[str, str], seconds: float) -> None:
        """Start the server, which then imports while this process does something else."""
        if self._server is None and not self.why_not:
            # What goes wrong is found when the server is used.
            with contextlib.suppress(HarnessError):
                self._server = self._started(environ, seconds)

    def server(self, environ: Mapping[str, str], seconds: float) -> ForkServer | None:
        """The server; None where its modules cannot be imported before a fork."""
        if self.why_not:
            return None
        try:
            if self._server is None or self._server.is_dead():
                self.close()
                self._server = self._started(environ, seconds)
            self._server.wait_until_ready()
        except HarnessError as error:
            self._server = None
            self.why_not = str(error)
            self._refused(self.why_not)
        return self._server

    def _started(self, environ: Mapping[str, str], seconds: float) -> ForkServer:
        return ForkServer(
            self._imports, name=self._name, environ=environ, seconds=seconds, waits=False
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def _serve(parent: Parent) -> None:
    server = os.getpid()
    before = dict(os.environ)
    begin_imports()
    for module in sys.argv[1:]:
        name, _, function = module.partition(":")
        owner = importlib.import_module(name)
        if function:
            getattr(owner, function)()
    end_imports()
    # Imports set variables that code reads once: a fork of the imported process needs them.
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise HarnessError("importing initialized CUDA, which does not survive a fork")
    running: set[int] = set()

    def report_ended(number: int, frame: types.FrameType | None) -> None:
        """Report each fork that has ended.

        Runs between two requests only, so replies do not mix.
        """
        # `waitpid` raises an error if there is no child at all. An imported module may have a child
        # of its own, which is not reported.
        while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] in running:
                running.remove(found[0])
                parent.reply(
                    Reply(result={"pid": found[0], "code": os.waitstatus_to_exitcode(found[1])})
                )

    signal.signal(signal.SIGCHLD, report_ended)
    parent.reply(Reply(ready={}))
    for request in parent.requests(ForkRequest):
        # Until the fork is in `running`. One that ends at once would be reaped there, and never
        # reported.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        files = [
            os.open(f"/proc/{request.owner}/{name}", flags)
            for name, flags in (
                ("cwd", os.O_RDONLY),
                (f"fd/{request.requests}", os.O_RDONLY),
                (f"fd/{request.log}", os.O_WRONLY | os.O_APPEND),
                (f"fd/{request.replies}", os.O_WRONLY),
            )
        ]
        pid = os.fork()
        if pid == 0:
            # Only the server can tell how a fork ended, so no fork may outlive it.
            die_with_parent(server)
            # A variable that the imports set would be lost, unless the case gave it a value of its
            # own.
            kept = {
                name: value
                for name, value in imported.items()
                if request.environ.get(name) == before.get(name)
            }
            _become(parent, request.environ | kept, request, *files)
        # Both do it, because either may be first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        for file in files:
            os.close(file)
        running.add(pid)
        parent.reply(Reply(progress={"pid": pid}))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _become(
    parent: Parent,
    environ: Mapping[str, str],
    request: ForkRequest,
    folder: int,
    requests: int,
    log: int,
    replies: int,
) -> NoReturn:
    """Turn a fork into the child that `Child` expects: its group, folder, files, environment and
    arguments.
    """
    # A fork inherits the handler and the blocked signal. The case may start processes of its own.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    # The server's own pipe: a kernel that writes there would speak to the parent in its name.
    parent.close()
    # By the descriptor: the folder may have been renamed since.
    os.fchdir(folder)
    os.dup2(requests, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for file in (folder, requests, log):
        os.close(file)
    # The fork has the server's environment, and the case another.
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [request.module, str(replies), *request.arguments]
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    except BaseException as error:
        # `run_child` ends the process by itself. Only a module that fails before that comes here.
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    run_child(_serve)
