"""What differs between the servers that scripts are taken to: the names of their counters, how they
say the size of their cache, how a request keeps out of it, and whether they score a prompt.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.accuracy.epoch_counts import NUMBER
from harness.accuracy.script import ENDLESS, PagePool

MOST_PAGE = 1 << 16
"""The most tokens of a page that a server can have."""
ALONE_SALT = "alone-"
"""What the `cache_salt` of a request begins with that may find no page in the prefix cache."""


@dataclass(frozen=True)
class Dialect:
    """A kind of server. `engine` begins the names of its metrics."""

    engine: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Its name of a counter -> vLLM's name."""
    has_salts: bool = True
    """Whether requests with different `cache_salt` share no page.

    Else `cache_prompt: false` keeps a request from what is cached.
    """
    scores_prompts: bool = True
    """Whether `prompt_logprobs` gives the log probabilities of a prompt's tokens.

    Else each beginning of an answer is sent as a prompt, and the next token is asked for.
    """

    def shared(self, salt: str) -> dict[str, Any]:
        """What the requests of one script say, so that no other client's cache is hit."""
        return {"cache_salt": salt} if self.has_salts else {}

    def uncached(self) -> dict[str, Any]:
        """What a request says that must find nothing in the cache."""
        # An engine without salts can take these to a server that has no prefix cache.
        salt = f"{ALONE_SALT}{uuid.uuid4().hex}"
        return {"cache_salt": salt} if self.has_salts else {"cache_prompt": False}

    def counts(self, metrics: str) -> dict[str, float]:
        """The counters and gauges in the text of /metrics by vLLM's names, summed over engines."""
        found: dict[str, float] = {}
        for name, _, value in self._samples(metrics):
            name = self.names.get(name, name)
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def pool(self, metrics: str) -> PagePool | None:
        """The cache as /metrics say it, vLLM as labels and SGLang as gauges; None if they do not
        say it.
        """
        for name, labels, _ in self._samples(metrics):
            if name == "cache_config_info":
                given = dict(re.findall(r'(\w+)="(\d{1,18})"', labels, re.ASCII))
                return _pool(given.get("block_size"), given.get("num_gpu_blocks"))
        counts = self.counts(metrics)
        return _pool(counts.get("page_size"), counts.get("num_pages"))

    def _samples(self, metrics: str) -> Iterator[tuple[str, str, str]]:
        """Name, labels and value of each sample."""
        line = rf"^{self.engine}:(\w+?)(?:_total)?(\{{[^}}]*\}})? ({NUMBER})\s*$"
        for found in re.finditer(line, metrics, re.MULTILINE | re.ASCII):
            yield found[1], found[2] or "", found[3]


VLLM = Dialect("vllm")
SGLANG = Dialect(
    "sglang",
    {
        "num_running_reqs": "num_requests_running",
        "num_queue_reqs": "num_requests_waiting",
        "cached_tokens": "prefix_cache_hits",
        "prompt_tokens": "prefix_cache_queries",
        "num_retracted_requests": "num_preemptions",
    },
)
LLAMACPP = Dialect(
    "llamacpp",
    {
        "requests_processing": "num_requests_running",
        "requests_deferred": "num_requests_waiting",
        "prompt_tokens_cached": "prefix_cache_hits",
        "tokens_predicted": "generation_tokens",
    },
    has_salts=False,
    scores_prompts=False,
)
"""llama.cpp's server has slots in place of pages. A slot holds one sequence, and a request goes on
in the slot that has the longest beginning of its prompt.
"""


def dialect_of(metrics: str) -> Dialect:
    """The dialect of the server that gave the text of /metrics; vLLM's if that says nothing."""
    found = re.search(r"^(vllm|sglang|llamacpp):", metrics, re.MULTILINE)
    return {one.engine: one for one in (VLLM, SGLANG, LLAMACPP)}[found[1] if found else "vllm"]


def slots_of(props: Mapping[str, Any]) -> int | None:
    """The tokens of all slots together, in what llama.cpp's /props say; None if they do not."""
    settings = props.get("default_generation_settings")
    slots = props.get("total_slots")
    length = settings.get("n_ctx") if isinstance(settings, dict) else None
    if type(slots) is int and type(length) is int and 0 < slots * length <= ENDLESS:
        return slots * length
    return None


def _pool(page: str | float | None, num_pages: str | float | None) -> PagePool | None:
    """The cache of these sizes, as /metrics have them; None if they are no sizes of one."""
    if page is None or num_pages is None:
        return None
    size, count = int(page), int(num_pages)
    if 1 <= size <= MOST_PAGE and 1 <= count <= ENDLESS:
        return PagePool(size, count)
    return None
