"""Whether a run finds the same wherever it runs: in one process, in two, in two shards merged, on two nodes of Ray.

    python tools/same_results.py       # prints the digest of each run's canonical lines; exit code 1 if they differ

Each selection below is run in the four ways. What is compared is `mla-harness report RUN --canonical`, byte for byte:
verdicts, reasons, findings, blame. Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from json import loads
from pathlib import Path

import ray.cluster_utils

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "fixtures/kernels"


def two_cases(kernel: str) -> list[str]:
    """One for each shard."""
    return [f"decode-kernel[kernel={kernel},kv={kv},planned=planned]" for kv in ("fp32", "bf16")]


SELECTIONS = {
    "shipped kernels": ["decode-kernel", "merge-kernel", "quantize-kernel", "router-kernel"],
    "a fault put back": ["decode-kernel", "--fault", "kv.tail-masked-by-multiply"],
    "the engine, and answers of a canary": [
        "fp8-decode-graphs[kv=fp8_e4m3,capture_sizes=exact]", "fp8-decode-graphs[accuracy=gsm_symbolic]",
    ],
    "a plug-in with a bug": ["decode-kernel", "--plugin", f"{KERNELS}/multiplies_tail.py"],
    "a plug-in that kills its process": [*two_cases("segfaults"), "--plugin", f"{KERNELS}/segfaults.py"],
    "a plug-in that hangs": [*two_cases("hangs"), "--plugin", f"{KERNELS}/hangs.py", "--timeout", "3"],
}  # fmt: skip
"""What is run. Failing cases stay below 20, as the memory to blame is sought for no more of one run."""
MAX_SECONDS = 600


class Harness:
    """Calls the command line; runs go to a folder of their own and to no history."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def run(self, *words: str) -> Path:
        """The directory of a new run. Exits when the harness could not run at all."""
        done = self._call("run", *words, "--out", str(self.out), "--history", "none")
        return self._directory(done)

    def merged(self, *runs: Path) -> Path:
        """The directory of several shards merged."""
        done = self._call("merge", *map(str, runs), "--out", str(self.out), "--history", "none")
        return self._directory(done)

    def canonical(self, run: Path) -> str:
        """The lines that are compared."""
        return self._call("report", str(run), "--canonical").stdout

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from harness.cli.main import main; sys.exit(main())", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MAX_SECONDS, cwd=ROOT, env=os.environ
        )
        if done.returncode not in (0, 1):
            sys.exit(f"mla-harness {' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def _directory(self, done: subprocess.CompletedProcess[str]) -> Path:
        found = re.findall(r"^report: (.*)/report\.html$", done.stdout, re.MULTILINE)
        return Path(found[-1])


def four_ways(harness: Harness, words: list[str], address: str) -> dict[str, tuple[str, float]]:
    """The canonical lines of one selection by the way it was run, and the seconds that took."""
    ways = {
        "one process": lambda: harness.run(*words, "-n", "1"),
        "-n 2": lambda: harness.run(*words, "-n", "2"),
        "two shards, merged": lambda: harness.merged(
            harness.run(*words, "-n", "1", "--shard", "1/2"), harness.run(*words, "-n", "1", "--shard", "2/2")
        ),
        "two nodes of Ray": lambda: harness.run(*words, "--executor", "ray", "--ray-address", address),
    }
    found = {}
    for name, way in ways.items():
        started = time.monotonic()
        found[name] = (harness.canonical(way()), time.monotonic() - started)
    return found


def main() -> int:
    """Run everything, print a line for each run, and the first difference if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(SELECTIONS), help="one of the selections")
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    size = 100 << 20
    cluster = ray.cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": size}
    )
    same = True
    try:
        cluster.add_node(num_cpus=1, object_store_memory=size)
        with tempfile.TemporaryDirectory() as folder:
            for title, words in SELECTIONS.items():
                if options.only in (None, title):
                    same &= compare(title, four_ways(Harness(Path(folder)), words, cluster.address))
    finally:
        cluster.shutdown()
    print("the same, byte for byte" if same else "NOT the same")
    return int(not same)


def compare(title: str, found: dict[str, tuple[str, float]]) -> bool:
    """Print one selection; returns whether all ways found the same."""
    (first, _), *_ = found.values()
    cases = [loads(line) for line in first.splitlines()]
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(Counter(c["verdict"] for c in cases).items()))
    num_findings, num_blamed = sum(len(c["findings"]) for c in cases), sum(bool(c["blame"]) for c in cases)
    print(f"{title}: {len(cases)} cases ({verdicts}), {num_findings} findings, {num_blamed} blamed")
    for name, (text, seconds) in found.items():
        print(f"  {hashlib.sha256(text.encode()).hexdigest()[:32]}  {name:20} {seconds:6.1f} s", flush=True)
        if text != first:
            for line in list(difflib.unified_diff(first.splitlines(), text.splitlines(), lineterm="", n=0))[:8]:
                print(f"    {line[:400]}")
    return all(text == first for text, _ in found.values())


if __name__ == "__main__":
    sys.exit(main())
