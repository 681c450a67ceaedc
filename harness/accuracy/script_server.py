"""A server as a script sees it: answers token by token, streams that are closed early, metrics, and
its state.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.accuracy.epoch_counts import NUMBER
from harness.accuracy.script import FIRST_TOKEN, PagePool, StepRequest
from harness.accuracy.server_backend import (
    BadReply,
    ServerBackend,
    Unanswered,
    fetched,
    lines_of,
    log_probability,
    object_of,
    whole_number,
)
from harness.core.errors import InputError, Refused
from harness.core.extras import httpx

IDLE_SECONDS = 600.0
"""How long a server may take to be idle after the last answer."""
MOST_TOGETHER = 1024
ALONE_SALT = "alone-"
"""What the `cache_salt` of a request begins with that may find no page in the prefix cache."""
NUM_BEST = 5
"""The tokens at each place whose log probabilities are asked for: as many as every server gives."""
DEV_MODE = "vLLM has it with VLLM_SERVER_DEV_MODE=1"
_SAMPLE = re.compile(
    rf"^(vllm|sglang):(\w+?)(?:_total)?(\{{[^}}]*\}})? ({NUMBER})\s*$", re.MULTILINE | re.ASCII
)
_ID = re.compile(r"token_id:(\d{1,18})", re.ASCII)
MOST_PAGE = 1 << 16
MOST_PAGES = 1 << 40
MOST_TOKENS = 1 << 31
"""The most tokens of a page, pages of a cache, and tokens of a prompt that a server can have."""
Scores = list[tuple[float, int]]
"""For each token of an answer: by how many nats another token is preferred, and this token."""
_SGLANG = {
    "num_running_reqs": "num_requests_running",
    "num_queue_reqs": "num_requests_waiting",
    "cached_tokens": "prefix_cache_hits",
    "prompt_tokens": "prefix_cache_queries",
    "num_retracted_requests": "num_preemptions",
}
"""SGLang's names of counters, beside vLLM's."""
_COUNTED = (
    "prefix_cache_hits",
    "prefix_cache_queries",
    "num_preemptions",
    "generation_tokens",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


@dataclass(frozen=True)
class ServerReply:
    """The tokens of an answer, with their log probabilities, and the best tokens at each place.

    `error` is the reason for no answer. A token is `token_id:N`, or its text if the server does not
    say the id.
    """

    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[dict[str, float], ...] = ()
    num_prompt_tokens: int | None = None
    error: str = ""
    text: str = ""

    @property
    def ids(self) -> list[int] | None:
        """The tokens as numbers; None if the server does not say them."""
        found = [_ID.fullmatch(token) for token in self.tokens]
        return [int(match[1]) for match in found if match] if all(found) else None


@dataclass(frozen=True, slots=True)
class Metrics:
    """The server's counters, summed over its engines, and the size of its cache.

    `cache` is None without the latter.
    """

    counts: dict[str, float] = field(default_factory=dict)
    cache: PagePool | None = None

    def __sub__(self, before: Metrics) -> dict[str, int]:
        """What happened since `before`.

        Raises Refused if a counter fell, which happens when a server starts again.
        """
        grown = {
            name: self.counts[name] - before.counts.get(name, 0.0)
            for name in _COUNTED
            if name in self.counts
        }
        if fallen := [name for name, count in grown.items() if count < 0]:
            raise Refused(f"the server's counter {fallen[0]} fell meanwhile: it was started again")
        return {name: int(count) for name, count in grown.items()}


class ScriptServer(ServerBackend):
    """Asks with token ids, greedily, to the last token of the budget.

    The answers of one object share a cache.
    """

    def __init__(
        self, url: str, *, served_model: str | None = None, timeout: float = 120.0
    ) -> None:
        super().__init__(url, concurrency=MOST_TOGETHER, served_model=served_model, timeout=timeout)
        self._root = self._url.removesuffix("/v1")
        # No page of an earlier script, or of another client, is hit: hits that are counted are this
        # script's.
        self._salt = uuid.uuid4().hex
        self._client = httpx.Client(timeout=timeout, headers=self._headers)

    def ask(self, requests: Sequence[StepRequest], *, together: bool = True) -> list[ServerReply]:
        """The answers to requests, sent at once or one after the other.

        A stream closed early has its tokens so far.
        """

        async def one(client: httpx.AsyncClient, request: StepRequest) -> ServerReply:
            await asyncio.sleep(request.delay)
            body = self._request(request.prompt, request.max_tokens) | request.more
            if request.abort_after is not None:
                return await self._cut_short(client, body, request.abort_after)
            return await self._reply(client, body)

        return asyncio.run(self._in_flight(one, requests, at_once=None if together else 1))

    def ask_alone(self, requests: Sequence[StepRequest]) -> list[tuple[ServerReply, Scores | None]]:
        """The answers to requests that run one at a time and find no page in the prefix cache.

        With each the scores of its tokens by a prefill of prompt and answer; None if the server
        scores no prompt. A prefill knows no schema.
        """

        async def one(
            client: httpx.AsyncClient, request: StepRequest
        ) -> tuple[ServerReply, Scores | None]:
            # An engine without salts can take these to a server that has no prefix cache.
            alone = {"cache_salt": f"{ALONE_SALT}{uuid.uuid4().hex}"} | request.more
            reply = await self._reply(
                client, self._request(request.prompt, request.max_tokens) | alone
            )
            if reply.error or request.schema or (answer := reply.ids) is None:
                return reply, None
            body = self._request((*request.prompt, *answer), 1) | alone | {"prompt_logprobs": 1}
            try:
                rows = (await self._post(client, body))["choices"][0]["prompt_logprobs"][
                    len(request.prompt) :
                ]
                return reply, [_score(token, row) for token, row in zip(answer, rows, strict=True)]
            except (Unanswered, KeyError, IndexError, TypeError, ValueError, AttributeError):
                return reply, None

        return asyncio.run(self._in_flight(one, requests, at_once=1))

    def close(self) -> None:
        self._client.close()

    def metrics(self) -> Metrics:
        """The counters now, after the last request has ended.

        Raises Refused for a server without metrics.
        """
        for _ in range(int(IDLE_SECONDS)):
            for _ in range(20):
                time.sleep(0.05)
                counts, cache = self._read_metrics()
                if (
                    counts.get("num_requests_running", 0) + counts.get("num_requests_waiting", 0)
                    == 0
                ):
                    return Metrics(counts, cache)
            # The gauges show the last step, which may be before an abort.
            self.ask([StepRequest("one token", (FIRST_TOKEN,), 1, "own")])
        raise Refused(
            f"{self._root}: requests still run {IDLE_SECONDS:.0f} s after the last answer"
        )

    def change(self, path: str, **more: Any) -> dict[str, Any]:
        """POST to an endpoint. Raises Refused if the server has none, or reports a failure."""
        return self._call("POST", path, **more)

    def checkpoint(self) -> str:
        """The weights that the server was started with, by its own name.

        Raises Refused if it does not say it.
        """
        if root := self._entry().get("root"):
            return str(root)
        raise Refused(
            f"{self._url}/models does not say the path of the server's own weights, to load them"
            " again"
        )

    def has(self, request: StepRequest) -> bool:
        """Whether the server answers a request by its model and its schema."""
        (reply,) = self.ask([request])
        return not reply.error and request.obeyed_by(reply.text, len(reply.tokens))

    def adapters(self) -> list[str]:
        """The models that are served beside the one that is asked."""
        ids = [entry.get("id") for entry in self._entries()]
        return [
            name
            for name in ids
            if isinstance(name, str) and name.isprintable() and name != self._served_model
        ]

    def longest(self) -> int:
        """The most tokens of a prompt and its answer; a large number if the server does not say
        it.
        """
        given = self._entry().get("max_model_len")
        return whole_number(given, sys.maxsize) or sys.maxsize

    def _entry(self) -> dict[str, Any]:
        """What /v1/models says about the served model."""
        return next(
            (entry for entry in self._entries() if entry.get("id") == self._served_model), {}
        )

    def _entries(self) -> list[dict[str, Any]]:
        listed = self._call("GET", "/v1/models").get("data")
        return (
            [entry for entry in listed if isinstance(entry, dict)]
            if isinstance(listed, list)
            else []
        )

    def is_sleeping(self) -> bool:
        return bool(self._call("GET", "/is_sleeping").get("is_sleeping"))

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            response = fetched(
                self._client, method, self._root + path, seconds=self._timeout, **more
            )
        except httpx.TransportError as error:
            raise Refused(f"{self._root}{path}: no reply ({type(error).__name__})") from None
        except BadReply as error:
            raise Refused(f"{self._root}{path}: {error}") from None
        if response.status_code in (404, 405):
            raise Refused(f"{self._root}{path}: the server has no such endpoint; {DEV_MODE}")
        if response.status_code != 200:
            raise Refused(
                f"{self._root}{path}: HTTP {response.status_code}:"
                f" {' '.join(response.text.split())[:200]}"
            )
        try:
            found = object_of(response.content)
        except ValueError:
            return {}
        if found.get("success") is False:
            raise Refused(f"{self._root}{path}: the server reports no success")
        return found

    def _read_metrics(self) -> tuple[dict[str, float], PagePool | None]:
        try:
            text = fetched(self._client, "GET", f"{self._root}/metrics", seconds=self._timeout).text
        except httpx.TransportError as error:
            raise InputError(
                f"{self._root}/metrics: no server answers there ({type(error).__name__})"
            ) from None
        except BadReply as error:
            raise Refused(f"{self._root}/metrics: {error}") from None
        counts: dict[str, float] = {}
        cache = None
        for engine, name, labels, value in _SAMPLE.findall(text):
            if engine == "sglang":
                name = _SGLANG.get(name, name)
            if name == "cache_config_info":
                given = dict(re.findall(r'(\w+)="(\d{1,18})"', labels, re.ASCII))
                cache = _pool(given.get("block_size"), given.get("num_gpu_blocks"))
            else:
                counts[name] = counts.get(name, 0.0) + float(value)
        # vLLM has the sizes of its cache as labels, SGLang as gauges.
        return counts, cache or _pool(counts.get("page_size"), counts.get("num_pages"))

    def _request(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        more = {
            # To the last token of the budget: fewer tokens mean that the request was aborted.
            "ignore_eos": True,
            "logprobs": NUM_BEST,
            # Two tokens can have one text.
            "return_tokens_as_token_ids": True,
            "cache_salt": self._salt,
        }
        return self._body("", max_tokens) | more | {"prompt": list(prompt)}

    async def _reply(self, client: httpx.AsyncClient, body: dict[str, Any]) -> ServerReply:
        try:
            return _read(await self._post(client, body))
        except Unanswered as error:
            return ServerReply(error=str(error))

    async def _cut_short(
        self, client: httpx.AsyncClient, body: dict[str, Any], after: int
    ) -> ServerReply:
        """Read a stream, and close it once it has `after` tokens."""
        got = ServerReply()
        where = f"{self._url}/completions"
        body = body | {"stream": True}
        try:
            async with (
                # httpx limits the wait for each part. A server may send one now and then, without
                # an end.
                asyncio.timeout(self._timeout),
                client.stream("POST", where, json=body) as response,
            ):
                if response.status_code != 200:
                    return ServerReply(error=f"HTTP {response.status_code}")
                lines = lines_of(response)
                while len(got.tokens) < after and (line := await anext(lines, None)) is not None:
                    if line.startswith("data: {"):
                        part = _read(object_of(line[6:]))
                        if part.error:
                            return part
                        lists = (
                            got.tokens + part.tokens,
                            got.logprobs + part.logprobs,
                            got.top + part.top,
                        )
                        got = ServerReply(*lists, text=got.text + part.text)
        except (httpx.TimeoutException, TimeoutError):
            return ServerReply(error="the stream does not end in time")
        except httpx.TransportError as error:
            return ServerReply(error=f"connection lost: {type(error).__name__}")
        except (BadReply, ValueError) as error:
            return ServerReply(error=f"the stream is no completion: {error}")
        return got


def _pool(page: str | float | None, num_pages: str | float | None) -> PagePool | None:
    """The cache of these sizes, as /metrics have them; None if they are no sizes of one."""
    found = None if page is None or num_pages is None else PagePool(int(page), int(num_pages))
    return (
        found
        if found and 1 <= found.page <= MOST_PAGE and 1 <= found.num_pages <= MOST_PAGES
        else None
    )


def _score(token: int, row: dict[str, dict[str, float]]) -> tuple[float, int]:
    known = {int(name): log_probability(entry["logprob"]) for name, entry in row.items()}
    best = max(known, key=lambda name: known[name])
    return known[best] - known[token], best


def _read(reply: dict[str, Any]) -> ServerReply:
    if "refused" in reply:
        return ServerReply(error=str(reply["refused"]))
    if reply.get("choices") == []:
        # The last part of a stream may have the usage alone.
        return ServerReply()
    try:
        found = reply["choices"][0]["logprobs"] or {
            "tokens": (),
            "token_logprobs": (),
            "top_logprobs": (),
        }
        count = (reply.get("usage") or {}).get("prompt_tokens")
        read = ServerReply(
            tuple(map(str, found["tokens"])),
            tuple(map(log_probability, found["token_logprobs"])),
            tuple(
                {str(name): log_probability(value) for name, value in top.items()}
                for top in found["top_logprobs"]
            ),
            whole_number(count, MOST_TOKENS),
            text=str(reply["choices"][0].get("text", "")),
        )
        if len({len(read.tokens), len(read.logprobs), len(read.top)}) > 1:
            raise ValueError("other numbers of tokens and of log probabilities")
        return read
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ""
        return ServerReply(error=f"the reply has no log probabilities{why}")
