"""`python -m trust.verdict_loop [N]`: N verdicts one after the other, as a loop that writes kernels
makes them.

Right and wrong kernels of `merge_attn_states` take turns. Printed are the seconds of a verdict, the
memory of this process and of its children, and how many verdicts were false. Exit code 1 if one
was.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness.loop import Judge

KERNELS = """
import torch


def merge(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    count = len(prefix_out) if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.clone(), suffix_lse.clone()
    parts = torch.stack((prefix_lse[:, :count], suffix_lse[:, :count]))
    parts = parts.masked_fill(parts.isposinf(), float("-inf"))
    both = parts.logsumexp(0)
    weights = (parts - both).exp().nan_to_num(0.0).transpose(1, 2)[..., None]
    values = torch.stack((prefix_out[:count].float(), suffix_out[:count].float()))
    values = torch.where(weights == 0, 0.0, values)
    out[:count] = (weights * values).sum(0).to(out.dtype)
    lse[:, :count] = both
    return out, lse


def mean(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    out, lse = merge(prefix_out, prefix_lse, suffix_out, suffix_lse)
    return (prefix_out + suffix_out) / 2, lse


def suffix_alone(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    return suffix_out.clone(), suffix_lse.clone()
"""
"""A right kernel and two wrong ones. Each verdict executes the file in a new process."""
SECONDS = 5.0
"""The limit of a verdict."""
RIGHT, *WRONG = ("merge", "mean", "suffix_alone")


def memory_mb() -> float:
    """Megabytes that this process and its children hold: without children of children."""
    total = 0
    for pid in (str(os.getpid()), *_children()):
        try:
            fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            continue
        total += int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return total / 1e6


def _children() -> list[str]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return found.split()


def main(count: int) -> int:
    """Print the figures. Returns the exit code."""
    names = [RIGHT if number % 2 == 0 else WRONG[number // 2 % 2] for number in range(count)]
    taken: list[float] = []
    false = 0
    with tempfile.TemporaryDirectory() as folder, Judge(seed=3) as judge:
        file = Path(folder) / "attempt.py"
        file.write_text(KERNELS, encoding="utf-8")
        after_first = 0.0
        for number, name in enumerate(names):
            started = time.monotonic()
            verdict = judge.judge(f"{file}:{name}", "merge_attn_states", seconds=SECONDS)
            taken.append(time.monotonic() - started)
            false += verdict.is_right != (name == RIGHT)
            if number == 2:
                after_first = memory_mb()
        print(
            f"{count} verdicts: first {taken[0]:.1f} s, then median {statistics.median(taken[1:]):.1f}"
            f" s, worst {max(taken[1:]):.1f} s; memory {after_first:,.0f} MB after three,"
            f" {memory_mb():,.0f} MB at the end; {false} false"
        )
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
