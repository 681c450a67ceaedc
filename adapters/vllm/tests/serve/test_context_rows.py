"""Rows without context are filled before vLLM does anything about them, in each of the three ways
that it has had.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.objects import ATTENTION_MODULE
from mla_harness_vllm.serve import context_rows
from mla_harness_vllm.serve.writes import FILLED

NAN = ServePoison(("context.output", "context.lse"))


def context_chunk(count: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Up to 0.25: five tokens' context attention of which `count` have context, under the
    poison.
    """

    def original(self: Any, q: Any, cache: Any, metadata: Any, scale: Any) -> Any:
        return torch.ones(5, 2, 4, dtype=torch.bfloat16), torch.ones(2, 5)

    chunked = SimpleNamespace(prefill_tokens_with_context=count)
    metadata: Any = SimpleNamespace(prefill=SimpleNamespace(chunked_context=chunked))
    out, lse = context_rows.with_counted_rows(original, NAN)(None, None, None, metadata, None)
    return out, lse


def test_rows_without_context_are_what_a_kernel_that_skips_them_leaves() -> None:
    before = FILLED.context_rows
    out, lse = context_chunk(3)
    assert out[3:].isnan().all() and not out[:3].isnan().any()
    assert lse[:, 3:].isnan().all() and not lse[:, :3].isnan().any()
    assert FILLED.context_rows == before + 2


@pytest.mark.parametrize("count", [None, 5])
def test_where_all_tokens_have_context_nothing_is_filled(count: int | None) -> None:
    out, lse = context_chunk(count)
    assert not out.isnan().any() and not lse.isnan().any()


class Backend:
    """A prefill backend that writes every row, as FlashAttention-3 does."""

    name = "stand-in"

    def run_prefill_context_chunk(
        self, chunk_idx: int, q: Any, k: Any, v: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(7, 2, 4, dtype=torch.bfloat16), torch.ones(2, 7)


def masked(poison: ServePoison) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], Any]:
    """0.26 and 0.27: two chunks of three requests of 2, 4 and 1 tokens.

    The second has nothing in the first chunk, and neither has the third; in the second chunk only
    the first one has anything. What each chunk's kernel left.
    """
    seen = []

    def original(self: Any, q: Any, cache: Any, metadata: Any, scale: Any) -> Any:
        assert metadata.prefill.prefill_backend.name == "stand-in"
        for number in range(2):
            seen.append(
                metadata.prefill.prefill_backend.run_prefill_context_chunk(
                    chunk_idx=number, q=q, k=q, v=q
                )
            )
        return seen[-1]

    chunked = SimpleNamespace(
        cu_seq_lens=torch.tensor([[0, 16, 16, 24], [0, 5, 5, 5]], dtype=torch.int32)
    )
    starts = torch.tensor([0, 2, 6, 7], dtype=torch.int32)
    prefill = SimpleNamespace(
        chunked_context=chunked, query_start_loc=starts, prefill_backend=Backend()
    )
    metadata: Any = SimpleNamespace(prefill=prefill)
    context_rows.with_masked_rows(original, poison)(None, None, None, metadata, None)
    return seen, metadata


def test_a_chunks_kernel_leaves_rows_of_requests_that_have_nothing_in_it() -> None:
    before = FILLED.context_rows
    (first, first_lse), (second, second_lse) = masked(NAN)[0]
    assert first.isnan().all(dim=2).all(dim=1).tolist() == [
        False,
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    assert second.isnan().all(dim=2).all(dim=1).tolist() == [
        False,
        False,
        True,
        True,
        True,
        True,
        True,
    ]
    assert first_lse.isnan().any(dim=0).tolist() == [False, False, True, True, True, True, False]
    assert second_lse.isnan().any(dim=0).tolist() == [False, False, True, True, True, True, True]
    assert FILLED.context_rows == before + 4 + 5


def test_behind_the_context_loop_the_backend_is_vllms_own_again() -> None:
    assert isinstance(masked(NAN)[1].prefill.prefill_backend, Backend)


def test_where_another_rank_is_meant_no_kernel_leaves_a_row() -> None:
    assert not any(out.isnan().any() for out, _ in masked(ServePoison(NAN.sites, rank=3))[0])


def initialized(poison: ServePoison, clears: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Since 0.28: context attention of five rows, of which no chunk covers rows 1 and 2, as it is
    allocated.
    """

    def original(
        chunked_context: Any, attn_output: Any, attn_softmax_lse: Any, num_tokens: int
    ) -> Any:
        out = torch.empty(
            (num_tokens, *attn_output.shape[1:]), dtype=attn_output.dtype, device=attn_output.device
        )
        lse = torch.empty((attn_softmax_lse.shape[0], num_tokens), dtype=torch.float32)
        for rows in chunked_context.empty_token_slices if clears else ():
            out[rows].zero_()
            lse[:, rows].fill_(float("-inf"))
        return out, lse

    chunked: Any = SimpleNamespace(empty_token_slices=[slice(1, 3)])
    part = torch.ones(3, 2, 4, dtype=torch.bfloat16), torch.ones(2, 3)
    out, lse = context_rows.with_marked_rows(original, poison)(chunked, *part, num_tokens=5)
    return out, lse


def test_what_vllm_clears_is_clear_and_what_it_leaves_to_chunks_is_filled() -> None:
    before = FILLED.context_rows
    out, lse = initialized(NAN, clears=True)
    assert out.isnan().all(dim=2).all(dim=1).tolist() == [True, False, False, True, True]
    assert not out[1:3].any() and lse[:, 1:3].isneginf().all()
    assert FILLED.context_rows == before + 2


def test_a_vllm_that_forgets_to_clear_them_leaves_the_poison_in_rows_of_no_chunk() -> None:
    out, lse = initialized(NAN, clears=False)
    assert out[1:3].isnan().all() and lse[:, 1:3].isnan().all()


@pytest.mark.parametrize(
    ("names", "where"),
    [
        ((), ":MLACommonImpl"),
        (("mask_empty_context",), ":MLACommonImpl"),
        (("init_mla_context_partial",), ":init_mla_context_partial"),
    ],
)
def test_the_way_is_chosen_by_what_this_vllm_has(
    names: tuple[str, ...], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impl:
        def _compute_prefill_context(self) -> None: ...

    module: Any = ModuleType(ATTENTION_MODULE)
    module.MLACommonImpl = Impl
    for name in names:
        setattr(module, name, lambda: None)
    monkeypatch.setitem(sys.modules, ATTENTION_MODULE, module)
    original = vars(Impl)["_compute_prefill_context"]
    assert context_rows.install(NAN) == ATTENTION_MODULE + where
    is_kept = vars(Impl)["_compute_prefill_context"] is original
    assert is_kept == (where == ":init_mla_context_partial")
