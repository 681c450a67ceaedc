"""A request on its way through the engine, and what a step does with requests and blocks.

No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.seams import seam


@dataclass(slots=True, eq=False)
class Sequence:
    """A request. `tokens` is the prompt followed by the generated tokens.

    The first `num_computed_tokens` tokens have their latents in `blocks` and `window_blocks` and
    their effect in `state_block`; another request computed the first `num_shared_tokens`. The first
    `num_evicted_pages` of `window_blocks` are freed. The next step verifies `drafts`, with
    `query_len` query tokens for each decode.
    """

    request: int
    tokens: list[int]
    max_tokens: int
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    state_block: int | None = None
    window_blocks: list[int] = field(default_factory=list)
    num_evicted_pages: int = 0
    query_len: int = 1
    drafts: list[int] = field(default_factory=list)
    num_shared_tokens: int = 0
    slot: int = 0
    """The slot of its adapter, 0 without one."""
    model: tuple[int, int] = (0, 0)
    """The model that serves it since it last started: the number of reloads, and its adapter."""
    preempted_at: int = 0
    """The number of its tokens when it was preempted last; 0 if it never was."""
    state_source: int | None = None
    """The cached state that its first step starts from, and the pages that its state kept in the
    cache covers.
    """
    num_kept_pages: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """The number of tokens not in the cache, without drafts: 1 for a decoding request."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def num_tokens_to_run(self) -> int:
        return self.num_uncomputed_tokens + len(self.drafts)

    @property
    def max_length(self) -> int:
        """The most tokens that it ever caches: not the last generated token, but perhaps drafts."""
        return self.num_prompt_tokens + self.max_tokens + self.query_len - 2

    @property
    def is_decoding(self) -> bool:
        """Whether its next step is one token (and drafts) after cached tokens."""
        return self.num_computed_tokens > 0 and self.num_uncomputed_tokens == 1

    @property
    def is_finished(self) -> bool:
        return self.num_generated_tokens >= self.max_tokens


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A request and how many of its uncomputed tokens run in this step."""

    sequence: Sequence
    num_new_tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether it is `query_len` tokens after cached ones, for the decode kernel.

        More than one token are a decode only if they are drafts, not a piece of a prompt.
        """
        return is_decode(self.sequence, self.num_new_tokens)

    @property
    def num_rows(self) -> int:
        """How many rows of logits it gets: one for its last token, or one for each token of a
        decode.
        """
        return self.num_new_tokens if self.is_decode else 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step: decoding requests first, then prompts, and the blocks that were freed or given
    since the step before.

    No request can read the content of `freed_blocks` any more. A block may be freed and then given.
    The runner must zero `blocks_to_zero`, some of the new blocks, before anything runs. Then it
    writes the state that was in the first block of each pair of `state_copies` into the second.
    """

    scheduled: tuple[ScheduledSequence, ...]
    freed_blocks: tuple[int, ...]
    new_attention_blocks: tuple[int, ...]
    new_state_blocks: tuple[int, ...]
    new_window_blocks: tuple[int, ...] = ()
    blocks_to_zero: tuple[int, ...] = ()
    state_copies: tuple[tuple[int, int], ...] = ()


@seam("verify.short-prompt-as-decode", "state.one-token-prompt-as-decode")
def is_decode(sequence: Sequence, num_new_tokens: int) -> bool:
    """Whether these tokens come after cached ones, as many as a decode has.

    A short prompt can have that many. It has no state to continue (vllm-project/vllm#32118), and no
    drafts to verify (vllm-project/vllm#53059).
    """
    # With one query token, a last token of a prompt runs as a decode: it has cached tokens to go on
    # from. With drafts, all tokens but the first must be drafts.
    if num_new_tokens != sequence.query_len or sequence.num_computed_tokens == 0:
        return False
    return sequence.query_len == 1 or sequence.is_decoding
