"""How SGLang's own Python runs on a CPU."""

from __future__ import annotations

from pathlib import Path

from harness.engines.host_target import HostTarget, read_host
from harness.engines.sglang.faults import PATCHES
from harness.engines.sglang.tables import ENGINE


class SglangHostTarget(HostTarget):
    """One part of the installed SGLang."""

    host = read_host(ENGINE, PATCHES, Path(__file__).with_name("host.yaml"))
