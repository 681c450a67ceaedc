"""The calls of the ops around attention: the stages before sparse attention, experts, and records
of a cache.

Any right choice of a top-k is right. The reference of a format decodes a writer's bytes, and judges
a reader's rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.core.index_params import IndexLogitsParams, MapIndicesParams, SelectTopkParams
from harness.core.op_params import (
    AlignExpertsParams,
    ReadRecordsParams,
    RouteExpertsParams,
    WriteRecordsParams,
)
from harness.core.ops import PAGE_SIZE, aligned_sizes
from harness.evidence.compare import SLACK_OF_ELEMENT
from harness.evidence.experts import ChosenExperts
from harness.evidence.observed import Observed
from harness.judge.targets.kernel_call import Guarded, KernelCall, Setting, by_op, prepared
from harness.kernels.ops import expert_inputs, indexing, record_inputs, reference
from harness.kernels.ops.inputs import NULL_BLOCK
from harness.kernels.ops.record_formats import RECORDS, decode, places, rounding, stored


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
        """indices [T, K] int32 in falling order, beside a right choice, which is itself one if it
        can be.
        """
        found = outputs[0].sort(dim=1, descending=True).values
        want = indexing.right_choice(kept.logits, kept.seq_lens, outputs[0])
        if not setting.spec.keeps_ties:
            # Another right choice is no other result.
            right = (found == want).all(dim=1, keepdim=True)
            want = indexing.right_choice(
                kept.logits, kept.seq_lens, torch.full_like(outputs[0], -2)
            )
            found = torch.where(right, want.to(found.dtype), found)
        return [Observed("indices", found, every, want, "", "query token", "sparse.topk")]

    def same(output: Tensor) -> Tensor:
        """[B, S * K]: the set of each row, or the logits of it, if the kernel may choose among
        equal ones.
        """
        if setting.spec.keeps_ties:
            return output.sort(dim=1).values.view(num_requests, -1)
        columns = output.long().clamp(0, given.logits.shape[1] - 1)
        values = given.logits.gather(1, columns).masked_fill(output < 0, -torch.inf)
        # A zero of either sign is as large as the other.
        return (values + 0.0).sort(dim=1).values.view(num_requests, -1)

    call = KernelCall.of(
        "select_topk", given, kept, {"T": rows, "K": params.topk}, (torch.int32,), observe
    )
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
        return [
            Observed(
                "slots",
                outputs[0],
                torch.ones(rows, dtype=torch.bool),
                want,
                "",
                "token",
                "sparse.topk",
            )
        ]

    call = KernelCall.of(
        "map_indices", given, kept, {"T": rows, "K": params.topk}, (torch.int32,), observe
    )
    _give_buffer(call, setting, given.buffer, kept.buffer, rows)
    return call


def _with_trap(setting: Setting, block: int) -> Setting:
    """Poison whose trap for padded entries of a table is `block`."""
    traps = {**setting.poison.traps, "block_table.pad": block}
    return replace(setting, poison=replace(setting.poison, traps=traps))


def _give_buffer(
    call: KernelCall, setting: Setting, buffer: Tensor, before: Tensor, rows: int
) -> None:
    """Give a kernel that takes `out` the first rows of a buffer [more rows, K], and guard the
    others.
    """
    if "out" in setting.spec.takes:
        call.kwargs["out"] = buffer[:rows]
        call.guarded.append(
            Guarded("rows behind out", "sparse.topk", before[rows:], lambda: buffer[rows:])
        )


def route_experts(params: RouteExpertsParams, setting: Setting) -> KernelCall:
    """A call of `route_experts`, beside its reference."""
    given, kept = prepared(expert_inputs.route_experts(params, setting.seed), setting)
    live = torch.arange(params.num_tokens) < given.num_live
    # A kernel that gets the number of live tokens promises nothing about the others. Without it, it
    # routes them all.
    promised = live if "num_live" in setting.spec.takes else torch.ones_like(live)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """ids [T, k] int and weights [T, k] float32, beside the reference, each row sorted by
        id.
        """
        want = reference.route_experts(kept.logits, kept.num_experts_per_tok)
        # A kernel may list a token's experts in any order, so both outputs are sorted by id.
        order = outputs[0].argsort(dim=1)
        ids, weights = (output.gather(1, order) for output in outputs)
        return [
            Observed("ids", ids, live, want.ids, "", "token", "router.ids"),
            Observed(
                "weights",
                weights,
                live,
                want.weights,
                "route_experts.weights",
                "token",
                "router.weights",
            ),
        ]

    dims = {"T": params.num_tokens, "k": params.num_experts_per_tok}
    num_live = {"num_live": given.num_live} if "num_live" in setting.spec.takes else {}
    call = KernelCall.of(
        "route_experts", given, kept, dims, (torch.int32, torch.float32), observe, **num_live
    )
    call.chosen = lambda outputs: [ChosenExperts("ids", outputs[0][promised], params.num_experts)]
    return call


def align_experts(params: AlignExpertsParams, setting: Setting) -> KernelCall:
    """A call of `align_experts`, beside its reference."""
    given, kept = prepared(expert_inputs.align_experts(params, setting.seed), setting)
    size, blocks = aligned_sizes(kept.topk_ids.numel(), params.num_experts, params.block_size)
    want = reference.align_experts(
        kept.topk_ids, num_experts=params.num_experts, block_size=params.block_size
    )
    runs = want.expert_ids.repeat_interleave(params.block_size)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """sorted_ids [P], expert_ids [B] and num_padded [1], int32, beside the reference."""
        # A run may hold its choices in any order, so it is sorted: by its expert, then by what it
        # holds.
        ids = outputs[0].clone()
        live = ids[: len(runs)].long()
        ids[: len(runs)] = live[(runs * (1 << 33) + live).argsort()].int()
        return [
            _live_part("sorted_ids", ids, want.sorted_ids, "entry"),
            _live_part("expert_ids", outputs[1], want.expert_ids, "block"),
            _live_part("num_padded", outputs[2], torch.tensor([len(runs)]), "count"),
        ]

    dims = {"P": size, "B": blocks}
    return KernelCall.of(
        "align_experts", given, kept, dims, (torch.int32, torch.int32, torch.int32), observe
    )


def _live_part(name: str, found: Tensor, want: Tensor, row: str) -> Observed:
    expected = torch.zeros(len(found), dtype=torch.int64)
    expected[: len(want)] = want
    return Observed(
        name, found, torch.arange(len(found)) < len(want), expected, "", row, "router.ids"
    )


def write_records(params: WriteRecordsParams, setting: Setting) -> KernelCall:
    """A call that stores rows. No byte of another record, layer or block may change."""
    given, kept = prepared(record_inputs.write_records(params, setting.seed), setting)
    is_live, form = kept.slot_mapping >= 0, RECORDS[params.kv]
    slots = kept.slot_mapping[is_live]
    its_own = torch.zeros(kept.storage.flatten(2).shape, dtype=torch.bool)
    its_own[(slots // PAGE_SIZE)[:, None], -1, places(params.kv, PAGE_SIZE)[slots % PAGE_SIZE]] = (
        True
    )
    its_own[NULL_BLOCK] = True

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """The cache [blocks, page, bytes] of the call, decoded at its slots; there are no
        outputs.
        """
        rows = decode(stored(given.cache.cpu(), slots, params.kv), params.kv, kept.scale)
        want, live = (
            kept.x[: len(is_live)][is_live].double(),
            torch.ones(len(slots), dtype=torch.bool),
        )
        slack = rounding(want, params.kv, kept.scale)
        bound, exact = f"write_records.{params.kv.partition('_')[0]}", form.quantized
        halves = (
            ("quantized", slice(0, exact), bound),
            ("exact", slice(exact, None), "write_records.exact"),
        )
        return [
            Observed(
                f"{name} part of the records",
                rows[:, part],
                live,
                want[:, part],
                bound,
                "token",
                slack=None if slack is None else slack / SLACK_OF_ELEMENT,
            )
            for name, part, bound in halves
            if rows[:, part].shape[1]
        ]

    def rest(storage: Tensor) -> Tensor:
        return storage.cpu().flatten(2).masked_fill(its_own, 0).flatten(1)

    call = KernelCall.of("write_records", given, kept, {}, (), observe)
    call.guarded += [
        Guarded(
            "cache null block",
            "kv.null",
            kept.storage[NULL_BLOCK],
            lambda: given.storage[NULL_BLOCK],
        ),
        Guarded(
            "records of others",
            "kv.free",
            rest(kept.storage),
            lambda: rest(given.storage),
            "block {}".format,
        ),
    ]
    return call


def read_records(params: ReadRecordsParams, setting: Setting) -> KernelCall:
    """A call that gathers the records of requests. Every row is judged."""
    given, kept = prepared(record_inputs.read_records(params, setting.seed), setting)
    num_tokens = sum(params.seq_lens)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """out [T, W] float32, beside the decoded records."""
        want = decode(stored(kept.cache, kept.slots(), params.kv), params.kv, kept.scale)
        bound = "read_records" + (".in_bf16" if setting.spec.fp8_products == "bf16" else "")
        return [
            Observed(
                "out", outputs[0], torch.ones(num_tokens, dtype=torch.bool), want, bound, "token"
            )
        ]

    dims = {"T": num_tokens, "W": RECORDS[params.kv].width}
    return KernelCall.of("read_records", given, kept, dims, (torch.float32,), observe)


CALLS = by_op(
    index_logits,
    select_topk,
    map_indices,
    route_experts,
    align_experts,
    write_records,
    read_records,
)
