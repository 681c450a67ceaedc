"""One call of each op: its poisoned inputs, the shapes it must return, and what there is to judge afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from harness.catalog import KERNELS
from harness.kernels.spec import KernelSpec
from harness.ops import inputs as op_inputs
from harness.ops import reference
from harness.ops.contracts import OPS, PAGE_SIZE
from harness.poison.patterns import Poison
from harness.scenario.params import (
    ContextAttentionParams,
    KernelParams,
    MergeAttnStatesParams,
    MlaDecodeParams,
    QuantizeFp8Params,
    RouteExpertsParams,
    WriteKvParams,
)
from harness.targets.base import Observed
from harness.targets.kernel_outputs import Shape, invoke, shape_of

FINITE_FOR_MULTIPLYING_KERNELS = frozenset({"kv.tail", "kv.free", "kv.null"})
"""Sites that hold finite bits only, for a kernel that declares `needs_finite_tail`: nan and inf become max."""

_FINITE_STAND_IN = {"nan": "max", "inf": "max"}

InputsT = TypeVar("InputsT")
Observe = Callable[[tuple[Tensor, ...]], list[Observed]]


@dataclass(slots=True)
class Guarded:
    """Memory that the kernel must leave as it is: the tensor it is given, and a copy from before the call."""

    name: str
    site: str | None
    before: Tensor
    watched: Callable[[], Tensor]


@dataclass(slots=True)
class KernelCall:
    """A call that is ready to be made."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[Shape, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    guarded: list[Guarded]
    observe: Observe


@dataclass(frozen=True, slots=True)
class Setting:
    """What every builder needs: which kernel, under which poison, with which seed, where."""

    spec: KernelSpec
    poison: Poison
    seed: int
    device: str


def build(op: str, params: KernelParams, setting: Setting) -> KernelCall:
    """The call of `op` that `params` and the seed stand for. Runs the kernel's planner, if the case wants a plan."""
    return _BUILDERS[op](params, setting)


def _mla_decode(params: MlaDecodeParams, setting: Setting) -> KernelCall:
    raw = op_inputs.mla_decode(params, setting.seed)
    poison = replace(
        setting.poison,
        traps={**setting.poison.traps, "block_table.pad": raw.trap_block},
        strict=setting.poison.strict and not _keeps(setting, setting.spec.needs_valid_table),
    )
    given, kept = _prepared(raw, raw.unowned, replace(setting, poison=poison))
    num_requests, num_query_tokens, num_heads, _ = given.q.shape
    dims = {"B": num_requests, "S": num_query_tokens, "H": num_heads, "R": params.kv_lora_rank}

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.mla_decode(
            kept.q, kept.kv_cache, kept.block_table, kept.seq_lens, scale=kept.scale, kv_scale=kept.kv_scale
        )
        rows = num_requests * num_query_tokens
        out, lse = outputs
        return _attention_rows(
            setting.spec,
            f".{params.kv}",
            "request" if num_query_tokens == 1 else f"query token (of {num_query_tokens} a request)",
            "graph.pad_rows",
            (out.reshape(rows, *out.shape[2:]), lse.transpose(1, 2).reshape(rows, num_heads)),
            reference.Attention(
                want.out.reshape(rows, *out.shape[2:]),
                want.lse.transpose(1, 2).reshape(rows, num_heads),
                want.defined.reshape(rows),
            ),
        )

    return KernelCall(
        args=(given.q, given.kv_cache, given.block_table, given.seq_lens),
        kwargs={
            "scale": given.scale,
            "kv_scale": given.kv_scale,
            "metadata": _plan(params, setting, given.seq_lens, num_heads),
        },
        shapes=_shapes("mla_decode", dims),
        dtypes=(given.q.dtype, torch.float32),
        guarded=_guards(given, kept, ("q", "kv_cache", "block_table", "seq_lens")),
        observe=observe,
    )


def _plan(params: MlaDecodeParams, setting: Setting, seq_lens: Tensor, num_heads: int) -> Any:
    """The metadata of the kernel's own planner: the one of its name, or the built-in one for built-in kernels."""
    if not params.planned:
        return None
    name = f"mla_decode_plan/{setting.spec.short_name}"
    if name not in KERNELS:
        if setting.spec.origin != "built in":
            return None
        name = "mla_decode_plan/tiled"
    return invoke(KERNELS.get(name), setting.poison, (seq_lens,), {"num_heads": num_heads})


def _context_attention(params: ContextAttentionParams, setting: Setting) -> KernelCall:
    given, kept = _prepared(op_inputs.context_attention(params, setting.seed), [], setting)
    dims = {"T": given.q.shape[0], "H": params.num_heads, "V": params.v_head_dim}

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.context_attention(
            kept.q, kept.k, kept.v, kept.query_start_loc, kept.chunk_start_loc, scale=kept.scale
        )
        rows = reference.Attention(want.out, want.lse.T, want.defined)
        return _attention_rows(setting.spec, "", "token", "context.output", (outputs[0], outputs[1].T), rows)

    return KernelCall(
        args=(given.q, given.k, given.v, given.query_start_loc, given.chunk_start_loc),
        kwargs={"scale": given.scale},
        shapes=_shapes("context_attention", dims),
        dtypes=(given.q.dtype, torch.float32),
        guarded=_guards(given, kept, ("q", "k", "v", "query_start_loc", "chunk_start_loc")),
        observe=observe,
    )


def _attention_rows(
    spec: KernelSpec, kv: str, describe: str, empty_site: str, outputs: tuple[Tensor, Tensor], want: reference.Attention
) -> list[Observed]:
    """out and lse by rows; rows without keys are judged by the rule that the kernel declares for them, if any."""
    (out, lse), defined, empty = outputs, want.defined, ~want.defined
    bounds = (f"{spec.op}.out{kv}", f"{spec.op}.lse{kv}")
    observed = [
        Observed("out", out, defined, want.out, bounds[0], describe),
        Observed("lse", lse, defined, want.lse, bounds[1], describe),
    ]
    if not bool(empty.any()):
        return observed
    if spec.empty_rows != "undefined":
        value = 0.0 if spec.empty_rows == "identity" else float("nan")
        expected = torch.full_like(want.out, value)
        observed.append(Observed("out of empty rows", out, empty, expected, bounds[0], describe, empty_site))
    if spec.empty_lse != "undefined":
        expected = torch.full_like(want.lse, float(spec.empty_lse))
        observed.append(Observed("lse of empty rows", lse, empty, expected, bounds[1], describe, empty_site))
    return observed


def _merge_attn_states(params: MergeAttnStatesParams, setting: Setting) -> KernelCall:
    raw = op_inputs.merge_attn_states(params, setting.seed)
    given, kept = _prepared(raw, raw.unowned, setting)
    dims = {"T": params.num_tokens, "H": params.num_heads, "V": params.v_head_dim}
    names = ("prefix_out", "prefix_lse", "suffix_out", "suffix_lse")

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.merge_attn_states(
            *(getattr(kept, name) for name in names), num_tokens_with_context=kept.num_tokens_with_context
        )
        out, lse = outputs
        return [
            Observed("out", out, want.defined, want.out, "merge_attn_states.out", "token"),
            Observed("lse", lse.T, want.defined, want.lse.T, "merge_attn_states.lse", "token"),
        ]

    return KernelCall(
        args=tuple(getattr(given, name) for name in names),
        kwargs={"num_tokens_with_context": given.num_tokens_with_context},
        shapes=_shapes("merge_attn_states", dims),
        dtypes=(given.prefix_out.dtype, torch.float32),
        guarded=_guards(given, kept, names),
        observe=observe,
    )


def _write_kv(params: WriteKvParams, setting: Setting) -> KernelCall:
    raw = op_inputs.write_kv(params, setting.seed)
    given, kept = _prepared(raw, raw.unowned, setting)
    slots = kept.slot_mapping[kept.slot_mapping >= 0]
    others = torch.ones(given.kv_cache.shape[0] * PAGE_SIZE, dtype=torch.bool, device=slots.device)
    others[slots] = False
    others[:PAGE_SIZE] = False

    def slots_of(cache: Tensor, which: Tensor) -> Tensor:
        # As bytes, because older torch cannot index fp8.
        raw_bytes = cache.cpu().view(torch.uint8).reshape(others.shape[0], -1)
        return raw_bytes[which].view(cache.dtype)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.stored_latents(kept.kv_c, kept.k_pe, given.kv_cache.dtype, kept.kv_scale)
        live = torch.ones(slots.shape[0], dtype=torch.bool, device=slots.device)
        stored = slots_of(given.kv_cache, slots)
        return [Observed("kv_cache", stored, live, want[: slots.shape[0]], f"write_kv.{params.kv}", "token")]

    null = slice(op_inputs.NULL_BLOCK, op_inputs.NULL_BLOCK + 1)
    guarded = [
        Guarded("kv_cache null block", "kv.null", kept.kv_cache[null], lambda: given.kv_cache[null]),
        Guarded(
            "kv_cache slots of others",
            "kv.free",
            slots_of(kept.kv_cache, others),
            lambda: slots_of(given.kv_cache, others),
        ),
    ]
    return KernelCall(
        args=(given.kv_c, given.k_pe, given.kv_cache, given.slot_mapping),
        kwargs={"kv_scale": given.kv_scale},
        shapes=(),
        dtypes=(),
        guarded=[*guarded, *_guards(given, kept, ("kv_c", "k_pe", "slot_mapping"))],
        observe=observe,
    )


def _quantize_fp8(params: QuantizeFp8Params, setting: Setting) -> KernelCall:
    raw = op_inputs.quantize_fp8(params, setting.seed)
    given, kept = _prepared(raw, raw.unowned, setting)
    dims = {"T": params.num_tokens, "K": params.width}
    x8_shapes, scale_shapes = _shapes("quantize_fp8", dims)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        x8, scale = outputs
        per_token = scale.ndim == 2
        want = reference.quantize_fp8(kept.x, kept.num_live, per_token=per_token)
        whole = torch.ones(1, dtype=torch.bool, device=scale.device)
        return [
            Observed("x8", x8, want.live, want.scaled, "quantize_fp8", "token"),
            Observed(
                "scale",
                _by_rows(scale),
                want.live if per_token else whole,
                _by_rows(want.scale),
                "quantize_fp8.scale",
                "scale",
            ),
        ]

    return KernelCall(
        args=(given.x,),
        kwargs={"num_live": given.num_live},
        # One scale a row is as good: it is what keeps rows apart, and the scenarios use it as a control.
        shapes=(x8_shapes, (*scale_shapes, (params.num_tokens, 1))),
        dtypes=(torch.float8_e4m3fn, torch.float32),
        guarded=_guards(given, kept, ("x",)),
        observe=observe,
    )


def _route_experts(params: RouteExpertsParams, setting: Setting) -> KernelCall:
    given, kept = _prepared(op_inputs.route_experts(params, setting.seed), [], setting)
    dims = {"T": params.num_tokens, "k": params.num_experts_per_tok}

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        want = reference.route_experts(kept.logits, kept.num_experts_per_tok)
        live = torch.ones(params.num_tokens, dtype=torch.bool, device=kept.logits.device)
        # The order of a token's experts is the kernel's own; both outputs are put in the order of the ids.
        order = outputs[0].argsort(dim=1)
        ids, weights = (output.gather(1, order) for output in outputs)
        return [
            Observed("ids", ids, live, want.ids, "", "token", "router.ids"),
            Observed("weights", weights, live, want.weights, "route_experts.weights", "token", "router.weights"),
        ]

    return KernelCall(
        args=(given.logits,),
        kwargs={"num_experts_per_tok": given.num_experts_per_tok},
        shapes=_shapes("route_experts", dims),
        dtypes=(torch.int32, torch.float32),
        guarded=_guards(given, kept, ("logits",)),
        observe=observe,
    )


def _prepared(raw: InputsT, unowned: list[op_inputs.Unowned], setting: Setting) -> tuple[InputsT, InputsT]:
    """Poison the unowned memory of `raw`; what the kernel is given, and a copy that the kernel cannot reach."""
    for part in unowned:
        poison = setting.poison
        if _keeps(setting, setting.spec.needs_finite_tail) and part.site in FINITE_FOR_MULTIPLYING_KERNELS:
            poison = replace(poison, pattern=_FINITE_STAND_IN.get(poison.pattern, poison.pattern))
        poison.fill_(part.memory, part.site)
    kept = _map_tensors(raw, torch.clone)
    return _map_tensors(raw, lambda tensor: tensor.to(setting.device)), kept


def _keeps(setting: Setting, promise: bool) -> bool:
    """Whether a promise that the kernel was given is kept in this run."""
    return promise and not setting.poison.ignore_contracts


def _map_tensors(record: InputsT, change: Callable[[Tensor], Tensor]) -> InputsT:
    values = {field.name: getattr(record, field.name) for field in fields(cast(Any, record))}
    changed = {name: change(value) if isinstance(value, Tensor) else value for name, value in values.items()}
    return type(record)(**changed)


def _guards(given: object, kept: object, names: tuple[str, ...]) -> list[Guarded]:
    """A guard on each named input: none of them may be written."""

    def guard(name: str) -> Guarded:
        tensor: Tensor = getattr(given, name)
        return Guarded(name, None, _by_rows(getattr(kept, name)), lambda: _by_rows(tensor))

    return [guard(name) for name in names]


def _by_rows(tensor: Tensor) -> Tensor:
    """A vector as a column: oracles count rows along dim 0 and want elements in them."""
    return tensor[:, None] if tensor.ndim == 1 else tensor


def _shapes(op: str, dims: dict[str, int]) -> tuple[tuple[Shape, ...], ...]:
    return tuple((shape_of(output, dims),) for output in OPS.get(op).outputs)


_BUILDERS: dict[str, Callable[[Any, Setting], KernelCall]] = {
    "mla_decode": _mla_decode,
    "context_attention": _context_attention,
    "merge_attn_states": _merge_attn_states,
    "write_kv": _write_kv,
    "quantize_fp8": _quantize_fp8,
    "route_experts": _route_experts,
}
