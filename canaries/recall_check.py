"""Measures canary-dsa with transformers' own DeepSeek V3.2: the share of right answers under a right and a wrong top-k.

One forward over prompt and answer shows what greedy decoding gives, as in `canaries/check.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from canaries import recall
from canaries.tasks import Question

BLOCK = 64
E4M3_MAX = 448.0
Change = Callable[[Tensor, Tensor], Tensor]
"""Chosen tokens [B, S, k] int and the place [S] of each query -> the tokens to attend to."""


def _random(chosen: Tensor, places: Tensor) -> Tensor:
    generator = torch.Generator(chosen.device).manual_seed(0)
    drawn = torch.rand(chosen.shape, generator=generator, device=chosen.device)
    return (drawn * (places[:, None] + 1)).long()


def _latest(chosen: Tensor, places: Tensor) -> Tensor:
    return (places[:, None] - torch.arange(chosen.shape[-1], device=chosen.device)).clamp(min=0).expand_as(chosen)


def _half(chosen: Tensor, places: Tensor) -> Tensor:
    first = chosen[..., : max(1, chosen.shape[-1] // 2)]
    return torch.cat((first, first), -1)


CHANGES: dict[str, Change] = {
    "the right top-k": lambda chosen, places: chosen,
    "random tokens": _random,
    "the latest tokens": _latest,
    "each token one block of 64 too late": lambda chosen, places: torch.minimum(chosen + BLOCK, places[:, None]),
    "each token one too early": lambda chosen, places: (chosen - 1).clamp(min=0),
    "the better half of the top-k": _half,
}


def load(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu", topk: int | None = None) -> Any:
    """transformers' model of the checkpoint; `topk` replaces its index_topk."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    # `to` would round the frequencies of the rotary embedding too.
    for layer in (model.model.embed_tokens, model.model.layers, model.model.norm, model.lm_head):
        layer.to(dtype)
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk = topk or model.config.index_topk
    return model.to(device)


@contextmanager
def changed(model: Any, change: Change, layers: Sequence[int] = (0, 1)) -> Iterator[None]:
    """Inside the block the indexers of `layers` choose what `change` makes of their choice."""

    def hook(module: Any, args: Any, output: Tensor) -> Tensor:
        """output [B, S, k] int32, changed."""
        places = torch.arange(output.shape[1], device=output.device)
        return change(output.long(), places).to(output.dtype)

    handles = [model.model.layers[n].self_attn.indexer.register_forward_hook(hook) for n in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def rounded(model: Any) -> Iterator[None]:
    """Inside the block stored latents, and the queries and keys of indexers, are rounded to e4m3 with a scale a row."""

    def hook(module: Any, args: Any, output: Tensor) -> Tensor:
        """output [..., D], rounded."""
        unit = output.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / E4M3_MAX
        return ((output.float() / unit).to(torch.float8_e4m3fn).float() * unit).to(output.dtype)

    names = ("kv_a_layernorm", "indexer.k_norm", "indexer.wq_b")
    modules = [module for name, module in model.named_modules() if name.endswith(names)]
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def is_right(model: Any, question: Question) -> bool:
    """Whether greedy decoding answers the question to its last token."""
    words = recall.tokenizer()
    prompt, answer = words.encode(question.prompt).ids, [*words.encode(question.completion).ids, 0]
    tokens = torch.tensor([prompt + answer], device=model.device)
    with torch.no_grad():
        logits = model(tokens, logits_to_keep=len(answer) + 1).logits[0, :-1]
    return logits.argmax(-1).tolist() == answer


def share(model: Any, questions: Sequence[Question]) -> float:
    """The share of right answers."""
    return sum(is_right(model, question) for question in questions) / len(questions)
