"""The first-NaN recorder in a scheduler process of SGLang.

The modules of the model are hooked right after loading, before anything is captured. SGLang calls
`forward` of its model class directly, so hooks of the module below it begin a step. Attention is a
module of its own, `RadixAttention`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.api import StepRecorder
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.report import keep_first_nan

RECORDERS: list[SchedulerRecorder] = []
"""The recorders of this process."""


def install(runner_class: Any, plan: Plan) -> None:
    """Wrap `load_model` and `forward` of SGLang's `ModelRunner`."""
    load_model = runner_class.load_model

    @functools.wraps(load_model)
    def loading(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = load_model(self, *args, **kwargs)
        RECORDERS.append(
            SchedulerRecorder(self.model, torch.device(self.device), Path(plan.folder))
        )
        return result

    runner_class.load_model = loading
    runner_class.forward = _recorded(runner_class.forward)


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        for recorder in RECORDERS:
            recorder.begin(forward_batch)
        try:
            return original(self, forward_batch, *args, **kwargs)
        except Exception:
            # SGLang kills this process for any exception.
            for recorder in RECORDERS:
                recorder.write_report()
            raise

    return forward


class SchedulerRecorder:
    """The recorder of one scheduler. Its table is allocated on the GPU before the first capture."""

    def __init__(self, model: Any, device: torch.device, folder: Path) -> None:
        self._folder = folder
        self._steps = StepRecorder(model.model, device)

    def begin(self, batch: Any) -> None:
        """Queue the step's clock and live rows on the current stream, before the work of the
        step.
        """
        rows = int(batch.input_ids.shape[0])
        self._steps.begin("decode" if batch.forward_mode.is_decode() else "prefill", rows)
        names = [str(name) for name in getattr(batch, "rids", None) or ()]
        if len(names) == rows:
            self._steps.note([(name, row, row + 1) for row, name in enumerate(names)])

    def write_report(self) -> None:
        """Write the first bad live value, if there is one, to the plan's folder.

        Waits for the device.
        """
        rank = rank_here()
        keep_first_nan(self._folder, rank, self._steps.report(rank))


def rank_here() -> int:
    """The rank of this process; 0 before SGLang has started its ranks."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
