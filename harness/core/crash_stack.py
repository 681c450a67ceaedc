"""The Python stack that a crash or a time limit leaves in a worker's log, with the innermost frame
first.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

MAX_LOG = 6_000
"""Characters of a log that a result keeps."""
# The titles that `faulthandler` writes above the stacks.
_BEGIN = re.compile(
    r"^(?:Fatal Python error: .*|(?:Current thread|Thread|Stack)\b.* call first\):)$", re.M
)
_CURRENT = re.compile(r"^Current thread .*:\n(?:  .*\n?)*", re.M)
_FRAME = re.compile(r'^  File "([^"\n]*)", line (\d+) in (.*)$', re.M)
_STANDARD = sysconfig.get_path("stdlib")
# A name such as `<frozen importlib._bootstrap>` is no file of the user either.
_BELOW_KERNELS = re.compile(r"[/\\](?:torch|triton|numpy)[/\\]|^<")


def shortened(log: str) -> str:
    """The end of what a process printed, then its stack: the thread that crashed first, cut at the
    outer end.

    A stack of `faulthandler` begins with the innermost call, so the end of a log would lose it.
    """
    printed, stack = split(log)
    if not stack:
        return log[-MAX_LOG:]
    # faulthandler prints the current thread last, and a result keeps the beginning.
    if current := _CURRENT.search(stack):
        title = stack.partition("\n")[0] if stack.startswith("Fatal") else ""
        others = (stack[: current.start()].removeprefix(title), stack[current.end() :])
        stack = "\n".join(
            filter(None, (title, *(part.strip("\n") for part in (current[0], *others))))
        )
    return printed[-MAX_LOG // 2 :] + stack[: MAX_LOG // 2]


def split(log: str) -> tuple[str, str]:
    """What a process printed, and its stack; an empty one for a log without."""
    begin = _BEGIN.search(log)
    return (log[: begin.start()], log[begin.start() :]) if begin else (log, "")


def user_frame(log: str, plugins: Sequence[str] = ()) -> str:
    """The innermost frame of a plug-in, else the innermost above torch and the standard library.

    In one line: `FILE:LINE in FUNCTION: CODE`. Empty without a stack.
    """
    frames = _FRAME.findall(split(log)[1])
    own = {str(Path(plugin).resolve()) for plugin in plugins}
    inner = [frame for frame in frames if str(Path(frame[0]).resolve()) in own]
    inner += [frame for frame in frames if not _is_below(frame[0])]
    for file, line, function in inner:
        code = linecache.getline(file, int(line)).strip()
        return f"{Path(file).name}:{line} in {function}" + (f": {code}" if code else "")
    return ""


def innermost(log: str, count: int) -> list[str]:
    """The innermost frames of a log's stack, a line each; no line without a stack."""
    frames = _FRAME.findall(split(log)[1])[:count]
    return [f"{file}:{line} in {function}" for file, line, function in frames]


def _is_below(file: str) -> bool:
    # site-packages and dist-packages are folders in the folder of the standard library.
    is_standard = file.startswith(_STANDARD) and "-packages" not in file
    return is_standard or bool(_BELOW_KERNELS.search(file))
