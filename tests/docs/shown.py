"""Commands that a page shows, with their output: run them word by word, compare, or write the
output anew.

    python tests/docs/shown.py README.md docs/judge-your-kernel.md           run and compare python
    tests/docs/shown.py --write README.md                             run, and write what they print

A block is fenced as `console`. A line that starts with `$ ` is a command, the lines below it are
its output. `…` alone on a line stands for lines that are left out. A block after a comment `<!--
not run: REASON -->` is not run. Commands run in a folder of their own, in which `docs`, `examples`,
`scenarios` and `tests` are links into the checkout. Times, run ids, folders and speeds are compared
without their digits. Lines of progress do not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = "/home/me/mla-harness"
BLOCK = re.compile(
    r"^(<!-- not run: (?P<why>[^>]+) -->\n)?```console\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LEFT_OUT = "…"
MOST_SECONDS = 7200
"""A run of all cases of a plug-in lasts ten minutes on two idle cores."""
_VARIES = (
    (re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}"), "20260101T000000Z-0000"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|ms)\b"), "0 s"),
    (re.compile(r"\b[\d,]+ a second"), "0 a second"),
)
_PROGRESS = re.compile(r": \d+ s so far|\brun, \d+ s so far|\bof \d+ cases after \d+ s")
"""A line of progress, which a command in a pipe prints if it lasts: a busy machine prints more."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of a page with the output that the page shows.

    `why_not` is the reason not to run it.
    """

    page: str
    command: str
    output: str
    why_not: str = ""


def shown_in(page: Path) -> list[Shown]:
    """The commands of a page, in their order."""
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        parts = re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]
        for part in parts:
            command, _, output = part.partition("\n")
            command = command.partition("    #")[0]
            found.append(Shown(page.name, command.strip(), output, block["why"] or ""))
    return found


def printed(command: str, folder: Path) -> str:
    """What a command prints, standard error included, with the checkout's folder as HOME.

    Raises RuntimeError if it ends in another exit code than 0 and 1: lines that a page leaves out
    could hide that.
    """
    shim = folder / "bin" / "mla-harness"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m harness.cli.main "$@"\n')
    shim.chmod(0o755)
    for name in ("docs", "examples", "scenarios", "tests"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    environ = {
        **os.environ,
        "PATH": f"{shim.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    environ |= {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    if done.returncode > 1:
        raise RuntimeError(f"{command}: ended in exit code {done.returncode}: {done.stdout[-500:]}")
    return done.stdout.replace(str(ROOT), HOME).replace(str(folder), HOME)


def plain(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: times, ids, widths of tables,
    progress.
    """
    for pattern, word in _VARIES:
        text = pattern.sub(word, text)
    lines = [re.sub(r"─+", "─", re.sub(r"  +", "  ", line.rstrip())) for line in text.splitlines()]
    return [line for line in lines if line.strip() and not _PROGRESS.search(line)]


def differs(shown: str, got: str) -> str:
    """The first line that is shown and was not printed in this order; empty if the output is as
    shown.
    """
    wanted, lines = plain(shown), plain(got)
    place, may_skip = 0, False
    for line in wanted:
        if line.strip() == _LEFT_OUT:
            may_skip = True
            continue
        rest = lines[place:]
        at = rest.index(line) if may_skip and line in rest else 0
        if not rest or rest[at] != line:
            return f"shown:   {line}\nprinted: {rest[0] if rest else 'nothing more'}"
        place, may_skip = place + at + 1, False
    left = lines[place:]
    return f"printed and not shown: {left[0]}" if left and not may_skip else ""


def write(page: Path) -> None:
    """Run the commands of a page, and replace what it shows.

    A block with lines left out stays as it is.
    """

    def renewed(block: re.Match[str]) -> str:
        if block["why"] or f"\n{_LEFT_OUT}\n" in block["body"]:
            return block[0]
        lines = []
        for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
            command = part.partition("\n")[0]
            output = "\n".join(
                line.rstrip()
                for line in printed(command.partition("    #")[0], folder).splitlines()
            )
            lines.append(f"$ {command}\n" + (f"{output.strip()}\n" if output.strip() else ""))
        return "```console\n" + "".join(lines) + "```"

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = page.read_text(encoding="utf-8")
        page.write_text(BLOCK.sub(renewed, text), encoding="utf-8")


def main() -> int:
    """Check or write the pages that are named; returns the exit code."""
    names = [word for word in sys.argv[1:] if word != "--write"]
    bad = 0
    for name in names:
        page = ROOT / name
        if "--write" in sys.argv:
            write(page)
            continue
        with tempfile.TemporaryDirectory() as folder:
            for shown in shown_in(page):
                found = f"not run: {shown.why_not}" if shown.why_not else ""
                problem = (
                    "" if found else differs(shown.output, printed(shown.command, Path(folder)))
                )
                bad += bool(problem)
                print(f"{name}: {shown.command}: {found or problem or 'as shown'}", flush=True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
