"""Records the decisions of vLLM in its own process: the experts of each token, and the tokens of
each indexer.

Call `install` before `LLM` is built. After the model is loaded, each router and each sparse layer
writes what was chosen to a buffer of its own, by a copy on the GPU that a CUDA graph captures like
any kernel. After each step the rows of the buffers go to their request and position. So eager mode
and graphs are recorded alike.

A failure of the recorder is one line in `problems`, and never an error of vLLM. Written for vLLM
0.33.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from canaries.recorded import UNKNOWN, packed
from mla_harness_vllm.serve.first_nan import request_order, router_of
from mla_harness_vllm.serve.hooks import runners


class Recorder:
    """The decisions of all requests of this process."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._rows: dict[str, dict[tuple[str, int], dict[int, Tensor]]] = {}
        """Request -> stage and layer -> position -> ids [k]."""

    def attach(self, runner: Any) -> None:
        """Hook routers and sparse layers of the model.

        Its modules must be loaded, and no graph captured.
        """
        capacity = int(runner.vllm_config.scheduler_config.max_num_batched_tokens)
        for path, module in runner.get_model().named_modules():
            layer = re.search(r"layers\.(\d+)\.", path + ".")
            if layer is None:
                continue
            impl, router = (
                getattr(module, "impl", None),
                router_of(module) or router_of(getattr(module, "runner", 0)),
            )
            if (
                hasattr(impl, "record_logical_topk_ready")
                and getattr(impl, "topk_indices_buffer", None) is not None
            ):
                width = impl.topk_indices_buffer.shape[1]
                key = self._buffer("index", int(layer[1]), capacity, width, runner.device)
                impl.record_logical_topk_ready = self._after_indexer(impl, key)
            elif chooses_entries(module):
                width = module.topk_indices_buffer.shape[1]
                key = self._buffer("index", int(layer[1]), capacity, width, runner.device)
                module.forward_mqa = self._before_attention(module, key)
            elif router is not None and "select_experts" not in vars(router):
                key = self._buffer(
                    "experts", int(layer[1]), capacity, int(router.top_k), runner.device
                )
                router.select_experts = self._after_router(router, key)
        if not self._buffers:
            self.problems.append("no router and no sparse layer was found")

    def _buffer(
        self, stage: str, layer: int, rows: int, width: int, device: Any
    ) -> tuple[str, int]:
        self._buffers[stage, layer] = torch.full(
            (rows, width), UNKNOWN, dtype=torch.int32, device=device
        )
        return stage, layer

    def _after_indexer(self, impl: Any, key: tuple[str, int]) -> Callable[..., Any]:
        original = impl.record_logical_topk_ready

        @functools.wraps(original)
        def record_logical_topk_ready(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._copy(key, impl.topk_indices_buffer)
            return result

        return record_logical_topk_ready

    def _before_attention(self, module: Any, key: tuple[str, int]) -> Callable[..., Any]:
        """The attention of DeepSeek V4, whose indexer has chosen when it begins."""
        original = module.forward_mqa

        @functools.wraps(original)
        def forward_mqa(*args: Any, **kwargs: Any) -> Any:
            self._copy(key, module.topk_indices_buffer)
            return original(*args, **kwargs)

        return forward_mqa

    def _after_router(self, router: Any, key: tuple[str, int]) -> Callable[..., Any]:
        original = router.select_experts

        @functools.wraps(original)
        def select_experts(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._copy(key, result[1])
            return result

        return select_experts

    def _copy(self, key: tuple[str, int], chosen: Tensor) -> None:
        """Keep the ids [n, k] of one call."""
        try:
            buffer = self._buffers[key]
            count = min(len(buffer), len(chosen))
            buffer[:count].copy_(chosen[:count])
        except Exception as error:
            self._note(f"{key[0]} of layer {key[1]} not recorded: {error!r}")

    def after_step(self, runner: Any, step: Any) -> None:
        """Give the rows of a step to their requests and positions. Waits for the GPU."""
        counts = step.num_scheduled_tokens
        if not counts or all(name.startswith("_") for name in counts):
            return
        spans, positions = rows_of_step(runner, step)
        kept = {
            key: buffer[: len(positions)].to("cpu", copy=True)
            for key, buffer in self._buffers.items()
        }
        for buffer in self._buffers.values():
            # A hook that does not run in the next step leaves no stale rows.
            buffer.fill_(UNKNOWN)
        for name, first, last in spans:
            of_request = self._rows.setdefault(name, {key: {} for key in kept})
            for key, ids in kept.items():
                of_request[key] |= {positions[row]: ids[row] for row in range(first, last)}

    def _note(self, words: str) -> None:
        if words not in self.problems:
            self.problems.append(words)

    def request(self, number: str) -> dict[str, dict[str, Any]]:
        """The decisions of a request of `LLM.generate`: stage -> layer -> packed ids [T, k] by
        position.
        """
        # vLLM adds eight random letters to the number.
        names = [
            name for name in self._rows if name == number or re.fullmatch(rf"{number}-\w+", name)
        ]
        found: dict[str, dict[str, Any]] = {}
        if len(names) != 1:
            self._note(f"request {number} has {len(names)} records")
            return found
        for (stage, layer), rows in self._rows[names[0]].items():
            length, width = max(rows) + 1, len(next(iter(rows.values())))
            ids = torch.full((length, width), UNKNOWN, dtype=torch.int32)
            for position, row in rows.items():
                ids[position] = row
            found.setdefault(stage, {})[str(layer)] = packed(ids)
        return found

    def safely(self, action: Callable[..., Any], *args: Any) -> Any:
        """The result of an action, or None and a note."""
        try:
            return action(*args)
        except Exception as error:
            self._note(f"{getattr(action, '__name__', action)}: {error!r}")
            return None


def chooses_entries(module: Any) -> bool:
    """Whether it is an attention of DeepSeek V4 with an indexer of compressed entries."""
    parts = ("indexer", "topk_indices_buffer", "forward_mqa")
    return all(getattr(module, name, None) is not None for name in parts)


def rows_of_step(runner: Any, step: Any) -> tuple[list[tuple[str, int, int]], list[int]]:
    """The rows of each request, (name, first, end), and the position of each row, as the runner had
    them in a step.
    """
    state = getattr(runner, "execute_model_state", None)
    batch = getattr(state, "input_batch", None)
    names, positions = getattr(batch, "req_ids", None), getattr(batch, "positions", None)
    if names is None:
        names, positions = request_order(runner, step.num_scheduled_tokens), runner.positions
    spans, end = [], 0
    for name in names:
        spans.append((name, end, end := end + step.num_scheduled_tokens[name]))
    return spans, positions[:end].tolist()


def after_loading(action: Callable[[Any], object]) -> int:
    """Call `action` with a runner of this release after it has loaded its model.

    Returns how many kinds there are.
    """
    kinds = list(runners())

    def loading(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            action(self)
            return result

        return load_model

    for kind in kinds:
        kind.load_model = loading(kind.load_model)
    return len(kinds)


def install() -> Recorder:
    """Wrap `load_model` and `execute_model` of every runner of this release."""
    recorder = Recorder()
    after_loading(lambda runner: recorder.safely(recorder.attach, runner))

    def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, scheduler_output, *args, **kwargs)
            if not kwargs.get("dummy_run"):
                with torch.inference_mode():
                    recorder.safely(recorder.after_step, self, scheduler_output)
            return result

        return execute_model

    for runner in runners():
        runner.execute_model = stepping(runner.execute_model)
    return recorder
