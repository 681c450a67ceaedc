"""The entry point of group `vllm.general_plugins`: vLLM calls it in every process it starts.

Off (MLA_HARNESS_POISON and MLA_HARNESS_FIRST_NAN unset) it costs two looks at the environment and imports nothing.
"""

from __future__ import annotations

import os

_active = False
_recording = False


def activate() -> None:
    """Poison this vLLM process, or record its first NaN, as the environment asks. Called again, it does nothing."""
    global _active, _recording
    where = os.environ.get("MLA_HARNESS_FIRST_NAN", "")
    if where not in ("", "0") and not _recording:
        _recording = True
        from harness.serving.first_nan import install as record

        record(where)
    text = os.environ.get("MLA_HARNESS_POISON", "")
    if not text or _active:
        return
    _active = True
    from harness.serving.hooks import install
    from harness.serving.settings import ServePoison

    install(ServePoison.parse(text))
