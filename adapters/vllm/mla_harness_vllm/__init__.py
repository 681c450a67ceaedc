"""The entry point of group `vllm.general_plugins`. vLLM calls it in every process that it
starts.
"""

from __future__ import annotations

import importlib
import os

from mla_harness import own_names

ROUTING = ("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "mla_harness_topk")


def activate() -> None:
    """Poison this process, record its first NaN, watch its copies, inject a fault or replace the
    rotary op of the CPU build, if the environment asks for it.

    Else it imports nothing. Raises InputError for an invalid setting, or for a fault that does not
    fit this release.
    """
    wanted = (
        "MLA_HARNESS_POISON",
        "MLA_HARNESS_FIRST_NAN",
        "MLA_HARNESS_STREAMS",
        "MLA_HARNESS_FAULT",
        "MLA_HARNESS_CPU_ROTARY",
    )
    if any(map(os.environ.get, wanted)) or os.environ.get(ROUTING[0]) == ROUTING[1]:
        with own_names():
            importlib.import_module("mla_harness_vllm.serve.plugin").activate()
