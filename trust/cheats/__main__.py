"""`python -m trust.cheats [--device cuda] [NAME]...`: judge each kernel that cheats, and print the
table of docs/data/cheats.md. `python tools/records.py docs/data/cheats.md` keeps it in a file.

Exit code 1 if a cheat passes, or a legal kernel does not.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from pathlib import Path

from harness.core.errors import InputError
from harness.loop import Judge

FOLDER = Path(__file__).parent
FILES = ("kernels.py", "processes.py", "at_import.py")


def cheats() -> dict[str, tuple[Path, str]]:
    """The name of each kernel, its file, and the first line of its docstring."""
    found = {}
    for file in map(FOLDER.joinpath, FILES):
        for one in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(one, ast.FunctionDef):
                found[one.name] = file, (ast.get_docstring(one) or "").partition("\n")[0]
    return found


def legal() -> tuple[str, ...]:
    """The kernels that break no promise."""
    found: list[str] = []
    for file in map(FOLDER.joinpath, FILES):
        for one in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == "LEGAL":
                found += ast.literal_eval(one.value)
    return tuple(found)


def judged(judge: Judge, name: str) -> tuple[str, str]:
    """The verdict of a kernel, and its evidence: the sentence of a finding that is one of a cheat,
    else oracle and cause of each finding.
    """
    file, _ = cheats()[name]
    try:
        found = judge.judge(f"{file}:{name}", "mla_decode")
    except InputError as error:
        return "refused", str(error)
    if found.is_right:
        return "legal" if name in legal() else "PASS", ""
    evidence = [one.message for one in found.causes if one.cause == "cheats"]
    if evidence:
        return "**cheats**", in_short(evidence[0])
    return "red", ", ".join(f"{one.oracle}: {one.cause}" for one in found.causes)


def in_short(sentence: str) -> str:
    """The evidence without the name of the kernel, the rows and the pattern."""
    text = sentence.partition(" (pattern")[0].replace("|", "/")
    words = text.split(" ")
    return " ".join(words[1:] if words and "/" in words[0] else words)


def main(names: list[str], device: str) -> int:
    """Print a row for each kernel. Returns the exit code."""
    wrong = 0
    known = cheats()
    print("| kernel | what it does | verdict | evidence | seconds |")
    print("| --- | --- | --- | --- | --- |")
    with Judge(device=device, seed=7) as judge:
        for name in names or known:
            # A right kernel takes minutes, as all calls are made. The table is on stdout.
            print(f"judging {name} ...", file=sys.stderr, flush=True)
            started = time.monotonic()
            verdict, evidence = judged(judge, name)
            seconds = time.monotonic() - started
            wrong += verdict == "PASS" or (verdict == "legal") != (name in legal())
            doc = known[name][1]
            print(f"| `{name}` | {doc} | {verdict} | {evidence} | {seconds:.0f} |", flush=True)
    print(f"{len(names or known)} kernels, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    sys.exit(main(given.names, given.device))
