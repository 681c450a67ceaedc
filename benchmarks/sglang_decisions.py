"""The decisions of SGLang, as it returns them: the experts of each token, and the tokens of each
indexer.

SGLang captures both itself, in graphs too, and returns them beside an answer, if the server has
`OPTIONS` and the request asks for them. Written for SGLang 0.5.23.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from canaries.recorded import NONE, UNKNOWN, packed

OPTIONS = {"enable_return_routed_experts": True, "enable_return_indexer_topk": True}
"""Arguments of `sglang.Engine`."""
ENVIRONMENT = {"SGLANG_DSA_FUSE_TOPK": "0"}
"""Otherwise the indexer's choice is made of slots of the cache, and none of positions."""
STAGES = {"experts": "routed_experts", "index": "indexer_topk"}
"""Stage -> its key in `meta_info`."""


def ask_for_indices() -> None:
    """Let every request of this process ask for the indexer's choice: `Engine.generate` has no
    argument for it.
    """
    from sglang.srt.entrypoints import engine

    engine.GenerateReqInput = functools.partial(engine.GenerateReqInput, return_indexer_topk=True)


def of_answer(
    meta_info: Mapping[str, Any], num_layers: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """The decisions of an answer: stage -> layer -> packed ids [T, k] by position.

    `meta_info` is SGLang's. Its ids are int32 in base64, [T, num_layers, k], with zeros where
    nothing decided. The last token was not computed, so T is one less than all tokens.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for stage, key in STAGES.items():
        if not (text := meta_info.get(key)):
            continue
        data = bytearray(base64.b64decode(text))
        num_tokens = meta_info["prompt_tokens"] + meta_info["completion_tokens"] - 1
        ids = torch.frombuffer(data, dtype=torch.int32).view(num_tokens, num_layers, -1)
        deciding = [layer for layer in range(num_layers) if ids[:, layer].any()]
        found[stage] = {str(layer): packed(_rows(ids[:, layer], stage)) for layer in deciding}
    return found


def _rows(ids: Tensor, stage: str) -> Tensor:
    """The ids [T, k] of one layer, UNKNOWN in rows that nothing wrote."""
    width = ids.shape[1]
    # One id cannot be chosen twice, so zeros alone are no choice of two or more.
    unwritten = ~ids.any(dim=1) & (width > 1)
    rows = torch.where(unwritten[:, None], UNKNOWN, ids)
    if stage == "index":
        # SGLang runs no indexer for a prompt of so few tokens, as it would choose them all.
        for position in unwritten[:width].nonzero().flatten().tolist():
            rows[position] = NONE
            rows[position, : position + 1] = torch.arange(position + 1)
    return rows
