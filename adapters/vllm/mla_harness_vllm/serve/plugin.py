"""The entry point of group `vllm.general_plugins`. vLLM calls it in every process that it starts.

Without its environment variables (see `settings`) it imports nothing.
"""

from __future__ import annotations

import importlib
import os

INSTALLERS = {
    # The fault comes first, so that the hooks below wrap the function with the bug.
    "MLA_HARNESS_FAULT": ("faults", "inject"),
    "MLA_HARNESS_CPU_ROTARY": ("cpu.rotary", "install"),
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": ("serve.routing", "register"),
    "MLA_HARNESS_FIRST_NAN": ("serve.first_nan", "install"),
    "MLA_HARNESS_STREAMS": ("serve.copies", "install"),
    "MLA_HARNESS_POISON": ("serve.hooks", "install"),
}
"""Variable -> the module below `mla_harness_vllm`, and its function that takes the value."""
INSTALLED: dict[str, str] = {}
"""Variable -> value, of what is installed in this process."""


def activate() -> None:
    """Inject a fault into this vLLM process, record its first NaN and poison it, as the environment
    says.

    A second call does nothing. Raises InputError for an invalid setting, or for a fault that does
    not fit this release.
    """
    for variable, (module, function) in INSTALLERS.items():
        value = os.environ.get(variable, "")
        is_off = not value or (variable, value) == ("MLA_HARNESS_FIRST_NAN", "0")
        if not is_off and variable not in INSTALLED:
            getattr(importlib.import_module(f"mla_harness_vllm.{module}"), function)(value)
            INSTALLED[variable] = value
