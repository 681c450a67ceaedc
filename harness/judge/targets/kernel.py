"""The target of one kernel of one op: poisoned inputs, one call, and only then the float64
reference.

Each op has a builder of its call: the inputs, the shapes that it must return, and the outputs to
judge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import planner_of
from harness.core.conditions.table import shown_by
from harness.core.corruptions import Corruption, corruptions_named
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.kernels import KernelSpec
from harness.core.op_params import (
    ContextAttentionParams,
    MergeAttnStatesParams,
    MlaDecodeParams,
    MlaDecodeSparseParams,
    QuantizeBlocksParams,
    QuantizeFp8Params,
    WriteKvParams,
)
from harness.core.ops import PAGE_SIZE, SCALED_BLOCK
from harness.core.params import KernelParams
from harness.judge.run_records import Observed, Run
from harness.judge.target import Target
from harness.judge.targets.corrupted import planned_lengths
from harness.judge.targets.corrupted_calls import has_plan, run_corrupted, why_not_corrupted
from harness.judge.targets.delayed_streams import without_order
from harness.judge.targets.further_launches import repeated, replayed
from harness.judge.targets.kernel_call import (
    Guarded,
    KernelCall,
    Setting,
    attention_rows,
    by_op,
    by_rows,
    check_outputs,
    invoke,
    keeps,
    out_and_lse,
    prepared,
)
from harness.judge.targets.op_calls import CALLS
from harness.judge.targets.slow_predecessor import (
    behind_slow_predecessor,
    late_inputs,
    restoring,
    slow_reader,
)
from harness.kernels.call import BoundKernel
from harness.kernels.ops import expert_inputs, reference
from harness.kernels.ops import inputs as op_inputs
from harness.kernels.ops.block_formats import (
    FORMATS,
    decoded_scales,
    decoded_values,
    num_scale_rows,
)
from harness.kernels.ops.cache_layouts import KV_DTYPES
from harness.kernels.plugins import find_kernel

MOST_RESERVED = 1 << 30
"""Bytes of GPU memory that a worker may keep from case to case."""


class KernelTarget(Target):
    """One op's kernel on one set of inputs. Raises UnknownNameError for an unknown kernel."""

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self.op, self.params = case.op or "", case.params_as(KernelParams)
        self.spec: KernelSpec = find_kernel(self.op, self.params.kernel)
        named = corruptions_named(self.op, self.params.corrupt)
        applying = [one for one in named if not why_not_corrupted(self.spec, self.params, one)]
        # A device that fails ends the run, so the calls that are judged come first.
        self.corruptions = sorted(applying, key=lambda one: not one.is_judged(self.spec))

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        spec = find_kernel(case.op or "", case.params_as(KernelParams).kernel)
        params = case.params_as(KernelParams)
        if device != "cuda" and params.predecessor == "slow":
            return (
                "predecessor: slow needs a GPU, where a kernel may begin before its predecessor has"
                " ended"
            )
        if params.streams == "delayed" and (device != "cuda" or params.cache_layout == "large"):
            return (
                "streams: delayed needs a GPU, where a kernel may work on another stream, and"
                " copies of its inputs"
            )
        corruptions = corruptions_named(case.op or "", params.corrupt)
        reasons = [why_not_corrupted(spec, params, one) for one in corruptions]
        if reasons and all(reasons):
            return reasons[0]
        return spec.why_not_graph(device) if case.params.has_graph else ""

    @property
    def reader(self) -> str:
        return self.spec.name

    def run(self, poison: Poison) -> Run:
        """Poison the inputs' unowned memory, call the kernel, then compute the expected outputs.

        Before each call that is judged, the kernel is called with other values of the same shapes:
        what it keeps from a call, such as a scale, is wrong in the next one.

        An illegal address, an exception of the kernel or a bad output ends the run early and is
        `Run.error`.
        """
        run = Run(poison.pattern)
        if self.corruptions:
            make = functools.partial(self._call, poison, self.case.seed)
            run_corrupted(run, self.spec, poison, make, self.corruptions, self.device)
            return run
        if self.device == "cuda" and torch.cuda.memory_reserved() > MOST_RESERVED:
            # Workers that share a GPU would each keep gigabytes of an earlier pool.
            torch.cuda.empty_cache()
        call, outputs = None, None
        try:
            self._call_with_other_values(poison)
            call = self._call(poison, self.case.seed)
            is_graph = self.params.has_graph
            # A graph plans in each replay. Here it is enough that there is a plan.
            keywords = (
                call.kwargs | {"metadata": call.plan}
                if is_graph
                else call.keywords(is_captured=False)
            )
            is_main = poison.pattern == self.case.poison.patterns[0]
            if is_main:
                run.shown = shown_by(self.op, call.args, keywords)
            if is_graph:
                result, run.replays = replayed(self.spec, poison, call)
            else:
                result = invoke(self.spec, poison, call.args, keywords)
            outputs = check_outputs(self.spec, result, call.shapes, call.dtypes, self.device)
            between = functools.partial(self._call_with_other_values, poison)
            run.pairs += repeated(
                self.spec, poison, call, outputs, self.params.num_launches, between
            )
            if self.params.predecessor == "slow":
                launch = behind_slow_predecessor(self.spec, call)
                run.observed = [
                    replace(one, name=f"{one.name} with {name} written late")
                    for name, late in late_inputs(self.spec, call, restoring(self.spec, call))
                    for one in late(launch)
                ]
                run.guards += slow_reader(self.spec, launch)
            if self.params.streams == "delayed" and is_main:
                from harness.memory.delayed_streams import DelayedStreams

                streams = DelayedStreams(call.args[0].device, self.case.seed)
                other = self._call(poison, self.case.seed ^ 1)
                run.moved = [
                    without_order(
                        self.case, self.spec, self._call(poison, self.case.seed), other, streams
                    )
                ]
        except SystemUnderTestError as error:
            run.error = error
            return run
        except Refused as error:
            error.shown = run.shown or self._conditions(poison)
            if outputs is None:
                raise
            # What the kernel returned before is judged all the same.
            run.refusal = error
        if call is not None and outputs is not None:
            call.show(run, outputs)
        return run

    def _conditions(self, poison: Poison) -> dict[str, tuple[str, ...]]:
        """The conditions that the call of this case shows."""
        call = self._call(poison, self.case.seed)
        return shown_by(self.op, call.args, call.keywords(is_captured=False))

    def _call(self, poison: Poison, seed: int, corruption: Corruption | None = None) -> KernelCall:
        setting = Setting(self.spec, poison, seed, self.device, self.params.fence, corruption)
        return _BUILDERS[self.op](self.params, setting)

    def _call_with_other_values(self, poison: Poison, number: int = 0) -> None:
        """Call the kernel with values drawn for this `number`, and drop its outputs.

        Large pools have no twin.
        """
        if self.params.cache_layout != "large":
            call = self._call(poison, self.case.seed ^ (number + 1))
            invoke(self.spec, poison, call.args, call.keywords(is_captured=False))


def _mla_decode(params: MlaDecodeParams, setting: Setting) -> KernelCall:
    raw = op_inputs.mla_decode(params, setting.seed)
    poison = replace(
        setting.poison,
        sites=setting.poison.sites
        - ({"block_table.pad"} if params.table_entries == "zero" else set()),
        traps={**setting.poison.traps, "block_table.pad": raw.trap_block},
        strict=(setting.poison.strict or params.table_entries == "out_of_range")
        and not keeps(setting, setting.spec.needs_valid_table),
    )
    given, kept = prepared(raw, replace(setting, poison=poison))
    num_requests, num_query_tokens, num_heads, _ = given.q.shape

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """out [B, S, H, R] and lse [B, H, S] float32, beside the reference, a row for each query
        token.
        """
        want = reference.mla_decode(
            *(kept.q, kept.kv_cache, kept.block_table, kept.seq_lens),
            scale=kept.scale,
            kv_scale=kept.kv_scale,
            window=params.window,
            products=_rounded_products(setting, params),
        )
        out, lse = out_and_lse(outputs)
        return attention_rows(
            setting.spec,
            f".{params.kv}",
            (
                "request"
                if num_query_tokens == 1
                else f"query token (of {num_query_tokens} a request)"
            ),
            "graph.pad_rows",
            (out.flatten(0, 1), None if lse is None else lse.transpose(1, 2).flatten(0, 1)),
            want,
        )

    dims = {"B": num_requests, "S": num_query_tokens, "H": num_heads, "R": params.kv_lora_rank}
    keywords = {"metadata": None} | _rank(setting, params)
    if params.window is not None:
        keywords["window"] = params.window
    call = KernelCall.of(
        "mla_decode", given, kept, dims, (given.q.dtype, torch.float32), observe, **keywords
    )
    call.by_request = [given.q, given.block_table, given.seq_lens]
    call.plan = _plan(
        params, setting, planned_lengths(given.seq_lens, setting.corruption), num_heads
    )
    if "workspace" in setting.spec.takes:
        # Words behind the workspace show a write past its end.
        words = torch.zeros(num_requests + 4, dtype=torch.int32, device=setting.device)
        words[num_requests:] = -1
        before = by_rows(words.cpu().clone())
        call.kwargs["workspace"] = words[:num_requests]
        call.guarded.append(
            Guarded("the workspace", "workspace", before, lambda: by_rows(words.cpu()))
        )
    return call


def _rounded_products(setting: Setting, params: MlaDecodeParams | MlaDecodeSparseParams) -> str:
    """The kernel's products with an fp8 cache. With others it multiplies what the cache has."""
    return setting.spec.fp8_products if params.kv.startswith("fp8") else "float32"


def _rank(setting: Setting, params: MlaDecodeParams | MlaDecodeSparseParams) -> dict[str, Any]:
    return {"kv_lora_rank": params.kv_lora_rank} if "kv_lora_rank" in setting.spec.takes else {}


def _plan(
    params: MlaDecodeParams, setting: Setting, seq_lens: Tensor, num_heads: int
) -> Callable[[bool], Any] | None:
    """What plans with the kernel's planner, if the case wants a plan."""
    planner = planner_of(setting.spec)
    if planner is None or not has_plan(setting.spec, params):
        return None
    chunked = planner.chunked and setting.spec.chunked
    options = {"kv_itemsize": KV_DTYPES[params.kv].itemsize} if chunked else {}
    keywords = {"num_heads": num_heads, **options}

    def plan(is_captured: bool) -> Any:
        if is_captured:
            return BoundKernel(planner, setting.poison)(seq_lens, **keywords)
        return invoke(planner, setting.poison, (seq_lens,), keywords)

    return plan


def _mla_decode_sparse(params: MlaDecodeSparseParams, setting: Setting) -> KernelCall:
    strict = setting.poison.strict and not keeps(setting, setting.spec.needs_valid_table)
    raw = op_inputs.mla_decode_sparse(params, setting.seed)
    given, kept = prepared(raw, replace(setting, poison=replace(setting.poison, strict=strict)))
    num_tokens, num_heads, _ = given.q.shape

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """out [T, H, R] and lse [T, H] float32, beside the reference."""
        products = _rounded_products(setting, params)
        want = reference.mla_decode_sparse(
            kept.q,
            kept.kv_cache,
            kept.indices,
            scale=kept.scale,
            kv_scale=kept.kv_scale,
            products=products,
        )
        return attention_rows(
            setting.spec, f".{params.kv}", "token", "graph.pad_rows", out_and_lse(outputs), want
        )

    dims = {"T": num_tokens, "H": num_heads, "R": params.kv_lora_rank}
    keywords = _rank(setting, params)
    return KernelCall.of(
        "mla_decode_sparse", given, kept, dims, (given.q.dtype, torch.float32), observe, **keywords
    )


def _context_attention(params: ContextAttentionParams, setting: Setting) -> KernelCall:
    given, kept = prepared(op_inputs.context_attention(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """out [T, H, V] and lse [H, T] float32, beside the reference, a row for each token."""
        want = reference.context_attention(
            kept.q, kept.k, kept.v, kept.query_start_loc, kept.chunk_start_loc, scale=kept.scale
        )
        rows = reference.Attention(want.out, want.lse.T, want.defined)
        out, lse = out_and_lse(outputs)
        both = (out, None if lse is None else lse.T)
        return attention_rows(setting.spec, "", "token", "context.output", both, rows)

    dims = {"T": given.q.shape[0], "H": given.q.shape[1], "V": params.v_head_dim}
    return KernelCall.of(
        "context_attention", given, kept, dims, (given.q.dtype, torch.float32), observe
    )


def _merge_attn_states(params: MergeAttnStatesParams, setting: Setting) -> KernelCall:
    given, kept = prepared(op_inputs.merge_attn_states(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """out [T, H, V] and lse [H, T] float32, beside the reference, a row for each token."""
        sides = (kept.prefix_out, kept.prefix_lse, kept.suffix_out, kept.suffix_lse)
        want = reference.merge_attn_states(
            *sides, num_tokens_with_context=kept.num_tokens_with_context
        )
        out, lse = out_and_lse(outputs)
        observed = [Observed("out", out, want.defined, want.out, "merge_attn_states.out", "token")]
        if lse is not None:
            observed.append(
                Observed("lse", lse.T, want.defined, want.lse.T, "merge_attn_states.lse", "token")
            )
        return observed

    dims = {"T": params.num_tokens, "H": params.num_heads, "V": params.v_head_dim}
    dtypes = (given.prefix_out.dtype, torch.float32)
    return KernelCall.of("merge_attn_states", given, kept, dims, dtypes, observe)


def _write_kv(params: WriteKvParams, setting: Setting) -> KernelCall:
    given, kept = prepared(op_inputs.write_kv(params, setting.seed), setting)
    is_live = kept.slot_mapping >= 0
    slots = kept.slot_mapping[is_live]
    others = torch.ones(given.kv_cache.shape[0] * PAGE_SIZE, dtype=torch.bool, device=slots.device)
    others[slots] = False
    others[:PAGE_SIZE] = False

    def slots_of(cache: Tensor, which: Tensor) -> Tensor:
        """The rows of a cache [blocks, page, width] at the slots `which`, as [slots, width] of its
        dtype.
        """
        return cache.cpu().reshape(others.shape[0], -1)[which]

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """The cache [blocks, page, R + rope] of the call, in the slots that it must write; there
        are no outputs.
        """
        want = reference.stored_latents(kept.kv_c, kept.k_pe, given.kv_cache.dtype, kept.kv_scale)
        live = torch.ones(slots.shape[0], dtype=torch.bool, device=slots.device)
        stored = slots_of(given.kv_cache, slots)
        want = want[: len(is_live)][is_live]
        return [Observed("kv_cache", stored, live, want, f"write_kv.{params.kv}", "token")]

    null = slice(op_inputs.NULL_BLOCK, op_inputs.NULL_BLOCK + 1)
    before, numbers = slots_of(kept.kv_cache, others), others.nonzero().flatten().tolist()

    def slot_name(row: int) -> str:
        return f"slot {numbers[row] % PAGE_SIZE} of page {numbers[row] // PAGE_SIZE}"

    call = KernelCall.of("write_kv", given, kept, {}, (), observe)
    call.guarded += [
        Guarded(
            "kv_cache null block", "kv.null", kept.kv_cache[null], lambda: given.kv_cache[null]
        ),
        Guarded(
            "kv_cache slots of others",
            "kv.free",
            before,
            lambda: slots_of(given.kv_cache, others),
            slot_name,
        ),
    ]
    return call


def _quantize_fp8(params: QuantizeFp8Params, setting: Setting) -> KernelCall:
    given, kept = prepared(op_inputs.quantize_fp8(params, setting.seed), setting)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """x8 [T, K] fp8, and scale [1] or [T, 1 or blocks] float32, beside the reference."""
        x8, scale = outputs
        blocks = scale.shape[1] if scale.ndim == 2 else 0
        want = reference.quantize_fp8(kept.x, kept.num_live, blocks=blocks)
        scales = want.live if blocks else torch.ones(1, dtype=torch.bool, device=scale.device)
        return [
            Observed("x8", x8, want.live, want.scaled, "quantize_fp8", "token"),
            Observed(
                "scale", by_rows(scale), scales, by_rows(want.scale), "quantize_fp8.scale", "scale"
            ),
        ]

    dims = {"T": params.num_tokens, "K": params.width}
    call = KernelCall.of(
        "quantize_fp8", given, kept, dims, (torch.float8_e4m3fn, torch.float32), observe
    )
    # Scales of each row, or of each block of a row, are allowed too: they keep rows apart.
    x8_shapes, scale_shapes = call.shapes
    by_row = tuple((params.num_tokens, blocks) for blocks in {1, params.width // SCALED_BLOCK or 1})
    call.shapes = (x8_shapes, scale_shapes + by_row)
    return call


def _quantize_blocks(params: QuantizeBlocksParams, setting: Setting) -> KernelCall:
    given, kept = prepared(expert_inputs.quantize_blocks(params, setting.seed), setting)
    form = FORMATS[params.block_format]

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """values [T, C] and scales [S, G], as codes, beside the reference; both are decoded
        first.
        """
        values, scales = decoded_values(outputs[0], form), decoded_scales(outputs[1], form)
        want = reference.quantize_blocks(
            kept.x, kept.expert_offsets, block_format=params.block_format, chosen=(values, scales)
        )
        # Scale rows of padding are promised too: code 0.
        every = torch.ones(len(scales), dtype=torch.bool)
        return [
            Observed("values", values, want.live, want.values, "quantize_blocks", "row"),
            Observed("scales", scales, every, want.scales, "quantize_blocks", "scale row"),
        ]

    dims = {
        "T": len(given.x),
        "C": params.width // form.codes_per_byte,
        "S": num_scale_rows(list(params.expert_rows)),
        "G": params.width // form.block,
    }
    return KernelCall.of("quantize_blocks", given, kept, dims, (torch.uint8, torch.uint8), observe)


_BUILDERS = CALLS | by_op(_mla_decode, _mla_decode_sparse, _context_attention, _merge_attn_states)
_BUILDERS |= by_op(_write_kv, _quantize_fp8, _quantize_blocks)
