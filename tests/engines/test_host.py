"""The process that runs parts of an engine on a CPU, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.engines import host


def test_a_run_that_cannot_be_written_is_a_full_disk_and_no_error_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "run", lambda request: "the run")
    request: Any = SimpleNamespace(host=None, file="/dev/full")
    reply = host.answer(request)
    assert (reply.failed, reply.is_full) == ("/dev/full: No space left on device; make room", True)
