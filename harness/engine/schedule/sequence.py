"""One request: its tokens and its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """A request. `tokens` is the prompt followed by the generated tokens.

    The first `num_computed_tokens` tokens have their latents in `blocks` and `window_blocks` and their effect in
    `state_block`; another request computed the first `num_shared_tokens`. The first `num_evicted_pages` of
    `window_blocks` are freed. The next step verifies `drafts`, with `query_len` query tokens for each decode.
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

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens added to the prompt."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """The number of tokens not in the cache, without drafts: 1 for a decoding request."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def num_tokens_to_run(self) -> int:
        """The number of uncomputed tokens and drafts."""
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
        """Whether all its tokens are generated."""
        return self.num_generated_tokens >= self.max_tokens
