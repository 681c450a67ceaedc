"""How far each installed kernel sits from its bounds: python tests/trust/matrix_margins.py --device cuda --seeds 20

The sizes and lengths of the kernel-matrix scenarios, each under several seeds for the values, without poison. Prints a
table in Markdown: kernel, bound, judged tensors, the median and the largest share of the bound that one of them used.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import torch

from harness.core.cases import Case, Job
from harness.judge.oracles.compare import compare
from harness.judge.oracles.thresholds import bound
from harness.judge.run_case import why_not
from harness.judge.target import target_of
from harness.kernels.call import without_interception
from harness.memory.poison.patterns import Poison
from harness.report.markdown import table
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios

POISON_AXES = ("pattern", "site")


def calls(device: str, seed: int) -> Iterator[Case]:
    """One case of each call of the matrix: cases that differ in their poison alone are the same call."""
    for scenario in load_scenarios(None):
        if "kernel-matrix" not in scenario.tags:
            continue
        seen = set()
        for case in expand(scenario, seed=seed):
            if str(case.params) not in seen and getattr(case.params, "layout", "") != "large":
                seen.add(str(case.params))
                yield case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--kernel", action="append", help="only this one, such as mla_decode/split; repeatable")
    parser.add_argument("--seconds", type=float, default=500, help="stop after this time")
    given = parser.parse_args()
    used: dict[tuple[str, str], list[float]] = defaultdict(list)
    failed: dict[str, str] = {}
    started, seeds = time.monotonic(), 0
    for seed in range(given.seeds):
        for case in calls(given.device, seed):
            if time.monotonic() - started > given.seconds:
                break
            (kernel,) = case.kernels().values()
            if (given.kernel and kernel not in given.kernel) or kernel in failed or why_not(case, given.device):
                continue
            torch.manual_seed(case.seed)
            with without_interception():
                run = target_of(Job(key=case.id, case=case, device=given.device)).run(Poison("zeros", frozenset()))
            if run.error is not None:
                failed[kernel] = str(run.error).partition("\n")[0][:120]
                continue
            for seen in run.observed:
                if seen.bound and seen.expected is not None and seen.expected.dtype.is_floating_point:
                    used[kernel, seen.bound].append(
                        compare(seen.tensor, seen.expected, seen.live, bound(seen.bound)).used
                    )
        else:
            seeds += 1
            continue
        break
    rows = [
        [kernel, name, str(len(shares)), f"{statistics.median(shares):.3f}", f"{max(shares):.3f}"]
        for (kernel, name), shares in sorted(used.items())
    ]
    gpu = torch.cuda.get_device_name(0) if given.device == "cuda" else "CPU"
    print(f"{gpu}, torch {torch.__version__}, {seeds} whole rounds of seeds in {time.monotonic() - started:.0f} s\n")
    print(table(("kernel", "bound", "judged tensors", "median share", "largest share"), rows))
    for kernel, why in failed.items():
        print(f"\n{kernel} raised: {why}")


if __name__ == "__main__":
    main()
