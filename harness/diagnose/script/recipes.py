"""One row for each known bug that has a script: its scene, its numbers, and the one line that
injects it.

A scene is a template under ``templates/scenes``, or `script.py.j2` in the folder of
an op. A hook is the place in a template for the line of
a bug. The numbers are of one call of a kernel, or of one step of a serving run: the engine's own
scheduler runs the requests of a case again without a model, and gives lengths, block tables and
padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.core.cases import Case
from harness.core.engine_params import EngineParams
from harness.core.errors import InputError
from harness.core.files import rows_beside
from harness.core.ops import ops_with
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import KV_SCALE, PAGE_SIZE, model_config
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import ScheduledSequence, Sequence

Numbers = dict[str, Any]
KERNEL_KV_SCALE = 0.0117
"""The per-tensor scale of fp8 caches in kernel cases (see :mod:`harness.ops.parts.inputs`, which
needs torch).
"""


@dataclass(frozen=True, slots=True)
class Decode:
    """One request in a decode step: its length with the new token, and its blocks."""

    seq_len: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt's tokens in a step, on top of cached ones."""

    query_len: int
    context_len: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a serving run: its decoding requests, and its prompts, the longest context
    first.
    """

    decodes: tuple[Decode, ...]
    prefills: tuple[Prefill, ...]
    once_states: frozenset[int]
    """Blocks that held a linear layer's state before this step."""

    @property
    def num_pages(self) -> int:
        return max((len(decode.blocks) for decode in self.decodes), default=0)


def steps(params: EngineParams) -> list[Step]:
    """All steps of a serving run, as the engine's own scheduler makes them.

    No model runs: each token is 0, and no request ends early.
    """
    pool = BlockPool(params.num_blocks, params.free_list)
    most = min(params.max_num_seqs, len(params.requests))
    scheduler = Scheduler(
        pool, params.max_batched_tokens, most, needs_state=model_config(params).is_hybrid
    )
    found: list[Step] = []
    states: set[int] = set()
    for _ in range(params.epochs):
        for number, (prompt, count) in enumerate(params.requests):
            scheduler.add(Sequence(number, [0] * prompt, count))
        found += _epoch(scheduler, states)
    return found


def _epoch(scheduler: Scheduler, states: set[int]) -> Iterator[Step]:
    while scheduler.has_work:
        step = scheduler.schedule()
        decodes = [item for item in step.scheduled if item.is_decode]
        prefills = [item for item in step.scheduled if not item.is_decode]
        # As `prompts_in_order` of the engine sorts them: its attention takes the first N prompts
        # for the N with context.
        prefills.sort(key=lambda item: -item.sequence.num_computed_tokens)
        yield Step(
            tuple(
                Decode(item.sequence.num_computed_tokens + 1, tuple(item.sequence.blocks))
                for item in decodes
            ),
            tuple(
                Prefill(item.num_new_tokens, item.sequence.num_computed_tokens) for item in prefills
            ),
            frozenset(states),
        )
        states.update(step.new_state_blocks)
        _advance(scheduler, step.scheduled)


def _advance(scheduler: Scheduler, scheduled: tuple[ScheduledSequence, ...]) -> None:
    for item in scheduled:
        item.sequence.num_computed_tokens += item.num_new_tokens
        if item.sequence.num_uncomputed_tokens == 0:
            item.sequence.tokens.append(0)
        if item.sequence.is_finished:
            scheduler.finish(item.sequence)


def decode_step(case: Case) -> Numbers:
    """The fullest of the decode-only steps with the longest requests, padded to its captured
    size.
    """
    params = case.params_as(EngineParams)
    pure = [step for step in steps(params) if step.decodes and not step.prefills]
    chosen = max(pure, key=lambda step: (step.num_pages, len(step.decodes)), default=None)
    if chosen is None:
        raise _lacks(case, "a step in which requests only decode")
    return _decode_numbers(params, chosen)


def new_block_step(case: Case) -> Numbers:
    """A decode step of a request with a partly filled last page, preferably a page that was a state
    before.
    """
    params = case.params_as(EngineParams)
    found = [
        (step, decode)
        for step in steps(params)
        for decode in step.decodes
        if decode.seq_len % PAGE_SIZE
    ]
    for step, decode in sorted(
        found, key=lambda pair: pair[1].blocks[-1] not in pair[0].once_states
    ):
        numbers = _decode_numbers(params, Step((decode,), (), step.once_states))
        return {**numbers, "new_blocks": [decode.blocks[-1]]}
    raise _lacks(case, "a decoding request with a partly filled last page")


def prefill_step(case: Case) -> Numbers:
    """The first step that has prompts with cached context and prompts without."""
    params = case.params_as(EngineParams)
    for step in steps(params):
        lengths = [prefill.context_len for prefill in step.prefills]
        with_context = sum(length > 0 for length in lengths)
        if 0 < with_context < len(lengths):
            return {
                **_model_numbers(params),
                "query_lens": [prefill.query_len for prefill in step.prefills],
                "context_lens": lengths,
                # As `context_chunks` of the engine shares a chunk among the requests with context.
                "chunk": max(params.context_chunk // with_context, 1),
                "qk_head_dim": params.qk_nope_head_dim + params.qk_rope_head_dim,
                "v_head_dim": params.v_head_dim,
            }
    raise _lacks(case, "prompts with and without context")


def _decode_numbers(params: EngineParams, step: Step) -> Numbers:
    num_live = len(step.decodes)
    sizes = [size for size in params.capture_sizes if size >= num_live and params.has_graph]
    size = min(sizes, default=num_live)
    lengths = [decode.seq_len for decode in step.decodes]
    same = params.model_dump(include={"num_blocks", "num_experts", "hidden_size"})
    return {
        **_model_numbers(params),
        **same,
        "seq_lens": lengths + [0] * (size - num_live),
        "tables": [list(decode.blocks) for decode in step.decodes]
        + [[] for _ in range(size - num_live)],
        "num_live": num_live,
        "num_experts_per_tok": min(params.num_experts_per_tok, params.num_experts),
        "query_len": 1,
        "table_pad": 0,
    }


def kernel_call(case: Case) -> Numbers:
    """The numbers of a kernel case: its parameters, and what the templates read besides."""
    params = case.params.model_dump(mode="json", exclude={"kernel"})
    op = case.op
    if op == "mla_decode":
        params |= {"new_blocks": [], "tables": None, "num_live": len(params["seq_lens"])}
    if op == "mla_decode" or op == "write_kv":
        params["kv_scale"] = KERNEL_KV_SCALE if params["kv"] == "fp8_e4m3" else None
        params["q_dtype"] = "float32" if params["kv"] == "fp32" else "bfloat16"
    if op == "write_kv":
        params |= {"num_live": params["num_tokens"] - params["num_padded"]}
    return params


def _model_numbers(params: EngineParams) -> Numbers:
    same = params.model_dump(include={"kv", "num_heads", "kv_lora_rank", "qk_rope_head_dim"})
    kv_scale = KV_SCALE if params.kv == "fp8_e4m3" else None
    return {**same, "kv_scale": kv_scale, "q_dtype": "float32", "new_blocks": []}


def _lacks(case: Case, what: str) -> InputError:
    return InputError(
        f"{case.id}: its schedule has no step with {what}, which a script of this bug needs"
    )


@dataclass(frozen=True, slots=True)
class Scene:
    """A template, the source of its numbers, and for a serving run the op of the kernel that it
    shows.
    """

    template: str
    numbers: Callable[[Case], Numbers] = kernel_call
    op: str = ""


_ROWS = rows_beside(__file__)
OP_SCENES = {op: Scene(f"{op}/script", op=op) for op in ops_with("script.py.j2")}
"""The scene of a kernel case: one call of its op, by the template in the folder of the op."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The script of one fault:

    `line` at `hook` is the bug. `engine` is the scene of a serving run.
    """

    hook: str
    line: str
    engine: Scene


_NUMBERS = {function.__name__: function for function in (decode_step, prefill_step, new_block_step)}
RECIPES = {
    fault: Recipe(
        row["hook"],
        row["line"],
        Scene(**row["scene"] | {"numbers": _NUMBERS[row["scene"]["numbers"]]}),
    )
    for fault, row in _ROWS["faults"].items()
}
"""Fault -> recipe, as `recipes.yaml` says."""
