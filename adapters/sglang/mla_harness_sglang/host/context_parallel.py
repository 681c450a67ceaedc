"""SGLang's arithmetic of context parallelism: every small case of it against the definition.

`search: prompts` cuts prompts into two blocks for each rank: rank r computes block r and block r
from the end, over the cached prefix and all earlier blocks, and joined again the blocks are the
prompt. The batch is padded to a multiple of the blocks, so a prefix from a padded length is too
short (sgl-project/sglang#23415). `search: lengths` deals tokens to the ranks of a decode,
`interleave` in a row.
"""

from __future__ import annotations

import importlib
import itertools
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Run
from mla_harness_adapters.host_parts import Found, Without, searched
from mla_harness_sglang.params import SglangHostParams
from mla_harness_sglang.releases import (
    DECODE_RANKS,
    DSA_NAME,
    INTERLEAVE,
    LOCAL_POSITIONS,
    SEVERAL_PROMPTS,
    SPLIT_BY_CLASS,
)

PREFIXES = (0, 1, 7)


def run(poison: Poison, params: SglangHostParams) -> Run:
    return searched(poison.pattern, _lengths() if params.search == "lengths" else _prompts())


def _lengths() -> Found:
    """Tokens of each rank, from each start; and the number of each token there."""
    layout = DECODE_RANKS.module()
    has_sizes = INTERLEAVE.is_argument(layout.get_dcp_lens)
    for ranks, size in itertools.product((2, 3, 4, 8), (1, 2, 16) if has_sizes else (1,)):
        lengths_of = partial(
            layout.get_dcp_lens, **({"interleave_size": size} if has_sizes else {})
        )
        tokens = torch.arange(3 * ranks * size + 2)
        turn = tokens // size
        for rank in range(ranks):
            name = f"{ranks} ranks, interleave {size}, rank {rank}"
            # Tokens are dealt in groups of `size`, one rank after another, from the first again.
            own = turn % ranks == rank
            before = torch.cat((torch.zeros(1, dtype=torch.int64), own.cumsum(0)))
            ends = torch.arange(len(before))
            yield f"{name}: lengths", lengths_of(ends, ranks, rank), before
            starts = ends // 3
            yield (
                f"{name}: lengths from a start",
                lengths_of(ends - starts, ranks, rank, starts),
                (before - before[starts]),
            )
            if not LOCAL_POSITIONS.of(layout):
                continue
            # -1 is no token, and must stay -1 on every rank.
            given = torch.cat((tokens, torch.tensor([-1])))
            places = torch.where(own, turn // ranks * size + tokens % size, -1)
            places = torch.cat((places, torch.tensor([-1])))
            yield f"{name}: places", layout.localize_dcp_indices(given, ranks, rank, size), places


def _prompts() -> Found:
    """Keys that each block may see, and the prompt after the blocks of all ranks are joined."""
    split, most = _splitter()
    for ranks in (2, 3, 4):
        blocks = 2 * ranks
        batches: list[Any] = [
            *itertools.product(itertools.product(PREFIXES, range(blocks, 2 * blocks + 2)))
        ]
        if most > 1:
            # Two prompts, with and without a prefix. All pairs of the list above would be
            # thousands.
            batches += itertools.product(
                [(0, blocks), (3, blocks + 1), (7, 2 * blocks - 1)], repeat=2
            )
        for batch in batches:
            extends = [new for _, new in batch]
            padded = -(-sum(extends) // blocks) * blocks
            parts = [
                split(padded, rank, ranks, [prefix + new for prefix, new in batch], extends)
                for rank in range(ranks)
            ]
            got, want = zip(
                *(_keys(part, rank, ranks, batch, padded) for rank, part in enumerate(parts)),
                strict=True,
            )
            name = f"{ranks} ranks, (prefix, new) of {batch}"
            yield f"{name}: keys of both blocks by rank", torch.stack(got), torch.stack(want)
            yield f"{name}: tokens", _joined(parts, padded), torch.arange(padded)


def _keys(part: Any, rank: int, ranks: int, batch: Any, padded: int) -> tuple[Tensor, Tensor]:
    """Keys [2, requests] of a rank's blocks as SGLang has them, and by counting.

    Padding belongs to the last prompt.
    """
    got = torch.stack((part.kv_len_prev_tensor, part.kv_len_next_tensor))
    blocks = 2 * ranks
    ends = []
    for request, (prefix, new) in enumerate(batch):
        length = new + (padded - sum(each for _, each in batch)) * (request == len(batch) - 1)
        # The first blocks are one token longer where the length does not divide.
        sizes = [length // blocks + (block < length % blocks) for block in range(blocks)]
        ends.append([prefix + sum(sizes[: last + 1]) for last in (rank, blocks - 1 - rank)])
    return got, torch.tensor(ends).T


def _joined(parts: list[Any], padded: int) -> Tensor:
    """The tokens [T] in the order in which SGLang joins the blocks of the ranks."""
    tokens = []
    for part in parts:
        own = torch.split(torch.arange(padded), part.split_list)
        rows = torch.cat([own[block] for block in part.zigzag_index])
        tokens.append(
            torch.nn.functional.pad(rows, (0, part.max_rank_len[0] - len(rows)), value=-1)
        )
    first = parts[0]
    whole = torch.split(torch.cat(tokens), first.max_rank_len)
    kept = torch.cat(
        [rows[:count] for rows, count in zip(whole, first.per_rank_actual_token, strict=True)]
    )
    chunks = torch.split(kept, first.reverse_split_len)
    return torch.cat([chunks[block] for block in first.cp_reverse_index])


def _splitter() -> tuple[Any, int]:
    """SGLang's function of (padded tokens, rank, ranks, lengths, new tokens), and the most prompts
    that it takes.
    """
    if SPLIT_BY_CLASS.is_module():
        kind = importlib.import_module("sglang.srt.layers.cp.zigzag").ZigzagCPStrategy

        def by_class(
            padded: int, rank: int, ranks: int, lengths: list[int], extends: list[int]
        ) -> Any:
            # The strategy asks its process group for the rank. The subclass answers, so no group is
            # needed.
            return type("Rank", (kind,), {"cp_rank": rank})(ranks).build_metadata(
                padded, lengths, extends
            )

        return by_class, 2
    module = importlib.import_module("sglang.srt.layers.utils.cp_utils")
    several = SEVERAL_PROMPTS.is_argument(module.prepare_context_parallel_metadata)

    def by_function(
        padded: int, rank: int, ranks: int, lengths: list[int], extends: list[int]
    ) -> Any:
        more = {"extend_seqs_len": extends, "device": "cpu"} if several else {}
        with Without("device"), _plain_prefill():
            return module.prepare_context_parallel_metadata(padded, rank, ranks, lengths, **more)

    return by_function, 1 + several


def _plain_prefill() -> Any:
    """Attention without an indexer, which is not asked for by a server's arguments here."""
    name = "dsa" if DSA_NAME.is_module() else "nsa"
    module = importlib.import_module(f"sglang.srt.layers.attention.{name}.utils")
    asked = (f"is_{name}_prefill_cp_round_robin_split", f"is_{name}_enable_prefill_cp")
    off: dict[str, Any] = dict.fromkeys(asked, lambda: False)
    return mock.patch.multiple(module, **off)
