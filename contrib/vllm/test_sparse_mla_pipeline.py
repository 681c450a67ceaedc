# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""DSA decode as one pipeline: index logits, top-k, map to slots, sparse attention.

Each stage is judged on what the stage before it returned, so a failure names its
stage. Any valid set of k tokens is right: index scores are sums of ReLUs, so rows
have plateaus of exact 0.0, and the k-th place may fall into one. Pages of nobody and
slots past a length hold NaN, and outputs are filled before each call.

Run `pytest tests/kernels/attention/test_sparse_mla_pipeline.py`.
"""

import pytest
import torch

from vllm.model_executor.layers.indexer_topk import get_indexer_topk
from vllm.platforms import current_platform
from vllm.utils.deep_gemm import (
    fp8_fp4_paged_mqa_logits,
    get_num_sms,
    get_paged_mqa_logits_metadata,
)
from vllm.utils.import_utils import has_deep_gemm
from vllm.v1.attention.backends.mla.sparse_utils import (
    triton_convert_req_index_to_global_index,
)
from vllm.v1.attention.ops.flashmla import (
    flash_mla_sparse_fwd,
    is_flashmla_sparse_supported,
)
from vllm.v1.worker import workspace

DEVICE_TYPE = current_platform.device_type
PAGE_SIZE, TOPK, INDEX_HEADS, INDEX_DIM = 64, 512, 64, 128
NUM_HEADS, HEAD_SIZE, KV_LORA_RANK = 64, 576, 512
SM_SCALE = 192**-0.5
UNWRITTEN = 123456789
# Around k, and requests without or with one key.
SEQ_LENS = [(511, 512, 513, 2000), (0, 1, 512, 1300), (0, 0)]

pytestmark = [
    pytest.mark.skipif(not has_deep_gemm(), reason="DeepGEMM not available"),
    pytest.mark.skipif(
        not is_flashmla_sparse_supported()[0],
        reason=str(is_flashmla_sparse_supported()[1]),
    ),
]


class Batch:
    """Pools of index keys and of latents over one shuffled block table.

    keys: [N, 64, 128] and key_scales: [N, 64], which index_cache [N, 64, 132] packs
    page by page; latents: [N, 64, 576]. lens: [B], row_lens: [B, next_n].
    """

    def __init__(self, seq_lens: tuple[int, ...], next_n: int, scores: str):
        torch.manual_seed(0)
        lens = torch.tensor(seq_lens, dtype=torch.int32)
        steps = torch.arange(1 - next_n, 1, dtype=torch.int32)
        row_lens = (lens[:, None] + steps).clamp(min=0)
        columns = max(TOPK, *seq_lens, 1) // PAGE_SIZE + 1
        table = torch.randperm(len(lens) * columns).int().view(-1, columns) + 1
        num_pages = table.numel() + 1

        keys = torch.randn(num_pages, PAGE_SIZE, INDEX_DIM)
        q = torch.randn(len(lens), next_n, INDEX_HEADS, INDEX_DIM)
        if scores == "plateau":
            # Most keys are opposite to all queries, so their ReLUs are exactly 0.
            q, keys = q.abs(), keys.abs() * torch.where(
                torch.rand(num_pages, PAGE_SIZE, 1) < 0.05, 1.0, -1.0
            )
        latents = torch.randn(num_pages, PAGE_SIZE, HEAD_SIZE).to(torch.bfloat16)
        owned = torch.zeros(num_pages, PAGE_SIZE, dtype=torch.bool)
        for pages, length in zip(table.tolist(), lens.tolist()):
            for position in range(length):
                owned[pages[position // PAGE_SIZE], position % PAGE_SIZE] = True
        keys[~owned] = latents[~owned] = float("nan")

        amax = keys.abs().amax(-1).clamp(min=1e-4)
        self.key_scales = (amax / 448.0).to(DEVICE_TYPE)
        e4m3 = torch.float8_e4m3fn
        self.keys = (keys.to(DEVICE_TYPE) / self.key_scales[..., None]).to(e4m3)
        packed = torch.cat(
            [
                self.keys.view(torch.uint8).flatten(1),
                self.key_scales.view(torch.uint8).flatten(1),
            ],
            dim=1,
        )
        self.index_cache = packed.view(num_pages, PAGE_SIZE, INDEX_DIM + 4)
        self.q_index = q.to(DEVICE_TYPE).to(e4m3)
        self.weights = torch.rand(q.shape[0] * next_n, INDEX_HEADS).to(DEVICE_TYPE)
        self.latents, self.table = latents.to(DEVICE_TYPE), table.to(DEVICE_TYPE)
        self.lens, self.row_lens = lens.to(DEVICE_TYPE), row_lens.to(DEVICE_TYPE)
        self.next_n, self.columns = next_n, columns * PAGE_SIZE
        num_rows = q.shape[0] * next_n
        self.q = torch.randn(num_rows, NUM_HEADS, HEAD_SIZE).to(torch.bfloat16)
        self.q = self.q.to(DEVICE_TYPE)

    def live(self) -> torch.Tensor:
        """[rows, columns]: the positions that a row may see."""
        columns = torch.arange(self.columns, device=self.table.device)
        return columns < self.row_lens.view(-1, 1)


def index_logits(batch: Batch) -> torch.Tensor:
    """[rows, columns] float32."""
    plan = get_paged_mqa_logits_metadata(batch.row_lens, PAGE_SIZE, get_num_sms())
    logits = fp8_fp4_paged_mqa_logits(
        (batch.q_index, None),
        batch.index_cache.unsqueeze(-2),
        batch.weights,
        batch.row_lens,
        batch.table,
        plan,
        batch.columns,
    )
    return logits[:, : batch.columns].contiguous()


def check_logits(batch: Batch, logits: torch.Tensor) -> None:
    live = batch.live()
    keys = batch.keys.float() * batch.key_scales[..., None]
    keys = keys[batch.table.long()].flatten(1, 2)
    scores = torch.einsum("bshd,bnd->bshn", batch.q_index.float(), keys).relu()
    weights = batch.weights.view(*scores.shape[:3], 1)
    expected = (scores * weights).sum(2).flatten(0, 1)
    atol = 1e-3 * float(expected[live].abs().max()) if live.any() else 0.0
    torch.testing.assert_close(logits[live], expected[live], rtol=1e-3, atol=atol)


def select_topk(batch: Batch, logits: torch.Tensor, backend: str) -> torch.Tensor:
    """[rows, k] int32 positions, -1 past the row's length."""
    if workspace._manager is None:
        workspace.init_workspace_manager(logits.device)
    indices = torch.full(
        (len(logits), TOPK), UNWRITTEN, dtype=torch.int32, device=logits.device
    )
    select = get_indexer_topk(backend)
    longest = max(1, int(batch.lens.max()))
    select(logits, batch.row_lens, batch.next_n, indices, TOPK, longest)
    return indices


def check_topk(batch: Batch, logits: torch.Tensor, indices: torch.Tensor) -> None:
    for row, length in enumerate(batch.row_lens.flatten().tolist()):
        wanted = min(TOPK, length)
        chosen = indices[row][indices[row] != -1]
        assert len(chosen) == wanted, f"row {row}: {len(chosen)} of {wanted} tokens"
        inside = (chosen >= 0) & (chosen < length)
        assert inside.all(), f"row {row}: {chosen[~inside][:5].tolist()} of {length}"
        assert len(chosen.unique()) == wanted, f"row {row}: a token twice"
        best = logits[row, :length].topk(wanted).values
        values = logits[row, chosen.long()].sort(descending=True).values
        assert torch.equal(values, best), f"row {row}: not the {wanted} best"


def map_indices(batch: Batch, indices: torch.Tensor) -> torch.Tensor:
    """[rows, k] int32 slots."""
    requests = torch.arange(
        len(batch.lens), dtype=torch.int32, device=indices.device
    ).repeat_interleave(batch.next_n)
    return triton_convert_req_index_to_global_index(
        requests,
        batch.table,
        indices,
        BLOCK_SIZE=PAGE_SIZE,
        NUM_TOPK_TOKENS=TOPK,
        BLOCK_N=128,
    )


def check_slots(batch: Batch, indices: torch.Tensor, slots: torch.Tensor) -> None:
    table = batch.table.repeat_interleave(batch.next_n, dim=0).long()
    at = indices.clamp(min=0).long()
    pages = table.gather(1, at // PAGE_SIZE)
    expected = torch.where(indices < 0, -1, pages * PAGE_SIZE + at % PAGE_SIZE)
    assert torch.equal(slots.long(), expected)


def sparse_decode(batch: Batch, slots: torch.Tensor) -> torch.Tensor:
    """[rows, heads, 512]."""
    out, _, _ = flash_mla_sparse_fwd(
        q=batch.q,
        kv=batch.latents.view(-1, 1, HEAD_SIZE),
        indices=slots.unsqueeze(1),
        sm_scale=SM_SCALE,
        d_v=KV_LORA_RANK,
    )
    return out


def check_output(batch: Batch, slots: torch.Tensor, out: torch.Tensor) -> None:
    flat = batch.latents.view(-1, HEAD_SIZE)
    for row in range(len(slots)):
        keys = flat[slots[row][slots[row] >= 0].long()].float()
        if len(keys) == 0:
            assert torch.isfinite(out[row]).all(), f"row {row}: no key, not finite"
            continue
        weights = (batch.q[row].float() @ keys.T * SM_SCALE).softmax(-1)
        torch.testing.assert_close(
            out[row].float(),
            weights @ keys[:, :KV_LORA_RANK],
            rtol=2e-2,
            atol=1e-2,
            msg=lambda message, row=row: f"row {row}: {message}",
        )


@pytest.mark.parametrize(
    "backend", ["cooperative", "persistent", "per_row", "flashinfer", "torch"]
)
@pytest.mark.parametrize("scores", ["random", "plateau"])
@pytest.mark.parametrize("next_n", [1, 2])
@pytest.mark.parametrize("seq_lens", SEQ_LENS)
def test_sparse_mla_pipeline(seq_lens, next_n, scores, backend):
    batch = Batch(seq_lens, next_n, scores)
    logits = index_logits(batch)
    check_logits(batch, logits)
    indices = select_topk(batch, logits, backend)
    check_topk(batch, logits, indices)
    slots = map_indices(batch, indices)
    check_slots(batch, indices, slots)
    check_output(batch, slots, sparse_decode(batch, slots))
