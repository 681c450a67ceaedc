"""Imported by each worker process of a served case, through vLLM's option `worker_extension_cls`.

vLLM calls only entry points of installed distributions, and the harness may just be on the path.
This import activates the plug-in in any case, in forked and in spawned workers.
"""

from __future__ import annotations

import multiprocessing

from harness.api import die_with_parent
from mla_harness_vllm.serve.plugin import activate


class Extension:
    """Adds nothing to vLLM's worker class."""


if multiprocessing.parent_process() is not None:
    # A rank that waits in a collective would outlive the serving process.
    die_with_parent()
activate()
