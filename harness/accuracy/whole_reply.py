"""A request over HTTP and its whole reply, from a server that may be hostile.

Each request has a connection of its own. A reply that is too long, too slow or no HTTP is refused.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from harness.core.extras import httpx

MOST_BYTES = 2**26
"""The longest reply that is read, unpacked."""


class BadReply(Exception):
    """A reply that is too long, too slow, or no HTTP. Its text is the reason."""


def connections(most: int | None = None) -> httpx.Limits:
    """At most so many connections, each for one request.

    vLLM, SGLang and llama.cpp close a connection that was idle for five seconds. A request that is
    sent in that moment gets no answer, and would be charged to the server.
    """
    return httpx.Limits(max_connections=most, max_keepalive_connections=0)


def fetched(
    client: httpx.Client, method: str, url: str, *, seconds: float, **more: Any
) -> httpx.Response:
    """The whole reply. Raises BadReply, and httpx.TransportError if there is none."""
    # httpx limits the wait for each part, and not for the whole.
    ends = time.monotonic() + seconds
    content = bytearray()
    try:
        with client.stream(method, url, **more) as response:
            for part in response.iter_bytes():
                content += part
                _check(len(content), time.monotonic() > ends)
    except httpx.DecodingError:
        raise BadReply("the reply cannot be unpacked") from None
    return _read(response, content)


async def fetched_async(
    client: httpx.AsyncClient, method: str, url: str, *, seconds: float, **more: Any
) -> httpx.Response:
    """As :func:`fetched`, for a client that has other requests in flight."""
    content = bytearray()
    try:
        async with asyncio.timeout(seconds), client.stream(method, url, **more) as response:
            async for part in response.aiter_bytes():
                content += part
                _check(len(content), False)
    except httpx.DecodingError:
        raise BadReply("the reply cannot be unpacked") from None
    return _read(response, content)


async def lines_of(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of a stream. Raises BadReply for a line without an end."""
    kept = b""
    size = 0
    try:
        async for part in response.aiter_bytes():
            size += len(part)
            *whole, kept = (kept + part).split(b"\n")
            _check(size, False)
            for line in whole:
                yield line.decode(errors="replace").rstrip("\r")
    except httpx.DecodingError:
        raise BadReply("the reply cannot be unpacked") from None
    yield kept.decode(errors="replace")


def object_of(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a reply. Raises ValueError for anything else."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _check(size: int, is_late: bool) -> None:
    if size > MOST_BYTES:
        raise BadReply(f"the reply is longer than {MOST_BYTES >> 20} MiB")
    if is_late:
        raise BadReply("the reply does not end in time")


def _read(response: httpx.Response, content: bytearray) -> httpx.Response:
    # The content is unpacked already. With its header httpx would unpack it again.
    kept = {
        name: value
        for name, value in response.headers.items()
        if name in ("retry-after", "content-type")
    }
    return httpx.Response(
        response.status_code, headers=kept, content=bytes(content), request=response.request
    )
