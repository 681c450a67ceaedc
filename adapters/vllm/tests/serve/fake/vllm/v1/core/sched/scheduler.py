"""A stand-in for vLLM's scheduler: it is told what each step verified."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Scheduler:
    def __init__(self, num_output_tokens: int) -> None:
        self._request = SimpleNamespace(num_output_tokens=num_output_tokens)

    @property
    def requests(self) -> dict[str, Any]:
        return {str(number): self._request for number in range(9)}

    def make_spec_decoding_stats(
        self, stats: Any, *, num_draft_tokens: int, num_accepted_tokens: int, request_id: str
    ) -> Any:
        assert 0 <= num_accepted_tokens <= num_draft_tokens and request_id
        return stats
