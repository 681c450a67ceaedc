"""How vLLM's own Python runs on a CPU."""

from __future__ import annotations

from pathlib import Path

from harness.engines.host_target import HostTarget, read_host
from harness.engines.vllm.faults import PATCHES
from harness.engines.vllm.tables import ENGINE


class VllmHostTarget(HostTarget):
    """One part of the installed vLLM."""

    host = read_host(ENGINE, PATCHES, Path(__file__).with_name("host.yaml"))
