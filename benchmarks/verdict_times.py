"""How long a verdict takes: five kernels, cold and warm.

    python benchmarks/verdict_times.py [--device cuda] [NAME]...

Cold is `mla-harness judge` in a new process with an empty cache folder: the seconds until the first
call is judged, and until the command ends. Warm is the same kernel by a `Judge` that has judged a
kernel of its op before. The public kernel needs PUBLIC_KERNELS, a folder that
`python -m trust.public --fetch` describes, and on a CPU TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.loop import Judge

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "deepseek_decode.py"
SEED = 5
COLUMNS = (
    "kernel",
    "first cold",
    "whole cold",
    "first warm",
    "whole warm",
    "verdict",
    "judged",
    "skipped",
    "covered",
)


@dataclass(frozen=True)
class Timed:
    """A kernel to judge: a function of a file, or the example with one text replaced."""

    op: str = "mla_decode"
    file: Path = EXAMPLE
    name: str = "decode"
    replace: tuple[str, str] = ("", "")

    def written_to(self, folder: Path) -> str:
        """FILE:NAME of the kernel, whose file is in `folder` if its text is changed."""
        old, new = self.replace
        if not old:
            return f"{self.file}:{self.name}"
        text = self.file.read_text(encoding="utf-8")
        assert old in text, f"{self.file} has no {old!r} any more"
        (folder / "kernel.py").write_text(text.replace(old, new, 1), encoding="utf-8")
        return f"{folder / 'kernel.py'}:{self.name}"


PAGES = "pages = block_table[b, : -(-length // 64)].long()\n"
KERNELS = {
    "right": Timed(),
    # The last page of a request is read from where its first one is.
    "wrong in the last page": Timed(replace=(PAGES, f"{PAGES}        pages[-1] = pages[0]\n")),
    "public, Triton: FlagGems concat_and_cache_mla": Timed(
        op="write_kv", file=ROOT / "trust" / "public" / "flaggems_kernels.py", name="write"
    ),
    "cheat: cached by shape": Timed(
        file=ROOT / "trust" / "cheats" / "kernels.py", name="cached_by_shape"
    ),
    "typo": Timed(replace=("scores.softmax", "scores.sofmax")),
}


@dataclass(frozen=True)
class Cold:
    """What a command took and said."""

    first: float | None
    whole: float
    passes: bool
    judged: int
    skipped: int


def has_judged(runs: Path) -> bool:
    """Whether a result that is no skip stands in the file of a run."""
    # As text: each look at a whole record would take time from what is timed.
    return any(
        f'"verdict": "{verdict}"' in file.read_text(encoding="utf-8")
        for file in runs.glob("*/results.jsonl")
        for verdict in ("pass", "fail", "crash")
    )


def cold(where: str, device: str, folder: Path) -> Cold:
    """`mla-harness judge` of FILE:NAME in a new process."""
    runs = folder / "runs"
    command = [sys.executable, "-m", "harness.cli.main", "judge", where, "--device", device]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--seed", str(SEED), "--json", "--out", str(runs)],
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    first = None
    while first is None and process.poll() is None:
        # Each look takes time from what is timed.
        time.sleep(0.1)
        if has_judged(runs):
            first = time.monotonic() - started
    said, _ = process.communicate()
    whole = time.monotonic() - started
    assert process.returncode in (0, 1), f"{where}: exit code {process.returncode}"
    totals = json.loads(said)["totals"]
    judged = totals["pass"] + totals["fail"] + totals["crash"]
    return Cold(first, whole, process.returncode == 0, judged, totals["skip"])


def row(name: str, timed: Timed, judge: Judge, device: str) -> str:
    """The line of a kernel."""
    with tempfile.TemporaryDirectory() as path:
        where = timed.written_to(Path(path))
        found = cold(where, device, Path(path))
        # The cases of an op are drawn once: here.
        judge.judge(where, timed.op, seconds=0)
        first = judge.judge(where, timed.op, seconds=0)
        whole = judge.judge(where, timed.op)
    assert (whole.verdict == "pass") == found.passes, f"{name}: warm it is {whole.verdict}"
    causes = ", ".join(f"{one.oracle}: {one.cause}" for one in whole.causes)
    cells = [
        name,
        "none" if found.first is None else f"{found.first:.1f}",
        f"{found.whole:.1f}",
        f"{first.seconds:.1f}",
        f"{whole.seconds:.1f}",
        f"{whole.verdict} {causes}".strip(),
        found.judged,
        found.skipped,
        whole.covered,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main(names: list[str], device: str) -> int:
    """Print the table, in seconds. Returns 0, or 2 for a name that is not known."""
    unknown = [name for name in names if name not in KERNELS]
    if unknown:
        print(f"verdict_times: unknown kernel {unknown[0]!r}; there are: {', '.join(KERNELS)}")
        return 2
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |", flush=True)
    with Judge(device=device, seed=SEED) as judge:
        for name in names or KERNELS:
            print(row(name, KERNELS[name], judge, device), flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    sys.exit(main(given.names, given.device))
