"""The entry point of group `vllm.general_plugins`: vLLM calls it in every process it starts.

Off (MLA_HARNESS_POISON, MLA_HARNESS_FIRST_NAN and MLA_HARNESS_FAULT unset) it costs four looks at the environment and
imports nothing.
"""

from __future__ import annotations

import os

_active = False
_recording = False
_routing = False
_fault = ""


def activate() -> None:
    """Put a bug back in this vLLM process, record its first NaN, poison it, as the environment asks.

    Called again, it does nothing. Raises InputError for a setting that is none, or a bug that does not fit this vLLM.
    """
    global _active, _recording
    # First: what is wrapped below is then the function with the bug.
    _change_vllm()
    where = os.environ.get("MLA_HARNESS_FIRST_NAN", "")
    if where not in ("", "0") and not _recording:
        _recording = True
        from harness.engines.vllm.serve.first_nan import install as record

        record(where)
    text = os.environ.get("MLA_HARNESS_POISON", "")
    if text and not _active:
        _active = True
        from harness.engines.vllm.serve.hooks import install
        from harness.engines.vllm.serve.settings import ServePoison

        install(ServePoison.parse(text))


def fault() -> str:
    """The bug that was put back in this process; empty when none was."""
    return _fault


def is_routing() -> bool:
    """Whether this process knows the harness's strategy for vLLM's routing simulator."""
    return _routing


def _change_vllm() -> None:
    """Inject the fault and register the routing strategy that the environment names."""
    global _fault, _routing
    name = os.environ.get("MLA_HARNESS_FAULT", "")
    if name and not _fault:
        import importlib

        from harness.engines.vllm.faults import inject

        inject(name, importlib.import_module("vllm").__version__)
        _fault = name
    if os.environ.get("VLLM_MOE_ROUTING_SIMULATION_STRATEGY") == "mla_harness_topk" and not _routing:
        from harness.engines.vllm.serve.routing import register

        register()
        _routing = True
