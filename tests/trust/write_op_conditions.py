"""Write the scenarios that show all pairs of conditions: python tests/trust/write_op_conditions.py OP > scenarios/NAME.yaml

The calls come from :mod:`harness.scenario.calls`. What a call shows is read from its arguments, before any kernel.
"""

from __future__ import annotations

import base64
import functools
import json
import sys
import zlib
from dataclasses import replace
from typing import Any

import torch
import yaml
from covering_calls import covering_calls, needed

from harness.core.catalog import KERNELS
from harness.core.conditions.model import Shown, Space
from harness.core.conditions.table import SPACES, key_of, shown_by
from harness.core.op_params import KERNEL_PARAMS, MlaDecodeParams
from harness.core.ops import OPS, PAGE_SIZE
from harness.kernels.ops import expert_inputs, indexing, inputs, record_inputs
from harness.kernels.ops.record_formats import RECORDS
from harness.scenario.batches import decode_call
from harness.scenario.calls import UNMET, drawn_call
from harness.scenario.expand import seed_of
from harness.scenario.load import load_scenarios, shipped_directory

HEAD = """# yaml-language-server: $schema=scenario.v1.schema.json
# Written by: python tests/trust/write_op_conditions.py {op}
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


REAL = """# yaml-language-server: $schema=scenario.v1.schema.json
# Written by: python tests/trust/write_op_conditions.py --real {op}
name: {name}
summary: "{op} on a GPU: every installed kernel, every pair of conditions, at real sizes"
tags: [matrix-conditions, {tag}]
device: cuda
system: kernel
op: {op}
poison: {{patterns: [nan]}}
oracles: [finite, sentinel, reference]
matrix:
  kernel: [all]
{kv}  call:
"""
KNOWN = {
    "merge_attn_states": """known:
  # An empty side that is not finite, see docs/findings.md. Seen in 0.22.1 to 0.33.0.
  - {issue: vllm-project/vllm#49294, kernel: vllm-cuda, on: {call: [c00, c01, c02, c03, c05, c07, c09, c10, c11, c12, c13, c16, c18, c21, c22]}}
  - {issue: vllm-project/vllm#49294, kernel: vllm-triton, on: {call: [c00, c01, c02, c03, c07, c09, c10, c11, c12, c13, c16, c18, c21, c22]}}
"""
}
"""Op -> the known failures of its scenario for a GPU. Their calls are those of the scenario as it is."""
INPUTS = (inputs, expert_inputs, record_inputs, indexing)
# What records hold is not read, and encoding it is slow.
STORAGE = record_inputs._storage


def _quick_storage(params: Any, blocks: int, _: Any) -> tuple[torch.Tensor, None]:
    shape = (blocks, params.layers, PAGE_SIZE, RECORDS[params.kv].num_bytes)
    return torch.empty(shape, dtype=torch.uint8), None


def show(op: str, given: dict[str, Any], seed: int = 0) -> tuple[tuple[str, ...], float]:
    """The points of a call with these parameters, and about the milliseconds that its case takes."""
    torch.set_num_threads(1)
    params = KERNEL_PARAMS[op].model_validate(given)
    make = next(getattr(module, op) for module in INPUTS if hasattr(module, op))
    made = make(params, seed)
    row, spec = OPS.get(op), KERNELS.get(f"{op}/{params.kernel}")
    keywords = {name: getattr(made, name) for name in row.keywords if hasattr(made, name)}
    if op == "mla_decode":
        keywords |= {"window": getattr(params, "window", None), "metadata": getattr(params, "planned", False) or None}
    if "num_live" in spec.takes:
        keywords["num_live"] = made.num_live
    arguments = [getattr(made, name) for name in row.positional]
    (points,) = shown_by(op, arguments, keywords).values()
    if op == "mla_decode":
        return points, decode_cost(given)
    elements = sum(a.numel() for a in arguments)
    return points, 25 + elements / 3e4 + len(made.unowned) * 0.02 + 0.2 * len(
        SPACES[op].read(**dict(zip(row.positional, arguments, strict=True)), **keywords)
    )


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


NAMES = {
    "mla_decode": ("decode-conditions", "decode", 0.93),
    "mla_decode_sparse": ("sparse-conditions", "sparse", 0.901),
    "context_attention": ("context-conditions", "prefill", 0.901),
    "merge_attn_states": ("merge-conditions", "prefill", 0.901),
    "write_kv": ("write-kv-conditions", "write", 0.901),
    "write_records": ("record-writer-conditions", "write", 0.901),
    "read_records": ("record-reader-conditions", "records", 0.901),
    "route_experts": ("router-conditions", "router", 0.901),
    "align_experts": ("alignment-conditions", "router", 0.901),
    "quantize_fp8": ("quantize-conditions", "scales", 0.901),
    "index_logits": ("index-logits-conditions", "indexer", 0.901),
    "select_topk": ("select-topk-conditions", "indexer", 0.901),
    "map_indices": ("map-indices-conditions", "indexer", 0.901),
    "quantize_blocks": ("block-conditions", "scales", 0.901),
}
"""Op -> the name of its scenario, a tag, and the share of the triples that is drawn."""
LEAST = 0.9
"""The share of the triples that is kept: calls that are not needed for it are left out."""


def found_calls(op: str, most: int = 400) -> tuple[dict[str, dict[str, Any]], Shown]:
    """The calls of an op by name, and what they show with the seeds that their cases will have."""
    name, _, share = NAMES[op]
    draw = decode_call if op == "mla_decode" else functools.partial(drawn_call, op)
    costs: list[float] = []
    kept: list[dict[str, Any]] = []
    served: list[tuple[tuple[str, ...], float]] = []

    def points(given: dict[str, Any]) -> tuple[str, ...]:
        record_inputs._storage = _quick_storage
        found, cost = show(op, given, len(costs))
        costs.append(cost)
        return found

    def as_case(given: dict[str, Any]) -> tuple[str, ...]:
        kept.append(given)
        record_inputs._storage = STORAGE
        served.append(show(op, given, seed_of(f"{name}[call=c{len(kept) - 1:02}]")))
        return served[-1][0]

    space = SPACES[op]
    how: dict[str, Any] = {"seed": op, "most": most, "serve": as_case, "candidates": 12 if op == "mla_decode" else 60}
    covering_calls(space, draw, points, lambda given: costs[-1], triples=share, **how)
    shown, numbers = Shown(space), needed(space, served, LEAST)
    for number in numbers:
        shown.add(served[number][0])
    return {f"c{number:02}": kept[number] for number in numbers}, shown


def document(op: str) -> str:
    """The scenario of an op as YAML."""
    name, tag, _ = NAMES[op]
    calls, shown = found_calls(op)
    report(shown)
    (pairs, all_pairs), (triples, all_triples) = shown.counts(2), shown.counts(3)
    counted = {"pairs": pairs, "all_pairs": all_pairs, "triples": triples, "all_triples": all_triples}
    head = HEAD.format(op=op, name=name, tag=tag, count=len(calls), **{k: f"{v:,}" for k, v in counted.items()})
    return head + "".join(f"    {name}: {_flow(op, given)}\n" for name, given in calls.items())


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


SIZES = ("kv_lora_rank", "qk_rope_head_dim", "qk_head_dim", "v_head_dim")
AXES = ("kv", "window", "kernel")
"""Parameters that are axes of the matrix on a GPU, or that few kernels take."""
BIG = {("block", "32768+"): "a pool of that many elements takes gigabytes of memory"}
OF_SIZES = ("kv", "window", "latent", "sizes", "width")
"""Dimensions that follow from these and from the sizes."""


def real_call(op: str, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a call at real sizes, for any type of cache. Pools past 2^31 elements are `large`."""
    found = {name: value for name, value in given.items() if name not in SIZES + AXES}
    if found.pop("page_stride", 0) and "layout" not in found:
        found["layout"] = "large"
    if found.get("high_blocks", 0) > 200:
        found["high_blocks"] = 200
    return found


def real_space(op: str) -> Space:
    """The space of an op without the dimensions of sizes and of what only some kernels take."""
    space = SPACES[op]
    gone = OF_SIZES if op != "quantize_fp8" else AXES
    rules = tuple(rule for rule in space.rules if not set(gone) & set(rule.classes))
    refused = {label: why for label, why in BIG.items() if op == "mla_decode"}
    return replace(
        space, dimensions=tuple(d for d in space.dimensions if d.name not in gone), rules=rules, refused=refused
    )


def real_document(op: str) -> str:
    """The scenario of an op at real sizes, for a GPU: of the calls of its array as few as show the same pairs.

    Kernels that read contiguous pools alone skip other calls, so these are chosen first.
    """
    name, tag, _ = NAMES[op]
    space = real_space(op)
    (scenario,) = (s for s in load_scenarios(shipped_directory()) if s.name == name)
    found: list[tuple[dict[str, Any], set[str], float]] = []
    for given in scenario.matrix["call"].values():
        call = real_call(op, given)
        small = {size: given[size] for size in SIZES if size in given}
        for one in [call] if "layout" not in call else [{k: v for k, v in call.items() if k != "layout"}, call]:
            points, cost = show(op, one | small)
            coded = {space.coded(SPACES[op].decoded(point)) for point in points}
            found.append((one, coded, cost + 20))
    whole, calls = Shown(space), []
    for is_packed in (True, False):
        left = [one for one in found if not is_packed or "layout" not in one[0]]
        shown = Shown(space) if is_packed else whole
        while left:
            best = max(left, key=lambda one: shown.gain(one[1])[0] / one[2])
            if not shown.gain(best[1])[0]:
                break
            left.remove(best)
            shown.add(best[1])
            whole.add(best[1])
            calls.append(best[0])
    report(whole)
    cache_types = {"mla_decode": ("fp32", "bf16", "fp8_e4m3")} | {
        other: SPACES[other].dimensions[[d.name for d in SPACES[other].dimensions].index("kv")].classes
        for other in ("mla_decode_sparse", "write_kv", "write_records", "read_records")
    }
    kv = f"  kv: [{', '.join(cache_types[op])}]\n" if op in cache_types else ""
    head = REAL.format(op=op, name=f"kernel-matrix-conditions-{name.removesuffix('-conditions')}", tag=tag, kv=kv)
    rows = "".join(f"    c{number:02}: {_flow(op, given)}\n" for number, given in enumerate(calls))
    return head + rows + KNOWN.get(op, "")


def unmet() -> str:
    """The triples that the arrays of calls do not show, as `fuzz` reads them."""
    found, scenarios = {}, {s.name: s for s in load_scenarios(shipped_directory())}
    for op, (name, _, _) in NAMES.items():
        shown = Shown(SPACES[op])
        for label, given in scenarios[name].matrix["call"].items():
            shown.add(show(op, given, seed_of(f"{name}[call={label}]"))[0])
        flags = bytearray()
        for n, triple in enumerate(SPACES[op].combinations(3)):
            flags += b"\0" * (n // 8 + 1 - len(flags))
            flags[n // 8] |= (not shown.has(triple)) << n % 8
        found[key_of(SPACES[op])] = base64.b64encode(zlib.compress(bytes(flags), 9)).decode()
    return json.dumps(found, indent=0) + "\n"


if __name__ == "__main__":
    *real, op = sys.argv[1:] or [""]
    if op == "--unmet":
        UNMET.write_text(unmet(), encoding="utf-8")
        sys.exit()
    if op not in NAMES or real not in ([], ["--real"]):
        sys.exit(
            f"usage: python tests/trust/write_op_conditions.py [--real] {'|'.join(NAMES)}, or --unmet after the last of them"
        )
    print(real_document(op) if real else document(op), end="")
