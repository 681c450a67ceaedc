"""`python -m trust.cheats [--device cuda] [NAME]...`: judge each kernel that cheats, and print the
table.

Exit code 1 if a cheat passes, or a legal kernel does not.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels.py"


def cheats() -> dict[str, str]:
    """The name of each kernel of the file, and the first line of its docstring."""
    tree = ast.parse(KERNELS.read_text(encoding="utf-8"))
    return {
        one.name: (ast.get_docstring(one) or "").partition("\n")[0]
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and one.decorator_list
    }


def legal() -> tuple[str, ...]:
    """The kernels of the file that break no promise."""
    tree = ast.parse(KERNELS.read_text(encoding="utf-8"))
    for one in tree.body:
        if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == "LEGAL":
            return tuple(ast.literal_eval(one.value))
    raise AssertionError("kernels.py has no LEGAL")


def judged(name: str, folder: str, *more: str) -> tuple[int, list[str], float]:
    """The exit code, `oracle: cause` of each failing case's first finding, and the seconds."""
    started = time.monotonic()
    words = ("judge", f"{KERNELS}:{name}", "--seed", "7", "--out", folder, *more)
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    runs = sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime)
    results = runs[-1] / "results.jsonl"
    found: dict[str, None] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        for finding in json.loads(line)["findings"][:1]:
            found[f"{finding['oracle']}: {finding['cause']}"] = None
    return done.returncode, list(found), seconds


def main(names: list[str], device: str) -> int:
    """Print a row for each kernel. Returns the exit code."""
    wrong = 0
    known = cheats()
    with tempfile.TemporaryDirectory() as folder:
        print("| kernel | what it does | verdict | by | seconds |\n| --- | --- | --- | --- | --- |")
        for name in names or known:
            code, found, seconds = judged(name, folder, "--device", device)
            is_legal = name in legal()
            wrong += code != (0 if is_legal else 1)
            verdict = {0: "pass (legal)" if is_legal else "PASS", 1: "red"}.get(
                code, f"exit {code}"
            )
            by = ", ".join(found)
            print(f"| {name} | {known[name]} | {verdict} | {by} | {seconds:.0f} |", flush=True)
    print(f"{len(names or known)} kernels, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    sys.exit(main(given.names, given.device))
