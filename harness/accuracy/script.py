"""A script of requests to a running server: prompts of exact lengths, the order of requests,
changes of the server.

Lengths are in tokens, or in pages of the server's cache: `3p` are three pages, `2p+1` one token
more than two.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from harness.core.files import read_rows
from harness.core.params import Record

Event = Literal["hits", "evicted", "preemptions", "aborted", "lengths", "slept", "changed"]
Deed = Literal["reset_prefix_cache", "sleep", "wake_up", "reload"]
SchemaName = Literal["colour", "number", "flag"]
SCHEMAS: dict[SchemaName, dict[str, Any]] = read_rows(Path(__file__).with_suffix(".yaml"))
"""JSON schemas of answers, each with all values that obey it. No value obeys two."""

FIRST_TOKEN = 16
LAST_TOKEN = 250
"""Token ids of prompts: none is special, and every vocabulary has them."""
MOST_REQUESTS = 512
"""The most requests of a step that fills the pool. A larger pool cannot be filled."""
ENDLESS = 1 << 40
"""The number of pages of a cache whose size no one knows."""
# A sign needs pages before it, and a plain number has none: `2p+1`, `3p`, `17`.
_LENGTH = re.compile(r"(?:(\d+)p)?(?:(?<=p)([+-]\d+)|(?<!p)(\d+))?")


def length_of(text: str, page: int) -> int:
    """The number of tokens that `3p`, `2p+1` or `17` means for pages of `page` tokens.

    Raises ValueError.
    """
    found = _LENGTH.fullmatch(text)
    if not found or not text:
        raise ValueError(f"{text!r} is no length: write 17, 3p, 2p+1 or 2p-1")
    pages, more, alone = found.groups()
    return int(pages or 0) * page + int(more or 0) + int(alone or 0)


def _length(text: str) -> str:
    if length_of(text, 16) < 1:
        raise ValueError(f"{text!r} is less than one token")
    return text


def _prompt(text: str) -> str:
    for piece in text.split():
        name, colon, length = piece.partition(":")
        if not colon or not re.fullmatch(r"[a-z]\w*#?", name):
            raise ValueError(
                f"{piece!r} is no piece of a prompt: write a name and a length, such as a:2p+1"
            )
        _length(length)
    if not text.split():
        raise ValueError("a prompt has at least one piece, such as a:2p+1")
    return text


Length = Annotated[str, AfterValidator(_length)]
Prompt = Annotated[str, AfterValidator(_prompt)]


class ScriptStep(Record):
    """Requests to a server, or one change of its state.

    A prompt is made of pieces: `a:2p s:1p` is two pages of the sequence `a`, then one page of `s`.
    """

    name: str = ""
    ask: tuple[Prompt, ...] = Field(default=(), description="prompts, asked one after the other")
    together: bool = Field(default=False, description="all prompts at once")
    fill: float | None = Field(
        default=None,
        gt=0,
        le=8,
        description="repeat the prompts, # in a name counts, until they take this many pools",
    )
    max_tokens: Length = "8"
    abort_after: tuple[int | None, ...] = Field(
        default=(),
        description="close the streams after this many tokens, in turn; null: read to the end",
    )
    arrive_ms: tuple[int, ...] = Field(
        default=(),
        description="together: milliseconds from the start of the step to each request, in turn",
    )
    models: tuple[str | None, ...] = Field(
        default=(), description="served models, adapters for one, in turn"
    )
    schemas: tuple[SchemaName | None, ...] = Field(
        default=(), description="JSON schemas of the answers, in turn"
    )
    weights: Literal["own", "other"] = Field(
        default="own", description="the weights of `reload` and of the answers"
    )
    do: Deed | None = None
    level: Literal[1, 2] = 1
    proves: tuple[Event, ...] = Field(default=(), description="what this step must make happen")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.ask) == (self.do is not None):
            raise ValueError("a step has either `ask` or `do`")
        if any(
            (event == "slept") != (self.do == "sleep") or self.do not in ("sleep", None)
            for event in self.proves
        ):
            raise ValueError(
                "`do: sleep` can prove `slept`, other changes nothing, requests all else"
            )
        return self


class Script(Record):
    """A script: what a server is asked, in order."""

    name: str
    summary: str
    why: str = ""
    refs: tuple[str, ...] = ()
    steps: tuple[ScriptStep, ...]


@dataclass(frozen=True, slots=True)
class PagePool:
    """The pages of a server's cache: tokens of a page, and number of pages.

    A server that does not say the number is taken for endless, which no step fills.
    """

    page: int
    num_pages: int = ENDLESS


@dataclass(frozen=True)
class StepRequest:
    """One request of a step. `label` names it, such as `a:2p s:1p`."""

    label: str
    prompt: tuple[int, ...]
    max_tokens: int
    weights: str
    abort_after: int | None = None
    delay: float = 0.0
    """Seconds after the start of its step."""
    model: str | None = None
    """Another served model than the one that is checked."""
    schema: SchemaName | None = None

    @property
    def more(self) -> dict[str, Any]:
        """What the request says beside prompt and budget.

        An answer with a schema ends where the schema does.
        """
        body: dict[str, Any] = {"model": self.model} if self.model else {}
        if self.schema:
            schema = {"name": self.schema, "schema": SCHEMAS[self.schema]["schema"]}
            body |= {
                "ignore_eos": False,
                "response_format": {"type": "json_schema", "json_schema": schema},
            }
        return body

    @property
    def values(self) -> list[str]:
        """All answers that obey the schema, without spaces; none without a schema."""
        return _values_of(self.schema) if self.schema else []

    def obeyed_by(self, text: str, num_tokens: int) -> bool:
        """Whether an answer obeys the schema; an answer that was cut, whether it can be the
        beginning of one.
        """
        packed = "".join(text.split())
        is_cut = self.abort_after is not None or num_tokens >= self.max_tokens
        return not self.schema or any(
            v == packed or (is_cut and v.startswith(packed)) for v in self.values
        )

    def text_before(self, text: str, num_tokens: int) -> str:
        """What stands before an answer that obeys the schema; nothing if no part of it does.

        An answer that obeys another schema, of a neighbour for one, is no text before an answer.
        """
        packed = "".join(text.split())
        if any(value.startswith(packed) for schema in SCHEMAS for value in _values_of(schema)):
            return ""
        # A token has a character at least, but for the one that ends the answer. So a shorter rest
        # is not the whole answer.
        starts = range(1, min(len(text), len(text) - num_tokens + 2))
        obeys = (text[:start] for start in starts if self.obeyed_by(text[start:], num_tokens))
        return next(obeys, "")

    @property
    def alone(self) -> StepRequest:
        """The request whose answer this one's must have: to its end, and no longer than the stream
        is read.
        """
        # A request cannot ask for 0 tokens.
        budget = (
            self.max_tokens
            if self.abort_after is None
            else min(self.max_tokens, max(1, self.abort_after))
        )
        return StepRequest(
            self.label, self.prompt, budget, self.weights, model=self.model, schema=self.schema
        )


def _values_of(schema: SchemaName) -> list[str]:
    """All answers that obey a schema, without spaces."""
    return [json.dumps(value, separators=(",", ":")) for value in SCHEMAS[schema]["values"]]


def requests_of(script: Script, step: ScriptStep, pool: PagePool) -> list[StepRequest]:
    """The requests of a step. Raises ValueError for a pool that a step cannot fill."""
    prompts = list(step.ask)
    if step.fill is not None:
        if pool.num_pages == ENDLESS:
            raise ValueError(
                "the server does not say how many tokens its cache holds, and this script fills it"
            )
        lengths = [[piece.partition(":")[2] for piece in prompt.split()] for prompt in prompts]
        pages = sum(
            math.ceil(sum(length_of(one, pool.page) for one in pieces) / pool.page)
            for pieces in lengths
        )
        times = math.ceil(step.fill * pool.num_pages / pages)
        if times * len(prompts) > MOST_REQUESTS:
            raise ValueError(
                f"the pool of {pool.num_pages} pages is too large to fill; start the server with at"
                f" most {int(MOST_REQUESTS / len(prompts) * pages / step.fill)}"
            )
        prompts = [
            prompt.replace("#", str(number)) for number in range(times) for prompt in prompts
        ]
    return [
        StepRequest(
            label=prompt,
            prompt=tuple(_tokens(script.name, prompt, pool.page)),
            max_tokens=length_of(step.max_tokens, pool.page),
            weights=step.weights,
            abort_after=(
                step.abort_after[number % len(step.abort_after)] if step.abort_after else None
            ),
            delay=(
                step.arrive_ms[number % len(step.arrive_ms)] / 1000
                if step.arrive_ms and step.together
                else 0.0
            ),
            model=step.models[number % len(step.models)] if step.models else None,
            schema=step.schemas[number % len(step.schemas)] if step.schemas else None,
        )
        for number, prompt in enumerate(prompts)
    ]


def _tokens(script: str, prompt: str, page: int) -> Iterator[int]:
    """The first tokens of each piece's sequence, which its name alone determines."""
    for piece in prompt.split():
        name, _, length = piece.partition(":")
        # Not `hash`, which gives a text another number in each process.
        draw = random.Random(hashlib.sha256(f"{script}/{name}".encode()).digest())
        yield from (draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length_of(length, page)))
