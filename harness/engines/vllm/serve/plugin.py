"""The entry point of group `vllm.general_plugins`. vLLM calls it in every process that it starts.

Without its environment variables (see `settings`) it imports nothing.
"""

from __future__ import annotations

import os

_active = False
_recording = False
_active_copies = False
_routing = False
_fault = ""


def activate() -> None:
    """Inject a fault into this vLLM process, record its first NaN and poison it, as the environment says.

    A second call does nothing. Raises InputError for an invalid setting, or for a fault that does not fit this release.
    """
    global _active, _active_copies, _recording
    # The fault comes first, so that the hooks below wrap the function with the bug.
    _change_vllm()
    where = os.environ.get("MLA_HARNESS_FIRST_NAN", "")
    if where not in ("", "0") and not _recording:
        _recording = True
        from harness.engines.vllm.serve.first_nan import install as record

        record(where)
    seed = os.environ.get("MLA_HARNESS_STREAMS", "")
    if seed and not _active_copies:
        _active_copies = True
        from harness.engines.vllm.serve.copies import install as watch

        watch(int(seed))
    text = os.environ.get("MLA_HARNESS_POISON", "")
    if text and not _active:
        _active = True
        from harness.engines.vllm.serve.hooks import install
        from harness.engines.vllm.serve.settings import ServePoison

        install(ServePoison.parse(text))


def fault() -> str:
    """The fault injected into this process; empty without one."""
    return _fault


def is_routing() -> bool:
    """Whether the harness's strategy for vLLM's routing simulator is registered in this process."""
    return _routing


def _change_vllm() -> None:
    """Inject the fault and register the routing strategy that the environment names."""
    global _fault, _routing
    name = os.environ.get("MLA_HARNESS_FAULT", "")
    if name and not _fault:
        import importlib

        from harness.engines.vllm.faults import PATCHES

        PATCHES.inject(name, importlib.import_module("vllm").__version__)
        _fault = name
    if os.environ.get("VLLM_MOE_ROUTING_SIMULATION_STRATEGY") == "mla_harness_topk" and not _routing:
        from harness.engines.vllm.serve.routing import register

        register()
        _routing = True
