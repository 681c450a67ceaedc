"""ik_llama.cpp forgets a running request when another one frees cell 255 of the KV cache.

llama-server -m ANY.gguf -np 2 -c 2048 -fa on -cram 0 --port 8080
python script.py http://127.0.0.1:8080

The model may be any; prompts are token ids from 20 to 250. Three requests: one of 300 tokens ends.
One of 100 tokens decodes behind it, in cells from 300 on. Then a short one takes the place of the
first, and cell 255 is free.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from urllib.request import Request, urlopen

URL = sys.argv[1]
DECODED = 100


def ask(
    first: int, length: int, decoded: int, slot: int, seconds: float = 0.0
) -> list[tuple[str, float]]:
    """The tokens that the server adds to a prompt, each with its probability."""
    time.sleep(seconds)
    body = {
        "prompt": [20 + (first + 7 * n) % 230 for n in range(length)],
        "n_predict": decoded,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "id_slot": slot,
        "n_probs": 1,
    }
    request = Request(
        f"{URL}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=600) as reply:
        made = json.load(reply)["completion_probabilities"]
    return [(token["content"], token["probs"][0]["prob"]) for token in made]


ask(0, 300, 1, 0)
late = threading.Thread(target=ask, args=(5, 20, 4, 0, 0.4))
late.start()
beside = ask(3, 100, DECODED, 1)
late.join()
alone = ask(3, 100, DECODED, 1)
same = next(
    (n for n, (one, two) in enumerate(zip(alone, beside, strict=True)) if one[0] != two[0]), DECODED
)
drift = max(abs(one[1] - two[1]) for one, two in zip(alone[:same], beside[:same], strict=True))
print(f"same tokens as alone: {same} of {DECODED}; their probabilities differ by up to {drift:.4f}")
if same < DECODED:
    print(f"then {alone[same][0]!r} alone, {beside[same][0]!r} beside the other request")
sys.exit(same < DECODED or drift > 0.1)
