"""How vLLM's own Python runs on a CPU."""

from __future__ import annotations

from harness.engines.host_target import Host, HostTarget
from harness.engines.vllm.faults import PATCHES
from harness.engines.vllm.tables import ENGINE


class VllmHostTarget(HostTarget):
    """One part of the installed vLLM."""

    host = Host(
        ENGINE,
        parts="harness.engines.vllm.host",
        install="pip install --no-deps vllm==0.33.0",
        needed=("triton", "transformers", "msgspec", "cbor2", "xgrammar", "regex", "zmq"),
        environ={"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        patches=PATCHES,
    )
