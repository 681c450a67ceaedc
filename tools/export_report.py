"""Export every known bug that has a script, and run the scripts where there is only torch.

    python3 tools/export_report.py --venv DIR [--seconds 20] [--keep DIR] [FAULT...]
    python3 tools/export_report.py --refused

DIR is a virtual environment; a missing one is made, with nothing but torch in it. Prints two tables of docs/export.md:
the scripts, and the bugs without a script, with the reason. `--refused` prints only the second and runs nothing. Exit
code 1 when a script does not fail with its bug or does not pass without it.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from markdown_page import row, table

from harness.diagnose.script.code import MARKER
from harness.diagnose.script.export import check, refused, scripted, tried
from harness.diagnose.script.recipes import RECIPES
from harness.run.environment import describe_machine

TORCH = "torch==2.13.0"
HEAD = ("fault", "scenario", "lines", "fails with the bug, passes without", "how it fails", "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="only these")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--refused", action="store_true", help="only list the bugs without a script, and why")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to make each case smaller")
    parser.add_argument("--keep", type=Path, help="where the scripts are left")
    options = parser.parse_args()
    if options.refused:
        print(refused_table())
        return 0
    if options.venv is None:
        parser.error("--venv DIR: name a virtual environment, which is made when it is missing")
    python = make_venv(options.venv)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="mla-harness-export-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{packages(python)}; Python {platform.python_version()}; {platform.platform()}; {describe_machine().cpu}\n")
    print(table(HEAD))
    good = [exported(*pair, folder, python, options.seconds) for pair in pairs(options.faults)]
    print(f"\n{sum(good)} of {len(good)} scripts do what they say")
    if not options.faults:
        print("\n" + refused_table())
    return 0 if all(good) else 1


def pairs(wanted: list[str]) -> list[tuple[str, str]]:
    """Each fault that has a script, with each scenario that it is made from; only the wanted faults, if any."""
    # A fault that is named is tried, whatever the tables say of it.
    known = {name: cases for name, cases in tried().items() if name in wanted} if wanted else scripted()
    found = {(name, case.scenario): None for name, cases in known.items() for case in cases}
    order = list(RECIPES)
    return sorted(found, key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))


def refused_table() -> str:
    """How many known bugs have a script, and the others by the reason why they have none."""
    with_script, without = scripted(), refused()
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in without.items():
        by_reason[reason].append(f"`{name}`")
    count = f"{len(with_script)} of {len(with_script) + len(without)} known bugs have a script."
    rows = [(reason, len(names), ", ".join(names)) for reason, names in sorted(by_reason.items())]
    return f"{count}\n\n{table(('why no script', 'how many', 'bugs'), rows)}"


def exported(fault: str, scenario: str, folder: Path, python: Path, seconds: float) -> bool:
    """Export one bug with the command, run its script with `python`, print the row. Returns whether both went well."""
    path = folder / f"{scenario}-{fault.replace('.', '-')}.py"
    started = time.monotonic()
    words = ["repro", scenario, "--fault", fault, "--script", str(path), "--shrink-seconds", str(seconds), "-n", "2"]
    command = [sys.executable, "-m", "harness.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    names = (f"`{fault}`", f"`{scenario}`")
    if done.returncode:
        print(row((*names, "", f"no script: {done.stderr}", "", "")), flush=True)
        return False
    text = path.read_text(encoding="utf-8")
    found = check(text, may_crash=fault == "plan.padded-row-block-minus-one", python=str(python))
    words = ["yes, yes" if found.holds else found.sentence, found.with_bug.last_line.partition("\n")[0][:80]]
    print(row((*names, len(text.splitlines()), *words, f"{time.monotonic() - started:.0f}")), flush=True)
    return found.holds and text.count(MARKER) == 1


def make_venv(folder: Path) -> Path:
    """The interpreter of a virtual environment that holds torch; a missing environment is made."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", TORCH], check=True)
    return python


def packages(python: Path) -> str:
    command = [str(python), "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return ", ".join(sorted(listed.stdout.split(), key=lambda name: not name.startswith("torch")))


if __name__ == "__main__":
    sys.exit(main())
