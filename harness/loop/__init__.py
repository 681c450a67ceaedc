"""Judge kernels one after the other from Python, as a loop that writes kernels does."""

from __future__ import annotations

from harness.loop.judging import Cause, Judge, KernelVerdict, judge_kernel

__all__ = ["Cause", "Judge", "KernelVerdict", "judge_kernel"]
