"""SGLang's attention backends under decode graphs: does a replay read what was planned for its
batch?

Backend, buffers, allocator and, for Triton, the decode kernel are SGLang's. A capture keeps the
backend's metadata, as a graph keeps addresses. Each replay fills the buffers for another batch;
then the kernel runs over the captured metadata.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Binding, Observed, Run
from mla_harness_adapters.host_parts import (
    NUM_SM_PARTS,
    PLAN_WIDTH,
    Planner,
    made_without_init,
    of_all_rows,
    patched,
    plan_of,
)
from mla_harness_sglang.host.free_pages import Owner, give_back, grow, start
from mla_harness_sglang.host.graph_buffers import CAPTURED, GraphBuffers
from mla_harness_sglang.host.scheduling import MAX_LENGTH, Server, fill, free_slots
from mla_harness_sglang.params import SglangHostParams
from mla_harness_sglang.releases import (
    INDEX_TRANSLATOR,
    METADATA_OUT_OF_GRAPH,
    PLANNED_TRANSLATION,
    TRANSLATOR_OF_BACKEND,
)

NUM_HEADS = 16
# The smaller of the two shapes that SGLang's Triton kernel knows as MLA.
RANK = 256
ROPE = 32
SCALE = (RANK + ROPE) ** -0.5
STEPS = 6
NUM_SLOTS = 2048
LINEAR_ATTENTION = (
    "hybrid_gdn_config",
    "kimi_linear_config",
    "linear_attn_model_spec",
    "mambaish_config",
)
"""What a backend asks about layers of linear attention: of the runner until 0.5.15, and since then
of the model.
"""


def run(poison: Poison, params: SglangHostParams) -> Run:
    """Capture a graph for each size, then replay them for batches that grow, shrink and change."""
    rng = random.Random(poison.seed)
    values = torch.Generator().manual_seed(poison.seed)
    server = Server(params.page_size, NUM_SLOTS, CAPTURED[-1], RANK, ROPE)
    cache = poison.fill_(server.cache, "kv.new")
    backend = BACKENDS[params.backend](server, poison)
    buffers = GraphBuffers(backend.fill_length)
    with backend.planning():
        # The largest size first, as SGLang captures its graphs.
        captured = {size: backend.capture(buffers, size) for size in reversed(CAPTURED)}
    owners: list[Owner] = []
    found = Run(poison.pattern)
    for step in range(STEPS):
        # Batches shrink as well as grow, so that rows of an earlier batch lie behind the live ones.
        wanted = rng.randint(1, CAPTURED[-1])
        while len(owners) > wanted:
            give_back(server.alloc, [owners.pop(rng.randrange(len(owners)))], rng)
        while len(owners) < wanted:
            owners.append(start(server.alloc, rng.randint(1, 140), cache, values))
        for one in owners:
            grow(server.alloc, one, cache, values)
        # Requests have rows in no order, and row 0 belongs to padding.
        rows = torch.tensor(rng.sample(range(1, CAPTURED[-1] + 1), wanted))
        for row, one in zip(rows.tolist(), owners, strict=True):
            server.rows.req_to_token[row, : len(one.slots)] = one.slots.to(torch.int32)
        lengths = torch.tensor([len(one.slots) for one in owners])
        size = buffers.fill(rows, lengths, torch.cat([one.slots[-1:] for one in owners]))
        fill(poison, cache, free_slots(server.alloc), "kv.free")
        # Page 0 has no owner: SGLang writes padding there.
        fill(poison, cache, torch.arange(server.page_size), "kv.null")
        with backend.planning():
            backend.replay(buffers, size)
        backend.look(
            found,
            step,
            captured[size],
            owners,
            torch.randn(size, NUM_HEADS, RANK + ROPE, generator=values),
        )
    return found


class Backend:
    """What both backends share: SGLang's object, its captures and its replays."""

    fill_length: int
    attention: Any

    def planning(self) -> Any:
        return contextlib.nullcontext()

    def batch(self, buffers: GraphBuffers, size: int) -> Any:
        """The batch that SGLang gives to its backend: views of the buffers."""
        views = {
            name: buffers.read(name, size)
            for name in ("req_pool_indices", "seq_lens", "seq_lens_cpu")
        }
        batch = SimpleNamespace(
            **views,
            batch_size=size,
            out_cache_loc=buffers.read("out_cache_loc", size),
            forward_mode=ForwardMode.DECODE,
            spec_info=None,
            encoder_lens=None,
            seq_lens_sum=int(views["seq_lens"].sum()),
        )
        translator = TRANSLATOR_OF_BACKEND.value(self.attention)
        if PLANNED_TRANSLATION.of(translator):
            batch.kv_loc_plan = translator.plan(**views, write_virtual=batch.out_cache_loc)
        return batch

    def capture(self, buffers: GraphBuffers, size: int) -> Any:
        """The metadata that a graph of this size keeps. At a capture all rows are padded."""
        empty = torch.zeros(0, dtype=torch.int64)
        # As at a real capture: no request, so everything that the graph reads later is written by a
        # replay.
        buffers.fill(empty, empty, empty, size)
        batch = self.batch(buffers, size)
        if METADATA_OUT_OF_GRAPH.of(self.attention):
            self.attention.init_forward_metadata_out_graph(batch, in_capture=True)
        else:
            self.attention.init_forward_metadata_capture_cuda_graph(
                size, size, batch.req_pool_indices, batch.seq_lens, None, batch.forward_mode, None
            )
        return self.attention.forward_metadata

    def replay(self, buffers: GraphBuffers, size: int) -> None:
        """Have the backend write the metadata of the batch in the buffers."""
        batch = self.batch(buffers, size)
        if METADATA_OUT_OF_GRAPH.of(self.attention):
            self.attention.init_forward_metadata_out_graph(batch)
        else:
            self.attention.init_forward_metadata_replay_cuda_graph(
                size,
                batch.req_pool_indices,
                batch.seq_lens,
                batch.seq_lens_sum,
                None,
                batch.forward_mode,
                None,
                batch.seq_lens_cpu,
            )

    def look(self, found: Run, step: int, captured: Any, owners: list[Owner], q: Tensor) -> None:
        """Observe what the graph reads at its addresses. q is [B, H, D]."""
        raise NotImplementedError


class TritonBackend(Backend):
    """SGLang's TritonAttnBackend, with its decode kernel in Triton's interpreter."""

    def __init__(self, server: Server, poison: Poison) -> None:
        backend = importlib.import_module("sglang.srt.layers.attention.triton_backend")
        self.pool = server.pool
        with one_rank(backend):
            self.attention = backend.TritonAttnBackend(runner_of(server))
        self.attention.init_cuda_graph_state(CAPTURED[-1], CAPTURED[-1])
        # The buffers of the splits come from `torch.empty`, and nothing clears them between steps.
        poison.fill_(self.attention.cuda_graph_attn_logits, "workspace")
        poison.fill_(self.attention.cuda_graph_attn_lse, "workspace")
        self.fill_length = self.attention.get_cuda_graph_seq_len_fill_value()
        self.layer = SimpleNamespace(
            tp_q_head_num=NUM_HEADS,
            tp_k_head_num=1,
            qk_head_dim=RANK + ROPE,
            v_head_dim=RANK,
            logit_capping_method="tanh",
            logit_cap=0.0,
            k_scale=None,
            v_scale=None,
            scaling=SCALE,
            layer_id=0,
            sliding_window_size=-1,
            xai_temperature_len=-1,
        )

    def look(self, found: Run, step: int, captured: Any, owners: list[Owner], q: Tensor) -> None:
        """Observe the table of slots, and the output of the kernel over it. q is [B, H, D]."""
        slots = torch.cat([one.slots for one in owners])
        # The captured metadata, not the new one: the graph reads at those addresses.
        table = captured.kv_indices[: len(slots)].float()[:, None]
        found.evidence.append(
            observed(f"slots that the graph reads, step {step}", table, slots[:, None], "entry")
        )
        self.attention.forward_metadata = captured
        batch = SimpleNamespace(
            batch_size=len(q), seq_lens_sum=len(slots), spec_info=None, token_to_kv_pool=self.pool
        )
        out = self.attention.forward_decode(q, None, None, self.layer, batch, save_kv_cache=False)
        # The queries behind those of the owners are padding.
        expected = torch.stack(
            [attended(query, one.values) for query, one in zip(q, owners, strict=False)]
        )
        rows = out.view(len(q), NUM_HEADS, RANK)[: len(owners)]
        name = f"decode output, step {step}"
        found.evidence.append(of_all_rows(name, rows, expected, "mla_decode.out.fp32", "request"))


class FlashMLABackend(Backend):
    """SGLang's FlashMLABackend.

    A stand-in plans: like the CUDA extension's function it returns new tensors.
    """

    fill_length = 1

    def __init__(self, server: Server, poison: Poison) -> None:
        module = importlib.import_module("sglang.srt.layers.attention.flashmla_backend")
        pages = (MAX_LENGTH + module.PAGE_SIZE) // module.PAGE_SIZE
        most = CAPTURED[-1]
        self.attention = made_without_init(
            module.FlashMLABackend,
            num_q_heads=NUM_HEADS,
            num_local_heads=NUM_HEADS,
            num_draft_tokens=None,
            is_fp8_kvcache=False,
            req_to_token=server.rows.req_to_token,
            page_size=server.page_size,
            cuda_graph_kv_indices=torch.ones(most, pages, dtype=torch.int32),
            cuda_graph_mla_metadata=poison.empty(
                NUM_SM_PARTS, PLAN_WIDTH, dtype=torch.int32, site="sched_meta"
            ),
            cuda_graph_num_splits=poison.empty(most + 1, dtype=torch.int32, site="sched_meta"),
            cuda_graph_mla_metadata_view=None,
            cuda_graph_num_splits_view=None,
            kv_index_translator=translator_of(server),
        )
        self.planner = Planner()
        self.module = module

    def planning(self) -> Any:
        return mock.patch.object(self.module, "get_mla_metadata", self.planner)

    def look(self, found: Run, step: int, captured: Any, owners: list[Owner], q: Tensor) -> None:
        """Observe the page table and the plan, and where SGLang wrote the plan. q is [B, H, D]."""
        page_size = self.module.PAGE_SIZE
        table = self.attention.cuda_graph_kv_indices
        found.evidence.append(
            Binding(
                step,
                "block_kv_indices",
                "block_table.pad",
                captured.block_kv_indices.data_ptr(),
                table.data_ptr(),
            )
        )
        for row, one in enumerate(owners):
            pages = one.slots[::page_size] // page_size
            read = table[row, : len(pages)].float()[:, None]
            found.evidence.append(
                observed(f"pages of row {row}, step {step}", read, pages[:, None], "page")
            )
        # The plan covers padded rows too: FlashMLA starts blocks for every row of the captured
        # size.
        lengths = [len(one.slots) for one in owners] + [self.fill_length] * (len(q) - len(owners))
        tiles, splits = plan_of(torch.tensor(lengths))
        for name, read, plan in (
            ("tile_scheduler_metadata", captured.flashmla_metadata, tiles),
            ("num_splits", captured.num_splits, splits[:, None]),
        ):
            what = observed(f"{name}, step {step}", read.view(plan.shape).float(), plan, "row")
            what.site = "sched_meta"
            found.evidence.append(what)


BACKENDS: dict[str, Callable[[Server, Poison], Backend]] = {
    "triton": TritonBackend,
    "flashmla": FlashMLABackend,
}


def observed(name: str, read: Tensor, wanted: Tensor, describe: str) -> Observed:
    """Numbers read [n, width] that must be exactly the numbers wanted [n, width], of any dtype."""
    # The bound of a copy: the numbers must be equal.
    return of_all_rows(name, read, wanted.double(), "write_kv.fp32", describe)


def attended(q: Tensor, keys: Tensor) -> Tensor:
    """Attention of one query over its keys: q [H, D], keys [n, D] float32 -> float64 [H, rank]."""
    weights = torch.softmax(q.double() @ keys.double().T * SCALE, dim=-1)
    return weights @ keys[:, :RANK].double()


def translator_of(server: Server) -> Any:
    """SGLang's object that translates slots, None in releases without it."""
    if not INDEX_TRANSLATOR.is_module():
        return None
    return importlib.import_module(INDEX_TRANSLATOR.name).KVIndexTranslator(
        req_to_token=server.rows.req_to_token,
        token_to_kv_pool_allocator=server.alloc,
        token_to_kv_pool=server.pool,
        page_size=server.page_size,
        device="cpu",
    )


def runner_of(server: Server) -> Any:
    """What a backend reads from its model runner. Anything else is an AttributeError."""
    config = SimpleNamespace(
        attention_arch=importlib.import_module("sglang.srt.configs.model_config").AttentionArch.MLA,
        num_attention_heads=NUM_HEADS,
        get_max_num_attention_heads=lambda: NUM_HEADS,
        get_num_kv_heads=lambda *_: 1,
        v_head_dim=RANK,
        swa_v_head_dim=RANK,
        head_dim=RANK + ROPE,
        context_len=MAX_LENGTH,
        is_encoder_decoder=False,
        qk_nope_head_dim=RANK,
        qk_rope_head_dim=ROPE,
        kv_lora_rank=RANK,
    )
    return SimpleNamespace(
        model_config=config,
        req_to_token_pool=server.rows,
        token_to_kv_pool=server.pool,
        token_to_kv_pool_allocator=server.alloc,
        server_args=server.arguments,
        sliding_window_size=None,
        **dict.fromkeys(LINEAR_ATTENTION),
        device="cpu",
        gpu_id=0,
        page_size=server.page_size,
        is_draft_worker=False,
        kv_cache_dtype=torch.float32,
        kv_index_translator=translator_of(server),
        decode_num_tokens_per_req=lambda: 1,
    )


def one_rank(backend: Any) -> Any:
    """Answer what a backend asks the process and the model while it is made: one rank, no GPU, no
    linear attention.
    """
    alone = SimpleNamespace(attn_tp_size=1, attn_dcp_size=1, attn_dcp_rank=0)
    answers: dict[str, Callable[..., Any]] = {
        "get_device_core_count": lambda *_: 0,
        "get_parallel": lambda: alone,
        "get_attention_tp_size": lambda: 1,  # until 0.5.13
        **dict.fromkeys(LINEAR_ATTENTION, lambda *_: None),
    }
    known = {name: answer for name, answer in answers.items() if hasattr(backend, name)}
    return patched(backend, known)
