"""The entry point of group `vllm.general_plugins`: vLLM calls it in every process it starts.

Off (MLA_HARNESS_POISON unset) it costs one look at the environment and imports nothing.
"""

from __future__ import annotations

import os

_active = False


def activate() -> None:
    """Poison this vLLM process if the environment asks for it. Called again, it does nothing."""
    global _active
    text = os.environ.get("MLA_HARNESS_POISON", "")
    if not text or _active:
        return
    _active = True
    from harness.serving.hooks import install
    from harness.serving.settings import ServePoison

    install(ServePoison.parse(text))
