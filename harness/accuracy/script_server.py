"""A server as a script sees it: answers token by token, streams that are closed early, metrics, and
its state.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.accuracy.script import FIRST_TOKEN, PagePool, StepRequest
from harness.accuracy.server_backend import ServerBackend, Unanswered, whole_number
from harness.accuracy.server_dialects import LLAMACPP, Dialect, dialect_of, slots_of
from harness.accuracy.server_replies import (
    Scores,
    ServerReply,
    read_reply,
    score_of_next,
    scores_of_prompt,
)
from harness.accuracy.whole_reply import BadReply, connections, fetched, lines_of, object_of
from harness.core.errors import InputError, Refused
from harness.core.extras import httpx

IDLE_SECONDS = 600.0
"""How long a server may take to be idle after the last answer."""
MOST_TOGETHER = 1024
NUM_BEST = 5
"""The tokens at each place whose log probabilities are asked for: as many as every server gives."""
MOST_SCORED = 4
"""The tokens of an answer that are checked by a prefill each, where a server scores no prompt."""
DEV_MODE = "vLLM has it with VLLM_SERVER_DEV_MODE=1"
_COUNTED = (
    "prefix_cache_hits",
    "prefix_cache_queries",
    "num_preemptions",
    "generation_tokens",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


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

    The answers of one object share a cache. `page_size` are the tokens of a page for a server that
    does not say it.
    """

    def __init__(
        self,
        url: str,
        *,
        served_model: str | None = None,
        timeout: float = 120.0,
        page_size: int | None = None,
    ) -> None:
        super().__init__(url, concurrency=MOST_TOGETHER, served_model=served_model, timeout=timeout)
        self._page_size = page_size
        self._root = self._url.removesuffix("/v1")
        # No page of an earlier script, or of another client, is hit: hits that are counted are this
        # script's.
        self._salt = uuid.uuid4().hex
        self._client = httpx.Client(timeout=timeout, headers=self._headers, limits=connections())

    @cached_property
    def _dialect(self) -> Dialect:
        return dialect_of(self._counters())

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
            alone = self._dialect.uncached() | request.more
            reply = await self._reply(
                client, self._request(request.prompt, request.max_tokens) | alone
            )
            if reply.error or request.schema or (answer := reply.ids) is None:
                return reply, None
            score = self._scores if self._dialect.scores_prompts else self._scores_by_token
            try:
                return reply, await score(client, request.prompt, answer, alone)
            except (Unanswered, KeyError, IndexError, TypeError, ValueError, AttributeError):
                return reply, None

        return asyncio.run(self._in_flight(one, requests, at_once=1))

    async def _scores(
        self,
        client: httpx.AsyncClient,
        prompt: Sequence[int],
        answer: list[int],
        alone: dict[str, Any],
    ) -> Scores:
        """The scores of an answer by one prefill of prompt and answer."""
        body = self._request((*prompt, *answer), 1) | alone | {"prompt_logprobs": 1}
        rows = (await self._post(client, body))["choices"][0]["prompt_logprobs"]
        return scores_of_prompt(answer, rows[len(prompt) :])

    async def _scores_by_token(
        self,
        client: httpx.AsyncClient,
        prompt: Sequence[int],
        answer: list[int],
        alone: dict[str, Any],
    ) -> Scores:
        """As `_scores`, by a prefill for each of a few tokens, which computes the next one.

        Of a long answer some tokens are checked, among them the first and the last; the others
        count as preferred.
        """
        last = len(answer) - 1
        checked = {last * part // (MOST_SCORED - 1) for part in range(MOST_SCORED)}
        scores = [(0.0, token) for token in answer]
        for place in sorted(checked):
            body = self._request((*prompt, *answer[:place]), 1) | alone
            scores[place] = score_of_next(answer[place], await self._reply(client, body))
        return scores

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
        entry = self._entry()
        # llama.cpp says the length of a slot.
        meta = entry.get("meta")
        given = entry.get("max_model_len", meta.get("n_ctx") if isinstance(meta, dict) else None)
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
        dialect = dialect_of(text)
        return dialect.counts(text), self._cache(dialect.pool(text))

    def _cache(self, said: PagePool | None) -> PagePool | None:
        """The server's cache, if it said it, else what `page_size` makes of it.

        Raises Refused if its pages are not those of `page_size`.
        """
        if said is None:
            return self._given_pages
        if self._page_size not in (None, said.page):
            raise Refused(
                f"the server's pages have {said.page} tokens, not {self._page_size}; leave out"
                " --page-size"
            )
        return said

    @cached_property
    def _given_pages(self) -> PagePool | None:
        """The cache of a server that does not say it: pages of `page_size`, as many as its slots
        hold if it says these.
        """
        if self._page_size is None:
            return None
        if self._dialect is LLAMACPP and (tokens := slots_of(self._call("GET", "/props"))):
            return PagePool(self._page_size, max(1, tokens // self._page_size))
        return PagePool(self._page_size)

    def _request(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        more = {
            # To the last token of the budget: fewer tokens mean that the request was aborted.
            "ignore_eos": True,
            "logprobs": NUM_BEST,
            # Two tokens can have one text.
            "return_tokens_as_token_ids": True,
        }
        more |= self._dialect.shared(self._salt)
        return self._body("", max_tokens) | more | {"prompt": list(prompt)}

    async def _reply(self, client: httpx.AsyncClient, body: dict[str, Any]) -> ServerReply:
        try:
            return read_reply(await self._post(client, body))
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
                        part = read_reply(object_of(line[6:]))
                        if part.error:
                            return part
                        got += part
        except (httpx.TimeoutException, TimeoutError):
            return ServerReply(error="the stream does not end in time")
        except httpx.TransportError as error:
            return ServerReply(error=f"connection lost: {type(error).__name__}")
        except (BadReply, ValueError) as error:
            return ServerReply(error=f"the stream is no completion: {error}")
        return got
