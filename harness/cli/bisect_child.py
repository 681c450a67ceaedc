"""The child process of `mla-harness bisect`, which runs one command line under another
interpreter.
"""

from __future__ import annotations

from typing import Any

from harness.cli.main import exit_code_of
from harness.run.protocol import answer_once
from harness.run.requests import CommandLine


def run(command: CommandLine) -> dict[str, Any]:
    return {"code": exit_code_of(list(command.arguments))}


if __name__ == "__main__":
    answer_once(CommandLine, run)
