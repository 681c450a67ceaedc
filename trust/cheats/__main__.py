"""`python -m trust.cheats [--device cuda] [NAME]...`: judge each kernel that cheats, and print the
table of docs/data/cheats.md.

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

FOLDER = Path(__file__).parent
FILES = ("kernels.py", "processes.py", "at_import.py")
PASSES, FAILS, REFUSED = 0, 1, 2
"""Exit codes of `mla-harness judge`."""


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


def judged(name: str, folder: str, *more: str) -> tuple[int, list[str], str, float]:
    """The exit code, `oracle: cause` of each failing case's first finding, the sentence of the
    first finding that is one of a cheat, and the seconds.
    """
    started = time.monotonic()
    file, _ = cheats()[name]
    words = ("judge", f"{file}:{name}", "--op", "mla_decode", "--seed", "7", "--out", folder, *more)
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    if done.returncode == REFUSED:
        return REFUSED, [], done.stderr.strip(), seconds
    runs = sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime)
    results = runs[-1] / "results.jsonl"
    found: dict[str, None] = {}
    evidence: dict[str, None] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        for finding in result["findings"][:1]:
            found[f"{finding['oracle']}: {finding['cause']}"] = None
        for finding in result["findings"]:
            if finding["cause"] == "cheats":
                evidence[finding["message"]] = None
    return done.returncode, list(found), next(iter(evidence), ""), seconds


def in_short(sentence: str) -> str:
    """The evidence without the name of the kernel, the rows and the pattern."""
    text = sentence.partition(" (pattern")[0].replace("|", "/")
    words = text.split(" ")
    return " ".join(words[1:] if words and "/" in words[0] else words)


def main(names: list[str], device: str) -> int:
    """Print a row for each kernel. Returns the exit code."""
    wrong = 0
    known = cheats()
    with tempfile.TemporaryDirectory() as folder:
        print("| kernel | what it does | verdict | evidence | seconds |")
        print("| --- | --- | --- | --- | --- |")
        for name in names or known:
            code, found, evidence, seconds = judged(name, folder, "--device", device)
            is_legal = name in legal()
            wrong += code != PASSES if is_legal else code == PASSES
            if code == FAILS:
                verdict = "**cheats**" if evidence else "red"
            else:
                verdict = {PASSES: "legal" if is_legal else "PASS", REFUSED: "refused"}[code]
            shown = in_short(evidence) or ", ".join(found)
            print(
                f"| `{name}` | {known[name][1]} | {verdict} | {shown} | {seconds:.0f} |", flush=True
            )
    print(f"{len(names or known)} kernels, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    sys.exit(main(given.names, given.device))
