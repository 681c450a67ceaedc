"""Compare runs of the same cases: in one process, in two, in two shards merged, on two nodes of Ray.

    python tools/same_results.py       # prints the digest of each run's canonical lines; exit code 1 if they differ

Each selection is run in the four ways. The output of `mla-harness report RUN --canonical` is compared byte for byte:
verdicts, reasons, findings, blame. Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ray.cluster_utils

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "fixtures/kernels"


def two_cases(kernel: str) -> list[str]:
    """One for each shard."""
    return [f"decode-kernel[kernel={kernel},kv={kv},planned=planned]" for kv in ("fp32", "bf16")]


SELECTIONS = {
    "shipped kernels": ["decode-kernel", "merge-kernel", "quantize-kernel", "router-kernel"],
    "an injected fault": ["decode-kernel", "--fault", "kv.tail-masked-by-multiply"],
    "the engine, and answers of a canary": [
        "fp8-decode-graphs[kv=fp8_e4m3,capture_sizes=exact]",
        "fp8-decode-graphs[accuracy=gsm_symbolic]",
    ],
    "a plug-in with a bug": ["decode-kernel", "--plugin", f"{KERNELS}/multiplies_tail.py"],
    "a plug-in that kills its process": [*two_cases("segfaults"), "--plugin", f"{KERNELS}/segfaults.py"],
    "a plug-in that hangs": [*two_cases("hangs"), "--plugin", f"{KERNELS}/hangs.py", "--timeout", "3"],
}
"""What is run. Failing cases stay below 20: a run searches the memory to blame for no more."""
SHARDS = (["-n", "1", "--shard", "1/2"], ["-n", "1", "--shard", "2/2"])


def harness(*words: str) -> str:
    """The output of one command. Exits when the harness could not run at all."""
    command = [sys.executable, "-m", "harness.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT)
    if done.returncode not in (0, 1):
        sys.exit(f"mla-harness {' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def four_ways(words: list[str], out: str, address: str) -> dict[str, tuple[str, float]]:
    """Way of running -> the canonical lines of one selection, and its seconds."""

    def run(*words: str) -> str:
        """The directory of a new run."""
        return re.findall(r"^report: (.*)/report\.html$", harness(*words, "--out", out, "--history", "none"), re.M)[-1]

    ways = {
        "one process": lambda: run("run", *words, "-n", "1"),
        "-n 2": lambda: run("run", *words, "-n", "2"),
        "two shards, merged": lambda: run("merge", *(run("run", *words, *shard) for shard in SHARDS)),
        "two nodes of Ray": lambda: run("run", *words, "--executor", "ray", "--ray-address", address),
    }
    found = {}
    for name, way in ways.items():
        started = time.monotonic()
        found[name] = (harness("report", way(), "--canonical"), time.monotonic() - started)
    return found


def compare(title: str, found: dict[str, tuple[str, float]]) -> bool:
    """Print one selection; returns whether all ways found the same."""
    (first, _), *_ = found.values()
    cases = [json.loads(line) for line in first.splitlines()]
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(Counter(c["verdict"] for c in cases).items()))
    num_findings, num_blamed = sum(len(c["findings"]) for c in cases), sum(bool(c["blame"]) for c in cases)
    print(f"{title}: {len(cases)} cases ({verdicts}), {num_findings} findings, {num_blamed} blamed")
    for name, (text, seconds) in found.items():
        print(f"  {hashlib.sha256(text.encode()).hexdigest()[:32]}  {name:20} {seconds:6.1f} s", flush=True)
        for line in list(difflib.unified_diff(first.splitlines(), text.splitlines(), lineterm="", n=0))[:8]:
            print(f"    {line[:400]}")
    return all(text == first for text, _ in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(SELECTIONS), help="one of the selections")
    only = parser.parse_args().only
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    same = True
    try:
        cluster.add_node(**node)
        with tempfile.TemporaryDirectory() as folder:
            for title in [only] if only else SELECTIONS:
                same &= compare(title, four_ways(SELECTIONS[title], folder, cluster.address))
    finally:
        cluster.shutdown()
    print("the same, byte for byte" if same else "NOT the same")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
