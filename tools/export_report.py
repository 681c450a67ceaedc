"""Export every known bug of which there is a script, and run the scripts where there is only torch.

    python3 tools/export_report.py --venv DIR [--seconds 20] [--keep DIR] [FAULT...]
    python3 tools/export_report.py --refused

DIR is a virtual environment; a missing one is made, with nothing but torch in it. Prints two tables in Markdown, as in
docs/export.md: the scripts, and the bugs of which there is none, with the reason. The second alone, of `--refused`,
runs nothing. Ends with 1 when a script does not fail with its bug or does not pass without.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.diagnose.script.check import check
from harness.diagnose.script.code import MARKER
from harness.diagnose.script.coverage import refused, scripted, tried
from harness.diagnose.script.recipes import RECIPES

TORCH = "torch==2.13.0"


def main() -> int:
    """Export, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="only these")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--refused", action="store_true", help="only say of which bugs there is no script, and why")
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
    print(f"{packages(python)}; Python {platform.python_version()}; {platform.platform()}; {cpu()}\n")
    print("| fault | scenario | lines | fails with the bug, passes without | how it fails | s |")
    print("| --- | --- | --- | --- | --- | --- |")
    good = [row(fault, scenario, folder, python, options.seconds) for fault, scenario in pairs(options.faults)]
    print(f"\n{sum(good)} of {len(good)} scripts do what they say")
    if not options.faults:
        print("\n" + refused_table())
    return 0 if all(good) else 1


def pairs(wanted: list[str]) -> list[tuple[str, str]]:
    """Each fault of which there is a script, with each scenario that it is made from, or those that are wanted."""
    # One that was asked for by its name is tried, whatever the tables say of it.
    known = {name: cases for name, cases in tried().items() if name in wanted} if wanted else scripted()
    found = {(name, case.scenario): None for name, cases in known.items() for case in cases}
    order = list(RECIPES)
    return sorted(found, key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))


def refused_table() -> str:
    """How many known bugs have a script, and the others by why they have none."""
    with_script, without = scripted(), refused()
    count = f"{len(with_script)} of {len(with_script) + len(without)} known bugs have a script."
    lines = [count, "", "| why no script | how many | bugs |", "| --- | --- | --- |"]
    for reason in sorted(set(without.values())):
        names = [f"`{name}`" for name, why in without.items() if why == reason]
        lines.append(f"| {reason} | {len(names)} | {', '.join(names)} |")
    return "\n".join(lines)


def row(fault: str, scenario: str, folder: Path, python: Path, seconds: float) -> bool:
    """Export one bug with the command, run its script with `python`, print the row; whether it did what it says."""
    path = folder / f"{scenario}-{fault.replace('.', '-')}.py"
    started = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.cli.main", "repro", scenario, "--fault", fault, "--script", str(path),
            "--shrink-seconds", str(seconds), "-n", "2",
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"| `{fault}` | `{scenario}` |  | no script: {done.stderr.strip()} |  |  |", flush=True)
        return False
    text = path.read_text(encoding="utf-8")
    found = check(text, may_crash=fault == "plan.padded-row-block-minus-one", python=str(python))
    words = "yes, yes" if found.holds else found.sentence
    how = found.with_bug.last_line.partition("\n")[0][:80]
    print(
        f"| `{fault}` | `{scenario}` | {text.count(chr(10))} | {words} | {how} | {time.monotonic() - started:.0f} |",
        flush=True,
    )
    return found.holds and text.count(MARKER) == 1


def make_venv(folder: Path) -> Path:
    """The interpreter of a virtual environment that holds torch; it is made when it is missing."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", TORCH], check=True)
    return python


def packages(python: Path) -> str:
    """What is installed there."""
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    return ", ".join(sorted(listed.stdout.split(), key=lambda name: not name.startswith("torch")))


def cpu() -> str:
    """The kind of machine."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
