"""One request on its way through the engine: its tokens, and the blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """A request. `tokens` is the prompt followed by what was generated.

    The first `num_computed_tokens` tokens have their latents in `blocks` (those of window layers in `window_blocks`)
    and their effect in `state_block`. The first `num_evicted_pages` of the window layers are given back already;
    `num_shared_tokens` of them were computed by another request with the same
    prefix. `drafts` are guesses of the next tokens that its next step verifies, in a batch where each decoding request
    has `query_len` query tokens.
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
        """Tokens added to the prompt so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose latents are not cached yet: 1 for a decoding request. Drafts are not counted."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def num_tokens_to_run(self) -> int:
        """Query tokens that its next step would like to run: uncomputed ones, and drafts to verify."""
        return self.num_uncomputed_tokens + len(self.drafts)

    @property
    def max_length(self) -> int:
        """Tokens that it will have cached at most: the last generated one is never computed, but drafts may be."""
        return self.num_prompt_tokens + self.max_tokens + self.query_len - 2

    @property
    def is_decoding(self) -> bool:
        """Whether its next step is one token, perhaps with drafts behind it, on top of cached ones."""
        return self.num_computed_tokens > 0 and self.num_uncomputed_tokens == 1

    @property
    def is_finished(self) -> bool:
        """Whether it has all the tokens it asked for."""
        return self.num_generated_tokens >= self.max_tokens
