"""An OpenAI-compatible server as a backend: many questions in flight, retries with backoff.

Retried are a dropped or refused connection, a timeout, HTTP 408, 429 and 5xx, a reply that is no
completion, and an empty answer. After the last attempt the question is unanswered, with the reason.
A server that is gone ends the run with an error: its questions do not count as wrong, and
`--resume` asks them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from harness.accuracy.acceptance import Drafts, drafts_in
from harness.accuracy.backends import (
    CANARY_NOTE,
    Answer,
    Identity,
    OnAnswer,
    cut_at_stop,
    has_invalid_text,
)
from harness.accuracy.cache_hits import Hits, hits_in
from harness.accuracy.whole_reply import (
    BadReply,
    connections,
    fetched,
    fetched_async,
    object_of,
)
from harness.core.errors import HarnessError, InputError
from harness.core.extras import httpx

RETRIED_STATUS = (408, 429)
REFUSED_KEY = (401, 403)
HOPELESS_STATUS = (*REFUSED_KEY, 404, 405)
MOST_OF_A_REFUSAL = 160
"""The characters of a refusal that are kept of what a server says."""
KEY_VARIABLE = "OPENAI_API_KEY"

MOST_LOG_PROBABILITY = 0.01

QuestionT = TypeVar("QuestionT")
ResultT = TypeVar("ResultT")


class ServerGone(HarnessError):
    """The server is gone. The questions in flight were not counted."""


class Unanswered(Exception):
    """A failed attempt that may be repeated.

    Its text is the reason; the server wants a pause of `after` seconds.
    """

    def __init__(self, reason: str, after: float = 0.0, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.after = after
        self.unreachable = unreachable


class _Stopped(Exception):
    """The caller stops the questions, by Ctrl-C for example."""

    def __init__(self, why: BaseException) -> None:
        super().__init__()
        self.why = why


class ServerBackend:
    """Asks `{url}/completions` with temperature 0, `concurrency` questions at a time."""

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 32,
        served_model: str | None = None,
        timeout: float = 120.0,
        max_attempts: int = 5,
        backoff: float = 0.5,
        longest_wait: float = 30.0,
        logprobs: bool = False,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url}: the address must start with http:// or https://")
        if concurrency < 1 or max_attempts < 1:
            raise InputError("--concurrency and the number of attempts must be at least 1")
        self._url = url.rstrip("/")
        self._concurrency = concurrency
        self._timeout = timeout
        self._max_attempts = max_attempts
        self._backoff = backoff
        self._longest_wait = longest_wait
        self._wants_logprobs = logprobs
        self._num_replies = 0
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._served_model = served_model or self._only_model()

    @property
    def identity(self) -> Identity:
        """The served name stands for the weights, which a server does not show."""
        name = self._served_model
        note = CANARY_NOTE if "canary" in name.rpartition("/")[2] else ""
        return Identity(f"server:{name}", "server", "as served", f"served:{name}", note=note)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        stop: Sequence[str],
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Answers in the order of `prompts`.

        Raises InputError for a wrong address, ServerGone for a dead server.
        """

        async def ask(client: httpx.AsyncClient, prompt: str) -> Answer:
            # OpenAI takes four at most. The answer is cut at all of them when it is here.
            body = self._body(prompt, max_tokens) | {"stop": list(stop)[:4] or None}
            if self._wants_logprobs:
                # 1, as a server may take 0 for none.
                body["logprobs"] = 1
            return await self._attempts(client, body, stop)

        try:
            return asyncio.run(self._in_flight(ask, prompts, on_answer))
        except _Stopped as stopped:
            raise stopped.why from None

    def close(self) -> None:
        """Nothing is held between calls."""

    def drafts(self) -> Drafts | None:
        """The server's counts of drafts, from /metrics beside /v1; None if it has no such
        counters.
        """
        return drafts_in(self._counters())

    def hits(self) -> Hits | None:
        """The server's counts of prompt tokens and of hits in its prefix cache; None if it has no
        such counters.
        """
        return hits_in(self._counters())

    def _counters(self) -> str:
        """The text of /metrics; empty if the server has none."""
        where = f"{self._url.removesuffix('/v1')}/metrics"
        seconds = self._timeout
        try:
            with httpx.Client(headers=self._headers, timeout=seconds) as client:
                return fetched(client, "GET", where, seconds=seconds).text
        except (httpx.TransportError, BadReply):
            return ""

    async def _in_flight(
        self,
        ask: Callable[[httpx.AsyncClient, QuestionT], Awaitable[ResultT]],
        questions: Sequence[QuestionT],
        on_answer: Callable[[int, ResultT], None] | None = None,
        at_once: int | None = None,
    ) -> list[ResultT]:
        num = at_once or self._concurrency
        gate = asyncio.Semaphore(num)
        async with httpx.AsyncClient(
            timeout=self._timeout, headers=self._headers, limits=connections(num)
        ) as client:

            async def one(position: int, question: QuestionT) -> ResultT:
                async with gate:
                    result = await ask(client, question)
                if on_answer:
                    try:
                        on_answer(position, result)
                    except BaseException as why:
                        # A KeyboardInterrupt would leave the loop before the other tasks end. Their
                        # exceptions would be reported later, from anywhere in the process.
                        raise _Stopped(why) from None
                return result

            tasks = [asyncio.create_task(one(i, question)) for i, question in enumerate(questions)]
            try:
                return await asyncio.gather(*tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise

    def _body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._served_model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
        }

    async def _attempts(
        self, client: httpx.AsyncClient, body: dict[str, Any], stop: Sequence[str]
    ) -> Answer:
        failures: list[Unanswered] = []
        num_replies = self._num_replies
        for attempt in range(1, self._max_attempts + 1):
            if failures:
                await asyncio.sleep(self._pause(len(failures), failures[-1].after))
            try:
                answer = answer_in(await self._post(client, body), stop, body["max_tokens"])
            except Unanswered as failed:
                if not failures:
                    num_replies = self._num_replies
                failures.append(failed)
                continue
            return replace(answer, num_attempts=attempt)
        # The first failure of a question in flight is a lost connection. The server is gone if no
        # question got a reply since then.
        if self._num_replies == num_replies and failures[-1].unreachable:
            raise ServerGone(f"{self._url}: no server any more; start it again")
        attempts = f"{self._max_attempts} attempt{'s' if self._max_attempts > 1 else ''}"
        return Answer(
            "", "error", unanswered=f"{failures[-1]} ({attempts})", num_attempts=self._max_attempts
        )

    def _pause(self, attempt: int, after: float) -> float:
        seconds = min(max(after, self._backoff * 2.0 ** (attempt - 1)), self._longest_wait)
        # Half of the pause is random, so that requests that failed together do not return together.
        return seconds * (0.5 + random.random() / 2)

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
        try:
            where = f"{self._url}/completions"
            response = await fetched_async(client, "POST", where, seconds=self._timeout, json=body)
        except (httpx.TimeoutException, TimeoutError):
            raise Unanswered("no answer in time") from None
        except BadReply as error:
            raise Unanswered(str(error)) from None
        except httpx.TransportError as error:
            refused = isinstance(error, httpx.ConnectError)
            raise Unanswered(
                f"connection lost: {type(error).__name__}", unreachable=refused
            ) from None
        self._num_replies += 1
        if response.status_code in RETRIED_STATUS or response.status_code >= 500:
            raise Unanswered(
                f"HTTP {response.status_code}", _seconds(response.headers.get("retry-after"))
            )
        if response.status_code in HOPELESS_STATUS:
            raise self._refusal(response)
        if response.status_code != 200:
            # Only this question fails, for example a prompt beyond the model's length. A retry
            # would fail too.
            return {"refused": f"HTTP {response.status_code}: {_words_of(response)}"}
        try:
            return object_of(response.content)
        except ValueError:
            raise Unanswered("the reply is no JSON object") from None

    def _refusal(self, response: httpx.Response) -> InputError:
        """The error for a server that refuses all questions: it names the key, the address or the
        model.
        """
        where = f"{response.request.url}: HTTP {response.status_code}"
        status = response.status_code
        if status in REFUSED_KEY:
            what = (
                "refuses the key in the environment variable"
                if self._headers
                else "wants a key; give it in"
            )
            return InputError(f"{where}: the server {what} {KEY_VARIABLE}")
        hello = {
            "model": self._served_model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
        }
        with (
            contextlib.suppress(httpx.TransportError, BadReply),
            httpx.Client(headers=self._headers, timeout=self._timeout) as client,
        ):
            chat = fetched(
                client, "POST", f"{self._url}/chat/completions", json=hello, seconds=self._timeout
            )
            if chat.status_code not in HOPELESS_STATUS:
                return InputError(f"{where}: this server has chat only; /v1/completions is needed")
        return InputError(f"{where}: check the address, which ends in /v1, and --served-model")

    def _only_model(self) -> str:
        """The name of the served model, which a request can carry as UTF-8.

        Raises InputError without a server.
        """
        seconds = self._timeout
        try:
            with httpx.Client(headers=self._headers, timeout=seconds) as client:
                response = fetched(client, "GET", f"{self._url}/models", seconds=seconds)
            if response.status_code in REFUSED_KEY:
                raise self._refusal(response)
            response.raise_for_status()
            listed = object_of(response.content)["data"]
            # An adapter names its base model as its parent.
            names = [
                str(entry["id"]).encode().decode() for entry in listed if not entry.get("parent")
            ]
        except httpx.TransportError as error:
            raise InputError(
                f"{self._url}: no server answers there ({type(error).__name__})"
            ) from None
        except BadReply as error:
            raise InputError(f"{self._url}/models: {error}; name it with --served-model") from None
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{self._url}/models lists no model; name it with --served-model"
            ) from None
        if len(names) != 1:
            raise InputError(
                f"{self._url}: it serves {len(names)} models; name one with --served-model"
            )
        return names[0]


def whole_number(value: Any, most: int) -> int | None:
    """A count that a server sends; None for what is none: a text, true, a negative number, or more
    than `most`.
    """
    return value if type(value) is int and 0 <= value <= most else None


def log_probability(value: Any) -> float:
    """A log probability that a server sends.

    Raises ValueError for what is none: a text, true, or a number above 0.

    NaN is one, as a server that computes it sends it, and minus infinity is the logarithm of 0.
    """
    if type(value) is int and value.bit_length() < 64:
        value = float(value)
    # Rounding can leave a certain token a little above 0.
    if type(value) is not float or value > MOST_LOG_PROBABILITY:
        raise ValueError(f"{str(value)[:20]} is no log probability")
    return value


def answer_in(reply: dict[str, Any], stop: Sequence[str], max_tokens: int) -> Answer:
    if "refused" in reply:
        return Answer("", "error", unanswered=str(reply["refused"]))
    try:
        choice = reply["choices"][0]
        text = choice["text"]
        finish = str(choice.get("finish_reason") or "stop")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Unanswered("the reply is no completion") from None
    if not isinstance(text, str) or not text.strip():
        raise Unanswered("empty answer")
    # OpenAI accepts only four stop strings, and some servers keep the stop string in the text.
    text, found = cut_at_stop(text, stop)
    usage = reply.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    # A count that cannot be is as good as none.
    num_tokens = whole_number(count, max_tokens) or 0
    tokens, logprobs = _tokens(choice.get("logprobs"))
    return Answer(
        text,
        "stop" if found else finish,
        num_tokens,
        has_invalid_text(text, finish),
        tokens=tokens,
        logprobs=logprobs,
    )


def _tokens(found: Any) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """The tokens of an answer and their log probabilities; none of a server that sends none.

    What is no log probability is None: the answer itself is judged by its text.
    """
    if not isinstance(found, dict):
        return (), ()
    tokens, values = found.get("tokens"), found.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        return (), ()
    return tuple(map(str, tokens)), tuple(map(_finite_logprob, values))


def _finite_logprob(value: Any) -> float | None:
    try:
        found = log_probability(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _words_of(response: httpx.Response) -> str:
    """The first of what a server says of an error: its message, if the reply has one."""
    try:
        error = object_of(response.content).get("error")
    except ValueError:
        error = None
    message = error.get("message") if isinstance(error, dict) else None
    return (message if isinstance(message, str) else response.text)[:MOST_OF_A_REFUSAL]


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
