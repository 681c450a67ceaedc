"""Finds the answers that greedy decoding gives exactly, without decoding.

After a correct prefix, greedy decoding errs where the most likely next token is not the expected
one. So one dense forward over prompt and answer shows whether the decoded text is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from canaries.tokenizer import IGNORED, Examples
from harness.engine.model.layers import IdsTransform, MoE
from harness.engine.model.mla import CacheTransform
from harness.engine.model.transformer import CausalLM

FP8_MAX = 448.0  # largest finite float8 e4m3


def fp8_cache(scale: float | None = None) -> CacheTransform:
    """A cache transform that rounds rows to float8 e4m3 with one scale for each tensor.

    `scale` None: the tensor's largest value sets the scale. A server without calibration uses 1.0.
    """

    def transform(kv_c: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
        """kv_c [..., R] and k_pe [..., E], rounded."""
        row = torch.cat((kv_c, k_pe), dim=-1)
        unit = (
            row.abs().amax() / FP8_MAX if scale is None else torch.tensor(scale, device=row.device)
        )
        rounded = (row / unit).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(
            row.dtype
        ) * unit.to(row.dtype)
        kv_c, k_pe = torch.split(rounded, [kv_c.shape[-1], k_pe.shape[-1]], dim=-1)
        return kv_c, k_pe

    return transform


def _rows_from_before(kv_c: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
    return kv_c.roll(1, dims=1), k_pe.roll(1, dims=1)


def _second_page_is_the_first(kv_c: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
    slots = torch.arange(kv_c.shape[1], device=kv_c.device)
    slots = torch.where((slots >= 64) & (slots < 128), slots - 64, slots)
    return kv_c[:, slots], k_pe[:, slots]


def _half_a_page_lost(kv_c: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
    slots = torch.arange(kv_c.shape[1], device=kv_c.device)
    kept = ((slots < 32) | (slots >= 64)).unsqueeze(-1)
    return kv_c * kept, k_pe * kept


# Typical corruptions of a cache, applied to every row of every MLA layer. A canary that still
# answers measures nothing: its card shows the accuracy under each of them.
SABOTAGES: dict[str, CacheTransform] = {
    "all rows zero": lambda kv_c, k_pe: (kv_c * 0, k_pe * 0),
    "rows at half their size": lambda kv_c, k_pe: (kv_c * 0.5, k_pe * 0.5),
    "each row taken from the token before": _rows_from_before,
    "tokens 64 to 127 read the page of 0 to 63": _second_page_is_the_first,
    "rows of tokens 32 to 63 zero": _half_a_page_lost,
}


def low_and_high_words(ids: Tensor) -> Tensor:
    """Expert ids [T, k], stored as 64-bit numbers and read as 32-bit ones: ids of half the tokens,
    each before a 0.
    """
    words = ids.long().view(torch.int32).flatten()
    return words[: ids.numel()].view(ids.shape)


def ids_transform(model: CausalLM, transform: IdsTransform) -> AbstractContextManager[None]:
    """Apply `transform` to the experts' ids of every layer inside the block."""
    layers = [layer.mlp for layer in model.layers if isinstance(layer.mlp, MoE)]
    return _replaced(layers, "ids_transform", transform)


def cache_transform(
    model: CausalLM, transform: CacheTransform | None
) -> AbstractContextManager[None]:
    """Apply `transform` to the cache rows of every MLA layer inside the block."""
    return _replaced(model.mla_layers(), "cache_transform", transform)


@contextmanager
def _replaced(layers: Iterable[torch.nn.Module], name: str, transform: object) -> Iterator[None]:
    before = [(layer, getattr(layer, name)) for layer in layers]
    for layer, _ in before:
        setattr(layer, name, transform)
    try:
        yield
    finally:
        for layer, old in before:
            setattr(layer, name, old)


@torch.no_grad()
def exact_answers(
    model: CausalLM, examples: Examples, batch_size: int = 64
) -> tuple[Tensor, Tensor]:
    """The answers that greedy decoding gives exactly, and their margins.

    Returns exact [N] bool, and margin [N] float32: the expected token's logit minus the best other
    one, the least over an answer's tokens; negative where the answer is wrong.
    """
    margin = torch.empty(len(examples), device=examples.tokens.device)
    for rows, batch in examples.batches(batch_size):
        wanted = batch.labels != IGNORED
        logits = model.compute_logits(model.hidden_states(batch.tokens)[wanted]).float()
        expected = batch.labels[wanted].unsqueeze(-1)
        own = logits.gather(-1, expected).squeeze(-1)
        others = logits.scatter(-1, expected, -torch.inf).amax(dim=-1)
        distance = torch.full(batch.labels.shape, torch.inf, device=own.device)
        distance[wanted] = own - others
        margin[rows] = distance.amin(dim=-1)
    # NaN > 0 is false: a NaN counts as wrong.
    return margin > 0, margin
