"""Lines of code in a stack, and whose they are. Importing this module loads no torch."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_LIBRARIES = re.compile(r"[/\\](?:torch|triton)[/\\]|^<")
"""Files of torch and Triton, and code without a file."""

_skipped = {str(Path(__file__).parent) + "/"}
"""Folders of packages that allocate for others."""


def skip_package(path: str) -> None:
    """Pass over the frames of a package, in the folder `path`, that allocates for others."""
    _skipped.add(path.rstrip("/\\") + "/")


def allocates_for_others(file: str) -> bool:
    """Whether the code of a file allocates on behalf of its caller."""
    return file.replace("\\", "/").startswith(tuple(_skipped)) or bool(_LIBRARIES.search(file))


def line_of(frame: traceback.FrameSummary) -> str:
    """A line of code: `my_kernel.py:20 in decode: raise ValueError()`."""
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}: {frame.line}"


def line_of_caller() -> str:
    """The innermost line of the stack that allocates for itself; empty if there is none."""
    stack = reversed(traceback.extract_stack())
    return next((line_of(frame) for frame in stack if not allocates_for_others(frame.filename)), "")
