"""The share of prompt tokens that a server took from its prefix cache, by epoch, from its metrics.

The questions of a task share their few examples, so most of each prompt is a hit. An epoch that
loses answers and hits much more, or much less, than the one before points to the cache. vLLM and
SGLang count the tokens that they looked up, llama.cpp those that it computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import TypeAdapter

from harness.accuracy.epoch_counts import Counters, read_epochs, write_epochs

HITS_FILE = "hits.json"
"""In a run directory: prompt tokens that were looked up in each epoch, and those that were hit."""
_COUNTERS = Counters(
    {
        "vllm:prefix_cache_queries": "queried",
        "vllm:prefix_cache_hits": "hit",
        "sglang:prompt_tokens": "queried",
        "sglang:cached_tokens": "hit",
        "llamacpp:prompt_tokens": "computed",
        "llamacpp:prompt_tokens_cached": "hit",
    }
)
_STORED: TypeAdapter[dict[int, tuple[int, int]]] = TypeAdapter(dict[int, tuple[int, int]])


@dataclass(frozen=True, slots=True)
class Hits:
    """Prompt tokens that were looked up in the prefix cache, and those that were found there."""

    queried: int
    hit: int

    @property
    def is_possible(self) -> bool:
        """Whether these can be counts of one time: those of a restarted server fall."""
        return 0 <= self.hit <= self.queried

    @property
    def share(self) -> float:
        """The share that was hit; 0 without a look."""
        return self.hit / self.queried if self.queried else 0.0

    def since(self, before: Hits) -> Hits:
        return Hits(self.queried - before.queried, self.hit - before.hit)


@runtime_checkable
class CountsHits(Protocol):
    """A backend that knows how many prompt tokens were hits."""

    def hits(self) -> Hits | None:
        """The counts since the server started; None if it does not say them."""
        ...


def hits_in(metrics: str) -> Hits | None:
    """The counts in the text of /metrics, summed over engines; None without them."""
    found = _COUNTERS.summed(metrics)
    if "computed" in found:
        found["queried"] = found.pop("computed") + found.get("hit", 0.0)
    return Hits(int(found["queried"]), int(found["hit"])) if len(found) == 2 else None


def read_hits(folder: Path) -> dict[int, Hits]:
    """Epoch -> its hits, of a run, if its server counted them."""
    found = read_epochs(folder / HITS_FILE, _STORED)
    return {epoch: Hits(*counts) for epoch, counts in found.items()}


def keep_hits(folder: Path, epoch: int, counted: Hits) -> None:
    """Add an epoch to a run, unless its counts cannot be, or `--resume` asked nothing in it."""
    kept = read_hits(folder)
    if counted.is_possible and (counted.queried or epoch not in kept):
        kept[epoch] = counted
    write_epochs(
        folder / HITS_FILE, {number: (one.queried, one.hit) for number, one in kept.items()}
    )
