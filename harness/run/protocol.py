"""The one protocol between a process and its children: requests go one way, replies the other, one
JSON object a line.

`python -P -m harness.run.launch PARENT MODULE REPLIES [ARGUMENT]...` starts a child, as
`harness.run.child.Child` does. PARENT is the process id of the parent, or 0 if another program
stands between them. REPLIES is the descriptor for replies. Requests come on standard input.
Standard output and standard error are the child's log: kernels may print.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

from harness.core.errors import HarnessError, InputError, NoRoomError, named, stack_of
from harness.core.params import Record
from harness.run.launch import end_imports

MAX_SENTENCE = 1000

RecordT = TypeVar("RecordT", bound=Record)


class Reply(Record):
    """One line from a child. Exactly one of the first five fields is set."""

    ready: dict[str, Any] | None = None
    """The child has loaded what it needs, and can take requests."""
    progress: dict[str, Any] | None = None
    """The request is not done yet."""
    result: dict[str, Any] | None = None
    """The request is done."""
    refused: str | None = None
    """One sentence about input that cannot be used."""
    failed: str | None = None
    """One sentence about the error that ended the request."""
    traceback: str = ""
    """The stack of an unexpected error, beside `failed`."""
    is_full: bool = False
    """The error is that a disk is full, or a file may not grow."""
    is_spent: bool = False
    """The child's CUDA context failed for good, or a thread still computes.

    The child ends and must be replaced.
    """


def encode(message: Record) -> bytes:
    """One line of strict JSON. Raises ValueError for NaN."""
    text = json.dumps(
        message.model_dump(), allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )
    # A kernel's message may hold lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace") + b"\n"


def reply_to_error(error: BaseException) -> Reply:
    """The reply to a request that ended in `error`.

    The log gets the stack unless the child refused.
    """
    if isinstance(error, InputError):
        return Reply(refused=_one_line(error))
    stack = stack_of(error)
    sys.stderr.write(stack)
    if isinstance(error, HarnessError):
        return Reply(failed=_one_line(error), is_full=isinstance(error, NoRoomError))
    return Reply(failed=_one_line(named(error)), traceback=stack)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:MAX_SENTENCE]


class Parent:
    """The parent as its child sees it."""

    def __init__(self, replies: int) -> None:
        """Hide standard input and the descriptor for replies from kernels and from the processes
        they start.
        """
        self._requests = os.fdopen(os.dup(0), "rb")
        self._replies = replies
        os.set_inheritable(replies, False)
        # A kernel that reads standard input would take the next request, or wait for one for ever.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def close(self) -> None:
        """Close both ends: a fork of this process is no child of the parent."""
        self._requests.close()
        os.close(self._replies)

    def request(self, kind: type[RecordT]) -> RecordT | None:
        """The next request, or None when the parent has no more.

        Raises ValueError for a line that is no request.
        """
        return next(self.requests(kind), None)

    def requests(self, kind: type[RecordT]) -> Iterator[RecordT]:
        """All requests, until the parent has no more."""
        for line in self._requests:
            yield kind.model_validate_json(line)

    def reply(self, reply: Reply) -> None:
        """Send one reply. Earlier output is in the log before the reply arrives."""
        payload = memoryview(encode(reply))
        sys.stdout.flush()
        sys.stderr.flush()
        # A full pipe takes a part of a long line.
        while payload:
            payload = payload[os.write(self._replies, payload) :]


def run_child(main: Callable[[Parent], None]) -> NoReturn:
    """Run `main` as a child process. An error is sent as a reply, and decides the exit code.

    Takes REPLIES from `sys.argv` and leaves the other arguments there. After a crash, or on SIGUSR1
    before the parent kills a hanging child, the log shows the stack of every thread.
    """
    parent = Parent(int(sys.argv.pop(1)))
    faulthandler.enable(all_threads=True)
    # After the stack the signal ends the process, so the parent sees that the stack is whole.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    end_imports()
    code = 0
    try:
        main(parent)
    except BaseException as error:
        code = error.exit_code if isinstance(error, HarnessError) else HarnessError.exit_code
        parent.reply(reply_to_error(error))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and CUDA contexts of a kernel or an engine must not keep the process alive.
    os._exit(code)


def answer_once(kind: type[RecordT], answer: Callable[[RecordT], dict[str, Any]]) -> NoReturn:
    """Run this process as a child that answers one request by `answer`, and ends."""
    answer_each(kind, lambda request: [answer(request)])


def answer_requests(
    kind: type[RecordT],
    answer: Callable[[RecordT], dict[str, Any]],
    *,
    begin: Callable[[], None] = lambda: None,
    once: bool = False,
) -> NoReturn:
    """Run this process as a child that answers requests until the parent has no more, or `once`.

    `begin` is called first. An error of `answer` ends one request only; `once`, it ends the
    process, and decides its exit code.
    """

    def main(parent: Parent) -> None:
        begin()
        for request in parent.requests(kind):
            parent.reply(Reply(result=answer(request)) if once else reply_to(request, answer))
            if once:
                return

    run_child(main)


def reply_to(request: RecordT, answer: Callable[[RecordT], dict[str, Any]]) -> Reply:
    """The reply to one request: the result of `answer`, or its error.

    Exits and Ctrl-C pass through: they end the child.
    """
    try:
        return Reply(result=answer(request))
    except Exception as error:
        return reply_to_error(error)


def answer_each(
    kind: type[RecordT], answers: Callable[[RecordT], Iterable[dict[str, Any]]]
) -> NoReturn:
    """Run this process as a child that takes one request, sends each of its answers, and ends."""

    def main(parent: Parent) -> None:
        request = parent.request(kind)
        for result in answers(request) if request is not None else ():
            parent.reply(Reply(result=result))

    run_child(main)
