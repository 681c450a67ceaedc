"""Write the scenarios that show all pairs of conditions: python -m trust.arrays.write_op_conditions
OP > scenarios/conditions/NAME.yaml

The calls come from :mod:`harness.scenario.calls`. What a call shows is read from its arguments,
before any kernel.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import sys
import zlib
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
import yaml
from pydantic import ValidationError

from harness.core.catalog import KERNELS
from harness.core.conditions.model import Shown
from harness.core.conditions.table import SPACES, key_of, shown_by, space_for
from harness.core.draws import Given
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS, OPS_FOLDER, PAGE_SIZE, part_of
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts import records
from harness.ops.parts.record_formats import RECORDS
from harness.scenario.calls import UNMET, drawn_call
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.point_case import seed_of
from harness.scenario.schema import Scenario
from trust.arrays.covering_calls import covering_calls, most_telling_first, needed

HEAD = """# Written by: python -m trust.arrays.write_op_conditions {op}
name: {name}
summary: "{op}: batches of unlike requests that show every pair of its conditions"
tags: [conditions, {tag}]
why: >
  A kernel that is wrong under a plain combination, such as the last page of a request with two query tokens, passes
  any list of cases that was grown bug by bug. These {count} calls show {pairs} of {all_pairs} allowed pairs of classes,
  and {triples} of {all_triples} triples. See docs/how-it-is-tested.md.
system: kernel
op: {op}
# Other scenarios compare patterns. Here one run of each call is enough.
poison: {{patterns: [nan]}}
oracles: [finite, sentinel, reference]
matrix:
  call:
"""


REAL = """# Written by: python -m trust.arrays.write_op_conditions --real {op}
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
    "merge_attn_states": {
        "vllm-cuda": ("no prefix", "no suffix", "neither"),
        "vllm-triton": ("no prefix", "no suffix"),
    }
}
"""Op -> kernel -> sides of a token with which it fails, docs/findings.md."""
ISSUE = "vllm-project/vllm#49294"
# What records hold is not read, and encoding it is slow.
STORAGE = records.drawn_storage


def _quick_storage(params: Any, blocks: int, _: Any) -> tuple[torch.Tensor, None]:
    shape = (blocks, params.layers, PAGE_SIZE, RECORDS[params.kv].num_bytes)
    return torch.empty(shape, dtype=torch.uint8), None


def show(op: str, given: dict[str, Any], seed: int = 0) -> tuple[tuple[str, ...], float]:
    """The points of a call with these parameters, and about the milliseconds that its case
    takes.
    """
    torch.set_num_threads(1)
    params = KERNEL_PARAMS[op].model_validate(given)
    made = part_of(op, "inputs:draw")(params, seed)
    row, spec = OPS.get(op), KERNELS.get(f"{op}/{params.kernel}")
    keywords = {name: getattr(made, name) for name in row.keywords if hasattr(made, name)}
    if op == "mla_decode":
        keywords |= {
            "window": getattr(params, "window", None),
            "metadata": getattr(params, "planned", False) or None,
        }
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


SHARE = 0.901
"""The share of the triples that is drawn for the calls of an op."""
SHARES = {"mla_decode": 0.93}
"""Op -> its own share."""


def _name_and_tag(op: str) -> tuple[str, str]:
    """The name of the scenario of an op's calls, and its tag: as written, or those of a new one."""
    written = (s for s in load_scenarios(shipped_directory()) if "conditions" in s.tags)
    found = {s.op: (s.name, s.tags[1]) for s in written if s.op is not None}
    return found.get(op, (f"{op.replace('_', '-')}-conditions", op))


NAMES = {op: (*_name_and_tag(op), SHARES.get(op, SHARE)) for op in KERNEL_PARAMS if op in SPACES}
"""Op -> the name of its scenario, a tag, and the share of the triples that is drawn."""
LEAST = 0.9
"""The share of the triples that is kept: calls that are not needed for it are left out."""


def found_calls(op: str, most: int = 400) -> tuple[dict[str, dict[str, Any]], Shown]:
    """The calls of an op by name, and what they show with the seeds that their cases will have."""
    name, _, share = NAMES[op]
    draw = functools.partial(drawn_call, op)
    costs: list[float] = []
    kept: list[dict[str, Any]] = []
    served: list[tuple[tuple[str, ...], float]] = []

    def points(given: dict[str, Any]) -> tuple[str, ...]:
        records.drawn_storage = _quick_storage
        found, cost = show(op, given, len(costs))
        costs.append(cost)
        return found

    def as_case(given: dict[str, Any]) -> tuple[str, ...]:
        kept.append(given)
        records.drawn_storage = STORAGE
        served.append(show(op, given, seed_of(f"{name}[call=c{len(kept) - 1:02}]")))
        return served[-1][0]

    space = SPACES[op]
    how: dict[str, Any] = {
        "seed": op,
        "most": most,
        "serve": as_case,
        "candidates": 12 if op == "mla_decode" else 60,
    }
    covering_calls(space, draw, points, lambda given: costs[-1], triples=share, **how)
    shown, numbers = Shown(space), needed(space, served, LEAST)
    for number in numbers:
        shown.add(served[number][0])
    order = most_telling_first(space, [served[number] for number in numbers])
    numbers = [numbers[place] for place in order]
    return {f"c{number:02}": kept[number] for number in numbers}, shown


def document(op: str) -> str:
    """The scenario of an op as YAML."""
    name, tag, _ = NAMES[op]
    calls, shown = found_calls(op)
    report(shown)
    (pairs, all_pairs), (triples, all_triples) = shown.counts(2), shown.counts(3)
    counted = {
        "pairs": pairs,
        "all_pairs": all_pairs,
        "triples": triples,
        "all_triples": all_triples,
    }
    head = HEAD.format(
        op=op, name=name, tag=tag, count=len(calls), **{k: f"{v:,}" for k, v in counted.items()}
    )
    return head + "".join(f"    {name}: {_flow(op, given)}\n" for name, given in calls.items())


def reordered(op: str) -> str:
    """The scenario of an op as it stands, with its most telling calls in front."""
    name, _, _ = NAMES[op]
    (path,) = shipped_directory().glob(f"*/{name}.yaml")
    text = path.read_text(encoding="utf-8")
    (scenario,) = load_scenarios(path)
    shown = list(shown_in(scenario))
    head, marker, rows = text.partition("  call:\n")
    lines = rows.splitlines(keepends=True)
    order = most_telling_first(SPACES[op], shown)
    return head + marker + "".join([*(lines[n] for n in order), *lines[len(shown) :]])


def shown_in(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], float]]:
    """The points of each call of a scenario with the seed of its case, and about the milliseconds
    that the case takes, in order.
    """
    assert scenario.op is not None  # as it calls a kernel
    for label, given in scenario.matrix["call"].items():
        yield show(scenario.op, dict(given), seed_of(f"{scenario.name}[call={label}]"))


def report(shown: Shown) -> None:
    """Print what is met, and the pairs that are not."""
    print(*(shown.counts(strength) for strength in (1, 2, 3)), file=sys.stderr)
    for pair in shown.unmet(2):
        print(pair, file=sys.stderr)


def _flow(op: str, given: dict[str, Any]) -> str:
    """Parameters as one line of YAML, without those that have their defaults."""
    plain = KERNEL_PARAMS[op]().model_dump(mode="json")
    kept = {
        name: value for name, value in given.items() if plain[name] != json.loads(json.dumps(value))
    }
    return yaml.safe_dump(kept, default_flow_style=True, width=10**6, sort_keys=False).strip()


SIZES = ("kv_lora_rank", "qk_rope_head_dim", "qk_head_dim", "v_head_dim")
SMALL = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_head_dim": 24, "v_head_dim": 16}
"""Sizes with which a call is shown: what it shows of everything else is the same."""
DIVIDED = {
    "mla_decode": (1, 8, 16, 32, 64, 128),
    "mla_decode_sparse": (1, 8, 32, 64, 128),
    "index_logits": (32, 64),
}
"""Op -> numbers of heads that tensor parallelism leaves.

FlashInfer refuses some lengths with other ones.
"""
TOPK = (512, 1024, 2048)
"""Positions that indexers of released models choose."""
LONG = 300
"""Pages that the longest requests of an indexer have more than the drawn ones."""
SEEDS = (0, 1, 2)
"""A combination counts if a call shows it with each of these seeds, as a case has another one for
each kernel.
"""
DRAWN = 200
"""Calls drawn for a pair that no call of the array shows."""


def variants(op: str, given: Given) -> Iterator[Given]:
    """A drawn call for any cache type: at real sizes, with each layout, and as it was drawn."""
    drawn = {name: value for name, value in given.items() if name not in ("kv", "kernel")}
    real = {
        name: value
        for name, value in drawn.items()
        if name not in (*SIZES, "window", "index_head_dim")
    }
    if op == "index_logits":
        real["seq_lens"] = [n + LONG * PAGE_SIZE * (n > 4 * PAGE_SIZE) for n in given["seq_lens"]]
    elif real.pop("page_stride", 0) and "layout" not in real:
        real["layout"] = "large"
    if real.get("high_blocks", 0) > 200 and op != "map_indices":
        real["high_blocks"] = 200
    if op == "merge_attn_states":
        yield real | {"sides": ["both"]}
    if op in ("select_topk", "map_indices"):
        yield from (_long(op, real, topk) for topk in TOPK)
    else:
        heads = next((d for d in SPACES[op].dimensions if d.name == "heads"), None)
        same = heads.numbers[heads.of(real["num_heads"])] if heads and op in DIVIDED else ()
        divided = [{"num_heads": number} for number in DIVIDED.get(op, ()) if number in same]
        for one in (*(real | heads for heads in divided), real):
            yield {name: value for name, value in one.items() if name != "layout"}
            yield one
    if op == "mla_decode":
        drawn = _for_a_gpu(drawn)
    yield _in_fours(drawn) if op == "select_topk" else drawn


def _for_a_gpu(drawn: Given) -> Given:
    """The call as drawn, with the least latent of Triton's products, and pages that span as little
    as "large" does.
    """
    given = drawn | (
        {"kv_lora_rank": 32, "qk_rope_head_dim": 16} if drawn.get("kv_lora_rank", 512) < 32 else {}
    )
    if 0 < given.get("page_stride", 0) < 48 * PAGE_SIZE:
        given["page_stride"] = 49 * PAGE_SIZE
    elif given.get("page_stride", 0) >= 2**31 and "layout" not in given:
        del given["page_stride"]
        given["layout"] = "large"
    return given


def _long(op: str, given: Given, topk: int) -> Given:
    """The call with as many positions as an indexer chooses, and lengths around that number."""
    old = given["topk"]
    lengths = [n - old + topk if n >= min(old, 65) else n for n in given["seq_lens"]]
    if op == "map_indices":
        return given | {
            "topk": topk,
            "seq_lens": [n if n < 257 else n + LONG * PAGE_SIZE for n in given["seq_lens"]],
        }
    longest = max(lengths)
    if not given["spare_columns"]:
        # Rows are at least as wide as a list.
        lengths[lengths.index(longest)] = max(longest, topk)
    stride = 4 * topk if given.get("row_stride") else 0
    return _in_fours(
        given | {"topk": topk, "seq_lens": lengths, "row_stride": stride, "launches": 1}
    )


def _in_fours(given: Given) -> Given:
    """The call with rows of a multiple of 4 columns, and at least `topk`, as the kernels ask
    for.
    """
    lengths, spare, topk = list(given["seq_lens"]), given["spare_columns"], given["topk"]
    longest = lengths.index(max(lengths))
    if spare:
        spare += max(topk - lengths[longest] - spare, 0)
        spare += -(lengths[longest] + spare) % 4
    else:
        lengths[longest] = -(-max(lengths[longest], topk) // 4) * 4
    stride = given.get("row_stride", 0)
    stride = stride and -(-max(stride, lengths[longest] + spare) // 4) * 4
    return given | {"seq_lens": lengths, "spare_columns": spare, "row_stride": stride}


class RealCalls:
    """The calls of an op for every kernel of it, and which pairs a call shows of a kernel's
    space.
    """

    def __init__(self, op: str) -> None:
        self.op, self.space, self.model = op, SPACES[op], KERNEL_PARAMS[op]
        self.types: tuple[str, ...] = next(
            (d.classes for d in self.space.dimensions if d.name == "kv"), ("",)
        )
        self.kernels = [spec for spec in KERNELS if spec.op == op]
        self._points: dict[str, tuple[list[list[dict[str, str]]], float]] = {}
        self._pairs: dict[Any, tuple[set[tuple[int, int]], set[tuple[int, int]]]] = {}

    def accepted(self, spec: KernelSpec, given: Given) -> list[str]:
        """The cache types with which a kernel takes this call."""
        if (
            spec.origin == "flashinfer"
            and self.op == "mla_decode"
            and given.get("num_heads") not in DIVIDED[self.op]
        ):
            return []
        if (
            spec.short_name == "vllm-cooperative"
            and len(given["seq_lens"]) * given.get("query_len", 1) > 64
        ):
            return []
        found = []
        for kv in self.types:
            full = given | {"kernel": spec.short_name} | ({"kv": kv} if kv else {})
            if self.is_legal(full) and not spec.why_not_params(self.model.model_validate(full)):
                found.append(kv)
        return found

    def is_legal(self, given: Given) -> bool:
        """Whether a call may have these parameters."""
        try:
            return bool(self.model.model_validate(given))
        except ValidationError:
            return False

    def points(self, given: Given) -> tuple[list[list[dict[str, str]]], float]:
        """What the call shows with each seed, and its cost."""
        key = json.dumps(given, sort_keys=True)
        if key not in self._points:
            sizes = {
                n: v
                for n, v in SMALL.items()
                if n in self.model.model_fields and not set(SIZES) & set(given)
            }
            own = (
                {"kernel": "torch-live"}
                if self.op == "route_experts" and given.get("num_live")
                else {}
            )
            served = [show(self.op, sizes | given | own, seed) for seed in SEEDS]
            decoded = [[self.space.decoded(word) for word in points] for points, _ in served]
            if sizes:
                # Sizes that are left out are the real ones.
                real = {
                    d.name: d.classes[d.classes[0] == "other"]
                    for d in self.space.dimensions
                    if "other" in d.classes and d.name in ("latent", "sizes", "width")
                }
                decoded = [[point | real for point in points] for points in decoded]
            self._points[key] = decoded, served[0][1] + 20
        return self._points[key]

    def pairs(self, spec: KernelSpec, given: Given, by_luck: bool = False) -> set[tuple[int, int]]:
        """The allowed pairs that each seed shows with the kernel, over its cache types; or that
        some seed shows.
        """
        space, types = space_for(spec), self.accepted(spec, given)
        key = json.dumps([given, types, sorted(space.refused)], sort_keys=True)
        if key not in self._pairs and types:
            each = []
            for points in self.points(given)[0]:
                shown = Shown(space)
                for kv in types:
                    more = ({"kv": kv} if kv else {}) | (
                        {"plan": "none"} if ("plan", "given") in space.refused else {}
                    )
                    shown.add(space.coded(point | more) for point in points)
                each.append(set(shown.with_pair) & set(space.allowed))
            self._pairs[key] = set.intersection(*each), set.union(*each)
        return self._pairs.get(key, (set(), set()))[by_luck]

    def cover(
        self, spec: KernelSpec, calls: list[Given], pool: list[Given], random: Random, topk: int = 0
    ) -> None:
        """Add calls of the pool to `calls`, or drawn ones, until they show every pair that the
        kernel accepts.
        """
        space, sides = space_for(spec), KNOWN.get(self.op, {}).get(spec.short_name, ())
        known = {self.space.number["side", side] for side in sides} | {
            self.space.number["sign", sign] for sign in ("+inf", "-inf") if sides
        }

        def shown(given: Given) -> set[tuple[int, int]]:
            found = self.pairs(spec, given) if not topk or given["topk"] == topk else set()
            # A call that fails shows nothing of what other calls can show.
            return (
                {pair for pair in found if known & set(pair)} if self.fails(spec, given) else found
            )

        left = set(space.allowed).difference(*map(shown, calls))
        while left:
            best = max(
                pool,
                key=lambda one: len(left & shown(one)) / self.points(one)[1] if shown(one) else 0,
            )
            if not left & shown(best):
                pair = min(left)
                drawn = self._drawn(spec, random, pair, topk)
                if not drawn or not any(pair in shown(one) for one in drawn):
                    print(
                        spec.name,
                        len(drawn),
                        "calls by luck",
                        [space.labels[n] for n in pair],
                        file=sys.stderr,
                    )
                left = left.difference({pair}, *map(shown, drawn))
                calls += drawn
                continue
            left -= shown(best)
            calls.append(best)

    def _drawn(
        self, spec: KernelSpec, random: Random, pair: tuple[int, int], topk: int
    ) -> list[Given]:
        """A drawn call that shows a pair with a kernel, or three that show it with some seed."""
        draw = functools.partial(drawn_call, self.op)
        refused = space_for(spec).refused
        dimensions = [d for d in self.space.dimensions if d.name in {name for name, _ in refused}]
        lucky: list[Given] = []
        for _ in range(DRAWN):
            wanted = {
                d.name: random.choice([c for c in d.classes if (d.name, c) not in refused])
                for d in dimensions
            }
            wanted |= dict(self.space.labels[n] for n in pair)
            units = itertools.chain([wanted], itertools.cycle(({}, {}, wanted)))
            given = draw(random, units, random.choice((8, 20, 80)))
            for one in variants(self.op, self.full(given)):
                if topk not in (0, one.get("topk")) or self.fails(spec, one):
                    continue
                if pair in self.pairs(spec, one):
                    return [one]
                if pair in self.pairs(spec, one, by_luck=True):
                    lucky.append(one)
        return lucky[:3]

    def fails(self, spec: KernelSpec, given: Given) -> bool:
        """Whether a known bug of the kernel fails the call."""
        sides = KNOWN.get(self.op, {}).get(spec.short_name, ())
        return bool(sides) and any(point["side"] in sides for point in self.points(given)[0][0])

    def full(self, given: Given) -> Given:
        """A call with the parameters that its variants read."""
        keep = set(given) | {
            name for name in ("num_heads", *NEEDED) if name in self.model.model_fields
        }
        return self.model.model_validate(given).model_dump(mode="json", include=keep)


NEEDED = ("topk", "seq_lens", "spare_columns", "query_len")


def real_document(op: str) -> str:
    """The scenario of an op at real sizes, for a GPU: the calls it has, and calls for the pairs
    that they do not show.

    New calls come from the op's array. What no call of it shows is drawn.
    """
    name, tag, _ = NAMES[op]
    real, title = RealCalls(op), f"kernel-matrix-conditions-{name.removesuffix('-conditions')}"
    records.drawn_storage = _quick_storage
    scenarios = {s.name: s for s in load_scenarios(shipped_directory())}
    calls = (
        [dict(given) for given in scenarios[title].matrix["call"].values()]
        if title in scenarios
        else []
    )
    pool = [
        one
        for given in scenarios[name].matrix["call"].values()
        for one in variants(op, real.full(given))
    ]
    random = Random(op)
    for spec in sorted(real.kernels, key=lambda spec: -len(space_for(spec).refused)):
        # A top-k has code of its own for each number.
        for topk in TOPK if spec.shapes and len(spec.shapes.topk) == len(TOPK) else (0,):
            real.cover(spec, calls, pool, random, topk)
        print(spec.name, len(calls), "calls", file=sys.stderr)
    kv = f"  kv: [{', '.join(real.types)}]\n" if real.types != ("",) else ""
    head = REAL.format(op=op, name=title, tag=tag, kv=kv)
    rows = "".join(f"    c{number:02}: {_flow(op, given)}\n" for number, given in enumerate(calls))
    return head + rows + _illegal(real, calls) + _known(real, calls)


def _illegal(real: RealCalls, calls: list[Given]) -> str:
    """The calls that a cache type cannot have, such as records of another size."""
    rows = ""
    for kv in real.types if real.types != ("",) else ():
        names = [
            f"c{number:02}"
            for number, given in enumerate(calls)
            if not real.is_legal(given | {"kv": kv})
        ]
        rows += f"  - {{kv: {kv}, call: [{', '.join(names)}]}}\n" if names else ""
    return f"except:\n{rows}" if rows else ""


def _known(real: RealCalls, calls: list[Given]) -> str:
    """The known failures of released kernels, by call."""
    rows = ""
    for spec in (spec for spec in real.kernels if spec.short_name in KNOWN.get(real.op, {})):
        names = ", ".join(
            f"c{number:02}" for number, given in enumerate(calls) if real.fails(spec, given)
        )
        rows += f"  - {{issue: {ISSUE}, kernel: {spec.short_name}, on: {{call: [{names}]}}}}\n"
    why = "  # An empty side that is not finite, see docs/findings.md. Seen in 0.22.1 to 0.33.0.\n"
    return f"known:\n{why}{rows}" if rows else ""


def write_unmet() -> None:
    """Write the triples that the arrays of calls do not show, as `fuzz` reads them: a file for each
    op.
    """
    scenarios = {s.name: s for s in load_scenarios(shipped_directory())}
    for op, (name, _, _) in NAMES.items():
        shown = Shown(SPACES[op])
        for points, _ in shown_in(scenarios[name]):
            shown.add(points)
        flags = bytearray()
        for n, triple in enumerate(SPACES[op].combinations(3)):
            flags += b"\0" * (n // 8 + 1 - len(flags))
            flags[n // 8] |= (not shown.has(triple)) << n % 8
        packed = base64.b64encode(zlib.compress(bytes(flags), 9)).decode()
        text = json.dumps({key_of(SPACES[op]): packed}, indent=0) + "\n"
        (OPS_FOLDER / op / UNMET).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    *options, op = sys.argv[1:] or [""]
    if op == "--unmet":
        write_unmet()
        sys.exit()
    how = " ".join(options)
    writers = {"": document, "--real": real_document, "--order": reordered}
    if op not in NAMES or how not in writers:
        sys.exit(
            "usage: python -m trust.arrays.write_op_conditions [--real|--order]"
            f" {'|'.join(NAMES)}, or --unmet after the last of them"
        )
    print(writers[how](op), end="")
