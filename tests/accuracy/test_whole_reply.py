"""A reply is read to its end within a time and a size, or there is a reason why not."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from harness.accuracy import whole_reply
from harness.accuracy.whole_reply import BadReply, fetched, object_of
from tests.waiting import HANG_SECONDS


@pytest.mark.parametrize("kind", ["slow loris", "endless", "bad gzip"])
def test_a_reply_without_an_end_ends(
    start_server: Callable[..., str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_reply, "MOST_BYTES", 2**20)
    url = start_server("hostile_server.py", kind, "models")
    with httpx.Client(timeout=HANG_SECONDS) as client, pytest.raises(BadReply):
        fetched(client, "GET", f"{url}/models", seconds=0.5)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "null", "[]", "7", "", "\x00"])
def test_only_an_object_is_an_object(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        object_of(text)
