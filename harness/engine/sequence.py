"""One request on its way through the engine: its tokens, and the blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """A request. `tokens` is the prompt followed by what was generated.

    The first `num_computed_tokens` tokens have their latents in `blocks` and their effect in `state_block`.
    """

    request: int
    tokens: list[int]
    max_tokens: int
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    state_block: int | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens added to the prompt so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose latents are not cached yet: 1 for a decoding request."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def max_length(self) -> int:
        """Tokens that it will have cached at most; the last generated token is never computed."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def is_decoding(self) -> bool:
        """Whether its next step is one token on top of cached ones."""
        return self.num_computed_tokens > 0 and self.num_uncomputed_tokens == 1

    @property
    def is_finished(self) -> bool:
        """Whether it has all the tokens it asked for."""
        return self.num_generated_tokens >= self.max_tokens
