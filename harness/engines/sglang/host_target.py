"""How SGLang's own Python runs on a CPU."""

from __future__ import annotations

from harness.engines.host_target import Host, HostTarget
from harness.engines.sglang.faults import PATCHES
from harness.engines.sglang.tables import ENGINE


class SglangHostTarget(HostTarget):
    """One part of the installed SGLang."""

    host = Host(
        ENGINE,
        parts="harness.engines.sglang.host",
        install="pip install --no-deps sglang==0.5.23",
        needed=(
            "triton",
            "dill",
            "einops",
            "gguf",
            "msgspec",
            "openai",
            "orjson",
            "partial_json_parser",
            "psutil",
            "pybase64",
            "sniffio",
            "starlette",
            "zmq",
        ),
        environ={},
        patches=PATCHES,
        prepare="harness.engines.sglang.host.stand_ins:install",
    )
