"""The calls of `index_logits`, `select_topk` and `map_indices`. Any right choice of a top-k is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.core.index_params import IndexLogitsParams, MapIndicesParams, SelectTopkParams
from harness.judge.run_records import Observed
from harness.judge.targets.kernel_call import Guarded, KernelCall, Setting, prepared
from harness.kernels.ops import indexing


def index_logits(params: IndexLogitsParams, setting: Setting) -> KernelCall:
    """A call that scores keys. Columns past a row's last key are not judged."""
    raw = indexing.index_logits(params, setting.seed)
    given, kept = prepared(raw, _with_trap(setting, raw.trap_block))
    want, defined = indexing.expected_logits(kept)
    rows = defined.any(dim=1)
    bound = f"index_logits.{params.kv}" + (".in_fp8" if setting.spec.fp8_products == "fp8" else "")

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """logits [T, L] float32 beside the reference, undefined columns as 0 in both."""
        logits = outputs[0].masked_fill(~defined, 0.0)
        return [Observed("logits", logits, rows, want, bound, "query token")]

    dims = {"T": len(want), "L": want.shape[1]}
    return KernelCall.of("index_logits", given, kept, dims, (torch.float32,), observe)


def select_topk(params: SelectTopkParams, setting: Setting) -> KernelCall:
    """A call that chooses. Rows of the buffer behind the output must not change."""
    given, kept = prepared(indexing.select_topk(params, setting.seed), setting)
    rows, num_requests = len(kept.logits), len(params.seq_lens)
    every = torch.ones(rows, dtype=torch.bool)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """indices [T, K] int32 in falling order, beside a right choice, which is itself one if it can be."""
        found = outputs[0].sort(dim=1, descending=True).values
        want = indexing.right_choice(kept.logits, kept.seq_lens, outputs[0])
        if not setting.spec.keeps_ties:
            # Another right choice is no other result.
            right = (found == want).all(dim=1, keepdim=True)
            want = indexing.right_choice(kept.logits, kept.seq_lens, torch.full_like(outputs[0], -2))
            found = torch.where(right, want.to(found.dtype), found)
        return [Observed("indices", found, every, want, "", "query token", "sparse.topk")]

    def same(output: Tensor) -> Tensor:
        """[B, S * K]: the set of each row, or the logits of it, if the kernel may choose among equal ones."""
        if setting.spec.keeps_ties:
            return output.sort(dim=1).values.view(num_requests, -1)
        columns = output.long().clamp(0, given.logits.shape[1] - 1)
        values = given.logits.gather(1, columns).masked_fill(output < 0, -torch.inf)
        # A zero of either sign is as large as the other.
        return (values + 0.0).sort(dim=1).values.view(num_requests, -1)

    call = KernelCall.of("select_topk", given, kept, {"T": rows, "K": params.topk}, (torch.int32,), observe)
    if given.logits.is_contiguous():
        call.by_request = [given.logits.view(num_requests, params.query_len, -1), given.seq_lens]
    else:
        call.by_request = [given.seq_lens]
    call.same = same
    _give_buffer(call, setting, given.buffer, kept.buffer, rows)
    return call


def map_indices(params: MapIndicesParams, setting: Setting) -> KernelCall:
    """A call that maps positions to slots. Rows of later tokens must not change."""
    raw = indexing.map_indices(params, setting.seed)
    given, kept = prepared(raw, _with_trap(setting, raw.trap_block))
    rows = len(kept.positions)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """slots [T, K] int32 beside the reference."""
        want = indexing.expected_slots(kept)
        return [Observed("slots", outputs[0], torch.ones(rows, dtype=torch.bool), want, "", "token", "sparse.topk")]

    call = KernelCall.of("map_indices", given, kept, {"T": rows, "K": params.topk}, (torch.int32,), observe)
    _give_buffer(call, setting, given.buffer, kept.buffer, rows)
    return call


def _with_trap(setting: Setting, block: int) -> Setting:
    """Poison whose trap for padded entries of a table is `block`."""
    traps = {**setting.poison.traps, "block_table.pad": block}
    return replace(setting, poison=replace(setting.poison, traps=traps))


def _give_buffer(call: KernelCall, setting: Setting, buffer: Tensor, before: Tensor, rows: int) -> None:
    """Give a kernel that takes `out` the first rows of a buffer [more rows, K], and guard the others."""
    if "out" in setting.spec.takes:
        call.kwargs["out"] = buffer[:rows]
        call.guarded.append(Guarded("rows behind out", "sparse.topk", before[rows:], lambda: buffer[rows:]))


INDEX_CALLS: dict[str, Callable[[Any, Setting], KernelCall]] = {
    "index_logits": index_logits,
    "select_topk": select_topk,
    "map_indices": map_indices,
}
