"""The share of prompt tokens that a server took from its prefix cache, by epoch, from its metrics.

The questions of a task share their few examples, so most of each prompt is a hit. An epoch that
loses answers and hits much more, or much less, than the one before points to the cache. vLLM and
SGLang both count tokens.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import TypeAdapter

from harness.accuracy.acceptance import NUMBER
from harness.core.files import write_atomic
from harness.core.stored import NoFile, read_json, value_of

HITS_FILE = "hits.json"
"""In a run directory: prompt tokens that were looked up in each epoch, and those that were hit."""
_NAMES = {
    "vllm:prefix_cache_queries": "queried",
    "vllm:prefix_cache_hits": "hit",
    "sglang:prompt_tokens": "queried",
    "sglang:cached_tokens": "hit",
}
"""Name of a counter -> what it counts. The Prometheus client adds `_total`."""
_COUNTER = re.compile(
    rf"^({'|'.join(_NAMES)})(?:_total)?(?:\{{[^}}]*\}})? ({NUMBER})\s*$", re.MULTILINE | re.ASCII
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
    found: dict[str, float] = {}
    for name, value in _COUNTER.findall(metrics):
        found[_NAMES[name]] = found.get(_NAMES[name], 0.0) + float(value)
    return Hits(int(found["queried"]), int(found["hit"])) if len(found) == 2 else None


def read_hits(folder: Path) -> dict[int, Hits]:
    """Epoch -> its hits, of a run, if its server counted them."""
    file = folder / HITS_FILE
    try:
        found = value_of(_STORED, read_json(file), file)
    except NoFile:
        return {}
    return {epoch: Hits(*counts) for epoch, counts in sorted(found.items())}


def keep_hits(folder: Path, epoch: int, counted: Hits) -> None:
    """Add an epoch to a run, unless its counts cannot be, or `--resume` asked nothing in it."""
    kept = read_hits(folder)
    if counted.is_possible and (counted.queried or epoch not in kept):
        kept[epoch] = counted
    text = json.dumps({number: [one.queried, one.hit] for number, one in kept.items()})
    write_atomic(folder / HITS_FILE, text)
