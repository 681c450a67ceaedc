"""The process that runs parts of an engine on a CPU, without an engine."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.catalog import ENGINES
from harness.run.protocol import reply_to
from mla_harness_adapters import host
from tests.transcripts import Approved

REQUEST: Any = SimpleNamespace(host=SimpleNamespace(engine=ENGINES.get("vllm")), file="/dev/full")


def test_a_run_that_cannot_be_written_is_a_full_disk_and_no_error_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(host, "run", lambda request: "the run")
    reply = reply_to(REQUEST, host.answer)
    assert reply.is_full
    approved(reply.failed)


def test_memory_that_an_engine_cannot_share_is_a_full_disk_too(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    def run(request: Any) -> Any:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(host, "run", run)
    reply = reply_to(REQUEST, host.answer)
    assert reply.is_full
    approved(reply.failed)
