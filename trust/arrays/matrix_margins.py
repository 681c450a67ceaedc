"""How far each installed kernel sits from its bounds: python -m trust.arrays.matrix_margins
--device cuda --seeds 20

The sizes and lengths of the kernel-matrix scenarios, each under several seeds for the values,
without poison. Prints a table in Markdown: kernel, bound, judged tensors, the median and the
largest share of the bound that one of them used.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job
from harness.evidence.compare import compare
from harness.evidence.observed import Observed
from harness.evidence.thresholds import bound
from harness.judge.run_case import why_not
from harness.judge.target import target_of
from harness.kernels.call import without_interception
from harness.report.markdown import table
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios

POISON_AXES = ("pattern", "site")


def calls(seed: int, op: str = "") -> Iterator[Case]:
    """One case of each call of the matrix, of an op: cases that differ in their poison alone are
    the same call.
    """
    for scenario in load_scenarios(None):
        if "kernel-matrix" not in scenario.tags or scenario.op != (op or scenario.op):
            continue
        seen = set()
        for case in expand(scenario, seed=seed):
            if str(case.params) not in seen and getattr(case.params, "layout", "") != "large":
                seen.add(str(case.params))
                yield case


Shares = dict[tuple[str, str], list[float]]


def of_kernel(
    kernel: str, seeds: int, device: str, until: float
) -> tuple[Shares, dict[str, str], int]:
    """The shares of each bound that `kernel` used, why it raised, and how many seeds were done."""
    torch.set_num_threads(1)
    used: Shares = defaultdict(list)
    failed: dict[str, str] = {}
    drawn = (
        (number, case)
        for number in range(seeds)
        for case in calls(number, kernel.partition("/")[0])
    )
    for seed, case in drawn:
        if time.time() > until:
            return dict(used), failed, seed
        if list(case.kernels().values()) != [kernel] or why_not(case, device):
            continue
        torch.manual_seed(case.seed)
        with without_interception():
            run = target_of(Job(key=case.id, case=case, device=device)).run(
                Poison("zeros", frozenset())
            )
        if run.error is not None:
            failed[kernel] = f"{case.id}: {run.error}".partition("\n")[0][:200]
            return dict(used), failed, seed
        for seen in run.all(Observed):
            if seen.bound and seen.expected is not None and seen.expected.dtype.is_floating_point:
                share = compare(seen.tensor, seen.expected, seen.live, bound(seen.bound)).used
                used[kernel, seen.bound].append(share)
    return dict(used), failed, seeds


def in_process(*given: Any) -> tuple[Shares, dict[str, str], int]:
    """`of_kernel` in a process of its own: a kernel that breaks its CUDA context takes no other
    down.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as one:
        return one.submit(of_kernel, *given).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes, each with a kernel at a time"
    )
    parser.add_argument(
        "--kernel", action="append", help="only this one, such as mla_decode/split; repeatable"
    )
    parser.add_argument("--seconds", type=float, default=500, help="stop after this time")
    given = parser.parse_args()
    started, until = time.monotonic(), time.time() + given.seconds
    used: Shares = defaultdict(list)
    failed: dict[str, str] = {}
    whole = 0
    names = given.kernel or sorted({name for case in calls(0) for name in case.kernels().values()})
    with ThreadPoolExecutor(given.jobs) as threads:
        asked = {
            name: threads.submit(in_process, name, given.seeds, given.device, until)
            for name in names
        }
        for name, one in asked.items():
            try:
                shares, errors, rounds = one.result()
            except Exception as error:  # its process died
                failed[name] = str(error).partition("\n")[0][:120]
                continue
            whole += rounds
            failed |= errors
            for key, values in shares.items():
                used[key] += values
    rows = [
        [kernel, name, str(len(shares)), f"{statistics.median(shares):.3f}", f"{max(shares):.3f}"]
        for (kernel, name), shares in sorted(used.items())
    ]
    gpu = torch.cuda.get_device_name(0) if given.device == "cuda" else "CPU"
    print(
        f"{gpu}, torch {torch.__version__}, {whole} rounds of a kernel and a seed in"
        f" {time.monotonic() - started:.0f} s\n"
    )
    print(table(("kernel", "bound", "judged tensors", "median share", "largest share"), rows))
    for kernel, why in failed.items():
        print(f"\n{kernel} raised: {why}")


if __name__ == "__main__":
    main()
