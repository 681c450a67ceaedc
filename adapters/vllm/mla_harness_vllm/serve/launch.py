"""Runs a module as a process that dies with its parent.

`python -m mla_harness_vllm.serve.launch PARENT MODULE [WORD]...`: PARENT is the process id of the
parent, the words are the arguments of the module.
"""

from __future__ import annotations

import runpy
import sys

from harness.api import die_with_parent

if __name__ == "__main__":
    parent = int(sys.argv[1])
    module = sys.argv[2]
    del sys.argv[1:3]
    die_with_parent(parent)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
