"""vLLM's grammar masks on a CPU: does each row of logits get the mask of its own request and
position?

The scheduler's choice of requests, the manager that fills the bitmask, and each runner's map from
rows of the bitmask to rows of logits are vLLM's. The grammar is the harness's: request r allows one
token after s tokens, which no other request or position allows. All small batches are tried:
requests without a grammar, chunks of prompts, drafts with padding, in several orders, and drafts
that the second runner trims, where the release can.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output import StructuredOutputManager, utils
from vllm.v1.worker.gpu import structured_outputs
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

from harness.api import Observed, Run
from mla_harness_adapters.host_parts import Without, made_without_init, patched
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import TRIMMED_DRAFTS

MOST_DRAFTS = 2
NUM_REQUESTS = 3
VOCAB = 32
"""One word of vLLM's bitmask."""
STRIDE = MOST_DRAFTS + 1
SAMPLED = 5
"""The second runner has every fifth batch: its interpreted kernel takes a tenth of a second."""
TRIMS = TRIMMED_DRAFTS.of(structured_outputs)
"""Whether the second runner may verify fewer drafts than were scheduled."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a request brings: a grammar, a chunk of its prompt, drafts, and how many of them are no
    padding.
    """

    has_grammar: bool
    is_chunk: bool = False
    num_drafts: int = 0
    num_real: int = 0

    def __str__(self) -> str:
        what = (
            "a chunk of a prompt"
            if self.is_chunk
            else "a grammar"
            if self.has_grammar
            else "no grammar"
        )
        return f"{what}, {self.num_real} of {self.num_drafts} drafts"


KINDS = (
    *(Kind(False, num_drafts=count, num_real=count) for count in range(MOST_DRAFTS + 1)),
    *(
        Kind(True, False, count, real)
        for count in range(MOST_DRAFTS + 1)
        for real in range(count + 1)
    ),
    Kind(True, is_chunk=True),
)


class Grammar:
    """Allows token `STRIDE * number + s` after s tokens."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = 0

    def accept_tokens(self, request: str, tokens: Sequence[int]) -> bool:
        """Whether the tokens are the allowed ones. Moves on if they are."""
        start = STRIDE * self.number + self.state
        if list(tokens) != list(range(start, start + len(tokens))):
            return False
        self.state += len(tokens)
        return True

    def rollback(self, count: int) -> None:
        self.state -= count

    def is_terminated(self) -> bool:
        """A grammar here has no end."""
        return False

    def fill_bitmask(self, bitmask: Tensor, row: int) -> None:
        """Allow one token in a row of the bitmask [rows, words] int32."""
        # A token of its own for each request and position: a row with another's mask shows at once.
        bitmask[row] = 1 << (STRIDE * self.number + self.state)


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Try every batch. The allowed tokens of each row must be those of its request and position."""
    found = Run(poison.pattern)
    streams = {
        "Stream": mock.Mock(),
        "current_stream": mock.Mock(),
        "stream": lambda stream: contextlib.nullcontext(),
    }
    with Without("pin_memory"), patched(torch.cuda, streams):
        # Releases differ in what the worker is made with. It gets the arguments that this one
        # knows.
        later = accepted({"mask_stride": STRIDE, "num_bonus_tokens": 1}, StructuredOutputsWorker)
        worker = StructuredOutputsWorker(NUM_REQUESTS * STRIDE, VOCAB, torch.device("cpu"), **later)
        for first in KINDS:
            rows: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {"v1": [], "v2": []}
            for number, others in enumerate(
                itertools.product(KINDS, repeat=NUM_REQUESTS - 1), KINDS.index(first)
            ):
                batch = MaskedBatch((first, *others), number)
                rows["v1"].append(batch.of_first_runner())
                if number % SAMPLED == 0:
                    rows["v2"].append(batch.of_second_runner(worker))
            # One observation for each runner and first request: thousands of small ones would be
            # slow, and a wrong row still names its batch by its place.
            for runner, pairs in rows.items():
                got, live, want = (torch.cat(side) for side in zip(*pairs, strict=True))
                name = f"runner {runner}: allowed tokens, first request {first}"
                found.evidence.append(Observed(name, got.long(), live, want.long()))
    return found


class MaskedBatch:
    """One batch: as the scheduler has it, its bitmask, and the order in which the runner has it."""

    def __init__(self, kinds: Sequence[Kind], number: int) -> None:
        """`number` decides the runner's order, and how many drafts the second runner keeps."""
        self.kinds = dict(zip("abc", kinds, strict=True))
        # The runner keeps requests in an order of its own, so a row of the bitmask and a row of
        # logits belong to different requests unless the map between them is right.
        self.order = list(list(itertools.permutations(self.kinds))[number % 6])
        self.kept = number % STRIDE if TRIMS else MOST_DRAFTS
        self.drafts = {
            # vLLM pads drafts with -1. A padding draft must not move the state of the grammar.
            name: [STRIDE * place + i if i < kind.num_real else -1 for i in range(kind.num_drafts)]
            for place, (name, kind) in enumerate(self.kinds.items())
            if kind.num_drafts
        }
        self.scheduled = SimpleNamespace(
            num_scheduled_tokens={name: 1 + kind.num_drafts for name, kind in self.kinds.items()},
            scheduled_spec_decode_tokens=self.drafts,
            has_structured_output_requests=True,
        )
        requests = {
            name: _request(place, kind) for place, (name, kind) in enumerate(self.kinds.items())
        }
        scheduler = made_without_init(
            Scheduler, requests=requests, structured_output_manager=_manager()
        )
        self.grammar = scheduler.get_grammar_bitmask(self.scheduled)

    def of_first_runner(self) -> tuple[Tensor, Tensor, Tensor]:
        """The allowed tokens [rows, vocabulary] of the first runner, the rows that matter, and what
        they must be.
        """
        wanted, live, _ = self._wanted(MOST_DRAFTS)
        logits = torch.zeros(wanted.shape)
        if self.grammar is not None:
            utils.apply_grammar_bitmask(
                self.scheduled, self.grammar, SimpleNamespace(req_ids=self.order), logits
            )
        return logits.isfinite(), live, wanted

    def of_second_runner(self, worker: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The same of the second runner, which may keep fewer drafts than were scheduled."""
        wanted, live, counts = self._wanted(self.kept)
        logits = torch.zeros(wanted.shape)
        ends = np.cumsum([0, *counts], dtype=np.int32)
        if self.grammar is not None:
            batch = SimpleNamespace(
                req_ids=self.order,
                num_reqs=len(self.order),
                cu_num_logits=torch.from_numpy(ends),
                cu_num_logits_np=ends,
                num_draft_tokens_per_req=np.array(
                    [self.kinds[name].num_drafts for name in self.order]
                ),
            )
            ids = self.grammar.structured_output_request_ids
            bitmask = self.grammar.grammar_bitmask
            worker.apply_grammar_bitmask(logits, batch, ids, bitmask)
        return logits.isfinite(), live, wanted

    def _wanted(self, most_drafts: int) -> tuple[Tensor, Tensor, list[int]]:
        """The allowed tokens [rows, vocabulary] bool in the runner's order, the rows that matter,
        rows by request.

        A draft that is padding is refused whatever the mask, and no row behind it is used.
        """
        rows = []
        live = []
        counts = []
        for name in self.order:
            kind = self.kinds[name]
            place = list(self.kinds).index(name)
            counts.append(1 + min(kind.num_drafts, most_drafts))
            for position in range(counts[-1]):
                row = torch.ones(VOCAB, dtype=torch.bool)
                # What a chunk of a prompt samples is discarded, so its mask does not matter: all is
                # allowed.
                if kind.has_grammar and not kind.is_chunk:
                    row = torch.arange(VOCAB) == STRIDE * place + position
                rows.append(row)
                live.append(position <= kind.num_real)
        return torch.stack(rows), torch.tensor(live), counts


def _request(number: int, kind: Kind) -> Any:
    structured = SimpleNamespace(grammar=Grammar(number), reasoning_ended=True)
    return SimpleNamespace(
        request_id="abc"[number],
        use_structured_output=kind.has_grammar,
        is_prefill_chunk=kind.is_chunk,
        structured_output_request=structured if kind.has_grammar else None,
    )


def _manager() -> Any:
    """vLLM's manager of grammars without a tokenizer, whose rows hold stale bits."""
    drafter = SimpleNamespace(num_speculative_tokens=MOST_DRAFTS)
    known = SimpleNamespace(
        num_speculative_tokens=MOST_DRAFTS,
        speculative_config=drafter,
        scheduler_config=SimpleNamespace(max_num_seqs=NUM_REQUESTS),
        model_config=SimpleNamespace(is_diffusion=False),
    )
    # The buffer lives as long as the server. A row that nobody fills holds an earlier step's mask.
    stale = torch.full((NUM_REQUESTS * STRIDE, 1), 0x5A5A5A5A, dtype=torch.int32)
    return made_without_init(
        StructuredOutputManager,
        vllm_config=known,
        backend=SimpleNamespace(allocate_token_bitmask=lambda rows: stale),
        _grammar_bitmask=None,
        _full_mask=torch.tensor(-1, dtype=torch.int32),
        fill_bitmask_parallel_threshold=128,
        enable_in_reasoning=True,
        reasoner=None,
        reasoner_cls=None,
    )
