"""`vllm serve` of the stand-in: the server of tests/servers with the bugs that FAKE_VLLM names, on
`--port`.
"""

import os
import sys
from pathlib import Path

SERVER = Path(__file__).parents[8] / "tests" / "servers" / "sequence_server.py"

words = sys.argv[1:]
given = os.environ.get("FAKE_VLLM", "").split()
if "refuses" in given:
    raise ValueError("this vLLM refuses to start")
if "dies-at-start" in given:
    raise RuntimeError("no memory")
assert words[0] == "serve" and os.environ["VLLM_SERVER_DEV_MODE"] == "1"
is_other = "fixtures" not in words[1]
arguments = [
    f"port={words[words.index('--port') + 1]}",
    *(["weights=" + words[1]] if is_other else []),
    *given,
]
os.execv(sys.executable, [sys.executable, str(SERVER), *arguments])
