"""A stand-in for vLLM's Python, as small as the parts of it that are judged.

FAKE_VLLM names the bugs it has.
"""

import os

__version__ = "0.22.1"
BUGS = set(os.environ.get("FAKE_VLLM", "").split(","))
if "no-import" in BUGS:
    raise ImportError("No module named 'cbor2'")
if "no-package" in BUGS:
    raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
if "no-module" in BUGS:
    raise ModuleNotFoundError("No module named 'vllm.moved'", name="vllm.moved")
