"""`python -m trust.contest`: six wrong kernels under the check of a contest, and under ours.

The contest is `problems/amd_202602/mixed-mla` of gpu-mode/reference-kernels: q and keys from N(0,
1), scale 1/24, 1,024 or 8,192 keys a request, rounded to float8_e4m3 as in its reference. Its check
takes an answer if at most 5 % of the elements are further from the expected one than 0.1 + 0.1 *
|expected|. The code here is our own, after the numbers of that folder.

`--draws N` draws so many requests for each length. `--judge` runs `mla-harness judge` too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

import torch

from harness.loop import Judge

KERNELS = Path(__file__).with_name("kernels.py")
SCALE = 1 / 24
TOLERANCE = 0.1
SHARE = 0.05
LENGTHS = (1024, 8192)
SECONDS = 60.0
"""The limit of a verdict."""


def kernels() -> ModuleType:
    """The functions of `kernels.py`, which registers them as kernels too."""
    from trust.contest import kernels as module

    return module


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor [...] float32 as float8_e4m3 holds it, in float64."""
    return tensor.to(torch.float8_e4m3fn).double()


def mismatching(got: torch.Tensor, want: torch.Tensor) -> float:
    """The share of elements of got [...] that the contest's check counts, beside want [...]."""
    off = (got.double() - want).abs() > TOLERANCE + TOLERANCE * want.abs()
    # A NaN is one element like any other.
    return float((off | got.isnan()).double().mean())


def shares(num_keys: int, draws: int) -> dict[str, float]:
    """Name of a kernel -> the share of mismatching elements over `draws` requests."""
    module = kernels()
    found: dict[str, float] = dict.fromkeys(
        [one.__name__ for one in (module.right, *module.WRONG)], 0.0
    )
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        q = rounded(torch.randn(module.HEADS, 576, generator=generator))
        keys, others = (rounded(torch.randn(num_keys, 576, generator=generator)) for _ in "ab")
        want = module.attend(q, keys, SCALE)
        for one in (module.right, *module.WRONG):
            got = one(q.float(), keys.float(), others.float(), SCALE)
            found[one.__name__] += mismatching(got, want) / draws
    return found


def judged(judge: Judge, name: str) -> tuple[bool, str]:
    """Whether a kernel is right, and the verdict in words."""
    found = judge.judge(f"{KERNELS}:{name}", "mla_decode", seconds=SECONDS)
    if found.is_right:
        return True, f"passes {found.num_judged} calls"
    first = found.causes[0]
    return False, f"fails in {found.seconds:.0f} s, {first.oracle}: {first.cause}"


def main(draws: int, with_judge: bool) -> int:
    """Print the table. Returns 1 if a wrong kernel passes our check, or the right one fails it."""
    module = kernels()
    by_length = {num_keys: shares(num_keys, draws) for num_keys in LENGTHS}
    heads = " | ".join(f"{num_keys:,} keys" for num_keys in LENGTHS)
    print(f"| kernel | {heads} | `mla-harness judge` |\n| --- | --- | --- | --- |")
    is_wrong = False
    with Judge(seed=7) as judge:
        for one in (module.right, *module.WRONG):
            cells = [_cell(by_length[num_keys][one.__name__]) for num_keys in LENGTHS]
            verdict = "not run"
            if with_judge:
                is_right, verdict = judged(judge, one.__name__)
                is_wrong |= is_right != (one is module.right)
            print(f"| {one.__doc__} | {' | '.join(cells)} | {verdict} |", flush=True)
    return int(is_wrong)


def _cell(share: float) -> str:
    return f"{100 * share:.1f} %, {'passes' if share <= SHARE else 'fails'}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--judge", action="store_true")
    given = parser.parse_args()
    sys.exit(main(given.draws, given.judge))
