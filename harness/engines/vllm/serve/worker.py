"""What each worker process of a served case imports before its worker is made: vLLM's option `worker_extension_cls`.

vLLM calls entry points of installed distributions alone, and finds none where the harness was only put on the path.
This import does the same whatever is installed, in forked and spawned workers alike.
"""

from __future__ import annotations

import multiprocessing

from harness.engines.vllm.serve.plugin import activate
from harness.run.protocol import die_with_parent


class Extension:
    """Adds nothing to vLLM's worker class: who needs something of a worker sends it a function."""


if multiprocessing.parent_process() is not None:
    # A rank that waits for another one in a collective would outlive the process that serves.
    die_with_parent()
activate()
