"""Write the scenarios that show all pairs of conditions: python tools/conditions.py OP > scenarios/NAME.yaml

The batches come from :mod:`harness.scenario.batches`. What a call shows is read from its arguments, before any kernel.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

from harness.core.conditions.model import Shown
from harness.core.conditions.table import SPACES, shown_by
from harness.core.op_params import KERNEL_PARAMS, MlaDecodeParams
from harness.core.ops import PAGE_SIZE
from harness.kernels.ops import inputs
from harness.scenario.batches import covering_calls, decode_call

HEAD = """# yaml-language-server: $schema=scenario.v1.schema.json
# Written by: python tools/conditions.py {op}
name: {name}
summary: "{op}: batches of unlike requests that show every pair of its conditions"
tags: [conditions, {tag}]
why: >
  A kernel that is wrong under a plain combination, such as the last page of a request with two query tokens, passes
  any list of cases that was grown bug by bug. These {count} calls show {pairs} of {all_pairs} allowed pairs of classes,
  and {triples} of {all_triples} triples. See docs/conditions.md.
system: kernel
op: {op}
# Other scenarios compare patterns. Here one run of each call is enough.
poison: {{patterns: [nan]}}
oracles: [finite, sentinel, reference]
matrix:
  call:
"""


def show_decode(given: dict[str, Any]) -> tuple[str, ...]:
    """The points of a call with these parameters."""
    params = MlaDecodeParams.model_validate(given)
    made = inputs.mla_decode(params, 1)
    keywords = {"scale": made.scale, "kv_scale": made.kv_scale, "window": params.window}
    arguments = (made.q, made.kv_cache, made.block_table, made.seq_lens)
    (points,) = shown_by("mla_decode", arguments, keywords | {"metadata": params.planned or None}).values()
    return points


def decode_cost(given: dict[str, Any]) -> float:
    """About the milliseconds that a case takes."""
    params = MlaDecodeParams.model_validate(given)
    width = params.kv_lora_rank + params.qk_rope_head_dim
    pages = sum(-(-n // PAGE_SIZE) for n in params.seq_lens)
    layers = 1 if params.layout == "contiguous" else 4 if params.layout == "manager_blocks" else 3
    elements = (pages * layers + params.high_blocks) * PAGE_SIZE * width
    megabytes = elements * {"fp32": 4, "bf16": 2}.get(params.kv, 1) / 1e6
    work = pages * PAGE_SIZE * params.query_len * params.num_heads * (width + 40)
    return 40 + len(params.seq_lens) * params.query_len * 0.3 + work / 4e5 + 9 * megabytes


OPS = {"mla_decode": ("decode-conditions", "decode", decode_call, show_decode, decode_cost, 0.93)}


def document(op: str) -> str:
    """The scenario of an op as YAML."""
    name, tag, draw, show, cost, share = OPS[op]
    calls, shown = covering_calls(SPACES[op], draw, show, cost, triples=share, seed=op)
    report(shown)
    (pairs, all_pairs), (triples, all_triples) = shown.counts(2), shown.counts(3)
    counted = {"pairs": pairs, "all_pairs": all_pairs, "triples": triples, "all_triples": all_triples}
    head = HEAD.format(op=op, name=name, tag=tag, count=len(calls), **{k: f"{v:,}" for k, v in counted.items()})
    return head + "".join(f"    c{number:02}: {_flow(op, given)}\n" for number, given in enumerate(calls))


def report(shown: Shown) -> None:
    """Print what is met, and the pairs that are not."""
    print(*(shown.counts(strength) for strength in (1, 2, 3)), file=sys.stderr)
    for pair in shown.unmet(2):
        print(pair, file=sys.stderr)


def _flow(op: str, given: dict[str, Any]) -> str:
    """Parameters as one line of YAML, without those that have their defaults."""
    plain = KERNEL_PARAMS[op]().model_dump(mode="json")
    kept = {name: value for name, value in given.items() if plain[name] != json.loads(json.dumps(value))}
    return yaml.safe_dump(kept, default_flow_style=True, width=10**6, sort_keys=False).strip()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in OPS:
        sys.exit(f"usage: python tools/conditions.py {'|'.join(OPS)}")
    print(document(sys.argv[1]), end="")
