"""vLLM's chunked prefill: are tokens without context kept out of the merge with rows that no kernel wrote?

`MLACommonImpl.forward_mha` and the Triton `merge_attn_states` that it calls are vLLM's, the latter under Triton's
interpreter. The attention over new tokens and over context is drawn at random; of the context's, only rows of tokens
with context are written (vllm-project/vllm#36540).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl

from harness.poison.allocations import AllocationPoison
from harness.poison.patterns import Poison
from harness.scenario.params import VllmHostParams
from harness.targets.base import Observed, Run
from harness.vllm_host.parts import generator

NUM_TOKENS = 6
WITH_CONTEXT = 4
NUM_HEADS = 2
NOPE, ROPE, VALUE, LATENT = 32, 16, 32, 64


def run(poison: Poison, params: VllmHostParams) -> Run:
    """One prefill batch whose first tokens have context; judged against the merge done in float64."""
    batch = _Batch(poison)
    output = torch.zeros(NUM_TOKENS, NUM_HEADS * VALUE)
    arguments: dict[str, Any] = {
        "q": torch.randn(NUM_TOKENS, NUM_HEADS, NOPE + ROPE, generator=batch.random),
        "kv_c_normed": torch.randn(NUM_TOKENS, LATENT, generator=batch.random),
        "k_pe": torch.randn(NUM_TOKENS, 1, ROPE, generator=batch.random),
        "kv_c_and_k_pe_cache": torch.empty(0),
        "attn_metadata": SimpleNamespace(prefill=batch.metadata()),
        "k_scale": torch.ones(()),
        "output": output,
    }
    # What this function allocates beside its inputs is context output: the fault gives it a copy with unwritten rows.
    with AllocationPoison(poison, _AllContext(), keep=False):
        _impl(batch).forward_mha(**arguments)
    observed = Observed(
        name="prefill output",
        tensor=output.view(NUM_TOKENS, NUM_HEADS, VALUE),
        live=torch.ones(NUM_TOKENS, dtype=torch.bool),
        expected=batch.expected(),
        bound="mla_decode.out.fp32",
        describe="token",
    )
    return Run(poison.pattern, observed=[observed])


class _AllContext(Mapping[int, str]):
    """Every allocation is context output, whatever its ordinal."""

    def __getitem__(self, ordinal: int) -> str:
        return "context.output"

    def __iter__(self) -> Iterator[int]:
        yield 0

    def __len__(self) -> int:
        return 1


class _Batch:
    """The results of the attention kernels for one batch, and what the merge should make of them."""

    def __init__(self, poison: Poison) -> None:
        self.random = generator(poison)
        self.suffix = self._drawn()
        prefix = self._drawn()
        self._written = prefix
        out = poison.empty(NUM_TOKENS, NUM_HEADS, VALUE, dtype=torch.float32, site="context.output")
        lse = poison.empty(NUM_HEADS, NUM_TOKENS, dtype=torch.float32, site="context.lse")
        out[:WITH_CONTEXT] = prefix[0][:WITH_CONTEXT]
        lse[:, :WITH_CONTEXT] = prefix[1][:, :WITH_CONTEXT]
        self.context = (out, lse)

    def _drawn(self) -> tuple[Tensor, Tensor]:
        """Attention output [T, H, V] and its log-sum-exp [H, T]."""
        out = torch.randn(NUM_TOKENS, NUM_HEADS, VALUE, generator=self.random)
        return out, torch.randn(NUM_HEADS, NUM_TOKENS, generator=self.random)

    def metadata(self) -> Any:
        """Of vLLM's prefill metadata, what `forward_mha` reads."""
        backend = SimpleNamespace(run_prefill_new_tokens=lambda **_: self.suffix)
        context = SimpleNamespace(prefill_tokens_with_context=WITH_CONTEXT)
        return SimpleNamespace(prefill_backend=backend, q_data_type=torch.float32, chunked_context=context)

    def expected(self) -> Tensor:
        """float64 [T, H, V]: both sides weighed by their log-sum-exp where there is context, else the new tokens'."""
        suffix, suffix_lse = (tensor.double() for tensor in self.suffix)
        prefix, prefix_lse = (tensor.double() for tensor in self._written)
        weight = torch.sigmoid(prefix_lse - suffix_lse).T[..., None]
        merged = weight * prefix + (1 - weight) * suffix
        return torch.cat([merged[:WITH_CONTEXT], suffix[WITH_CONTEXT:]])


def _impl(batch: _Batch) -> Any:
    """vLLM's implementation with the sizes of this batch and its two kernels replaced."""
    impl = object.__new__(TritonMLAImpl)
    projection = torch.randn(LATENT, NUM_HEADS * (NOPE + VALUE), generator=batch.random)
    settings: dict[str, Any] = {
        "dcp_world_size": 1,
        "num_heads": NUM_HEADS,
        "qk_nope_head_dim": NOPE,
        "v_head_dim": VALUE,
        "kv_b_proj": lambda latents: (latents @ projection,),
        "_use_flashinfer_concat_mla_k": False,
        "_compute_prefill_context": lambda *_: batch.context,
    }
    for name, value in settings.items():
        setattr(impl, name, value)
    return impl
