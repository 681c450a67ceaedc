"""vLLM's second runner on an idle data-parallel rank: does a dummy step write into blocks with an
owner?

The block tables, the slots and the drafter's row mapping are vLLM's, its Triton kernels run under
the interpreter. The model's writes are the harness's: latents at each slot, a state at the first
block of each row. After a step of two requests both end. The pages of the first stay cached, the
blocks of the second are given to a request that receives its cache from another instance. The dummy
step of the target wrote states through the rows of the step before (vllm-project/vllm#49757), the
one of the drafter stored tokens through the rows of ended requests (vllm-project/vllm#56734).
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.block_table import BlockTables

from harness.api import Guard, Run
from mla_harness_adapters.host_parts import Without, made_without_init
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import COMMON_DRAFTER, UVA_METHOD

PAGE_SIZE = 16
NUM_BLOCKS = 8
WIDTH = 32
PAGES = ((1, 2), (3, 4))
"""The pages of a request's latents, by request slot."""
STATES = (5, 6)
"""The block of a request's linear-attention state, by request slot."""
LENGTH = 20
OWNERS = {
    **dict.fromkeys(PAGES[0], "the prefix cache"),
    **dict.fromkeys((*PAGES[1], STATES[1]), "a request whose cache arrives from another instance"),
}


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Run a step of two requests, then a dummy step. The owned blocks must keep their bytes."""
    cache = torch.randn(
        NUM_BLOCKS, PAGE_SIZE, WIDTH, generator=torch.Generator().manual_seed(poison.seed)
    )
    with Without("pin_memory"), mock.patch.object(buffer_utils.UvaBuffer, "__init__", uva_buffer):
        tables = _tables()
        _step_of_two_requests(tables)
        before = cache.clone()
        dummy_step = _target_step if params.idle == "target" else _drafter_step
        dummy_step(tables, cache)
    owned = list(OWNERS)
    return Run(
        poison.pattern,
        [Guard("owned blocks", "kv.free", before[owned], cache[owned], _owner)],
    )


def _owner(row: int) -> str:
    block, owner = list(OWNERS.items())[row]
    return f"block {block} of {owner}"


def uva_buffer(buffer: Any, size: Any, dtype: torch.dtype) -> None:
    """Stands in for `UvaBuffer.__init__`, which pins memory: the device's view is the memory
    itself.
    """
    buffer.cpu = torch.zeros(size, dtype=dtype)
    buffer.np = buffer.cpu.numpy()
    setattr(buffer, "_uva" if callable(UVA_METHOD.value(type(buffer))) else "uva", buffer.cpu)


def _tables() -> Any:
    """vLLM's block tables of a hybrid model: a group of pages and a group of states."""
    sizes = [PAGE_SIZE, PAGE_SIZE]
    later = accepted({"kernel_block_sizes": sizes}, BlockTables.__init__)
    return BlockTables(
        sizes, len(PAGES), 4 * LENGTH, [NUM_BLOCKS, NUM_BLOCKS], torch.device("cpu"), **later
    )


def _step_of_two_requests(tables: Any) -> None:
    for slot, (pages, state) in enumerate(zip(PAGES, STATES, strict=True)):
        tables.append_block_ids(slot, (list(pages), [state]), overwrite=True)
    tables.apply_staged_writes()
    rows = torch.arange(len(PAGES), dtype=torch.int32)
    tables.gather_block_tables(rows, len(PAGES))
    _slots(tables, rows)


def _slots(tables: Any, rows: Tensor) -> Tensor:
    """vLLM's slots [groups, R] of one token for each of the `rows`, at the last position that was
    stored.
    """
    ends = torch.arange(len(rows) + 1, dtype=torch.int32)
    slots: Tensor = tables.compute_slot_mappings(
        rows, ends, torch.full((len(rows),), LENGTH - 1), len(rows)
    )
    return slots


def _target_step(tables: Any, cache: Tensor) -> None:
    """A dummy step of the target: its token's latents, and the state of each of its rows."""
    rows = tables.get_dummy_block_tables(len(PAGES))
    _store(cache, tables.get_dummy_slot_mappings(len(PAGES))[0])
    cache[rows[1][:, 0].long()] = torch.nan


def _drafter_step(tables: Any, cache: Tensor) -> None:
    """A dummy step of the drafter after its first token: it computes the slots of each draft
    itself.
    """
    kind = COMMON_DRAFTER.module().DraftModelSpeculator
    num_rows = len(PAGES)
    # The class is abstract. Here nothing is left to implement.
    concrete = type(
        kind.__name__, (kind,), dict.fromkeys(getattr(kind, "__abstractmethods__", ()), None)
    )
    drafter = made_without_init(
        concrete,
        temperature=torch.zeros(num_rows),
        seeds=torch.zeros(num_rows, dtype=torch.int64),
        idx_mapping=torch.zeros(num_rows, dtype=torch.int32),
        draft_logits=None,
    )
    copy = drafter._copy_request_inputs
    rows = torch.arange(num_rows, dtype=torch.int32)
    copy(num_rows, rows, drafter.temperature, drafter.seeds, **accepted({"dummy_run": True}, copy))
    _store(cache, _slots(tables, drafter.idx_mapping)[0])


def _store(cache: Tensor, slots: Tensor) -> None:
    """Store NaN latents at the slots [R]; a negative slot stores nothing."""
    cache.view(-1, WIDTH)[slots[slots >= 0]] = torch.nan
