"""Cases of the reference engine that show many of its conditions: their draw, and a schedule of
them without a model.

What a case shows depends on its schedule, and only for drafts on tokens. So candidates are
scheduled without a model, and tokens are drawn. The case that is kept is served by the real engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.conditions.engine import LAYERS, SPACE
from harness.core.conditions.model import Shown
from harness.core.conditions.table import key_of
from harness.core.engine_params import EngineParams
from harness.engine import batch as batches
from harness.engine.capture import reachable_sizes
from harness.engine.engine import ReferenceEngine
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import PAGE_SIZE, num_pages
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import Step
from harness.engine.speculation import SuffixDrafts
from harness.judge.probes.answers import Answers
from harness.judge.probes.conditions import StepConditions
from harness.judge.probes.group import ProbeGroup
from harness.judge.targets.engine import EngineTarget, length
from harness.judge.targets.serving import serve
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from trust.arrays.covering_calls import covering_calls

Given = dict[str, Any]
Wanted = dict[str, str]
SIZES = {
    "hidden_size": 32,
    "num_heads": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
}
SIZES |= {"vocab_size": 16}
EDGES = (1, 2, 3, 9, 30, 61, 62, 63, 64, 65, 66)
SCALED = {
    "none": ("none",),
    "one scale": ("fp8_per_tensor",),
    "scale of rows": ("fp8_per_token", "mxfp8"),
}
FORWARD, CAPTURE, REQUEST, TOKEN, START = 4.0, 26.0, 10.0, 0.12, 20.0
"""About the milliseconds of a layer in a forward and in a capture, of a request and a token, and of
an engine.
"""


class _Schedule(ProbeGroup):
    """The probes that a run without a model needs, and the forwards that a judged run has."""

    def __init__(self, params: EngineParams) -> None:
        self.answers, self.conditions = Answers(), StepConditions(params)
        self.twins = SimpleNamespace(replays=[])
        super().__init__(self.conditions)


class _Runner:
    """Runs the hooks of a step, and draws its tokens: mostly a cycle, so that some drafts are
    right.
    """

    def __init__(self, params: EngineParams, probe: _Schedule, vocab: int) -> None:
        self.params, self.probe, self.vocab, self.random = params, probe, vocab, Random(0)
        self.sizes = (
            reachable_sizes(params.capture_sizes, params.max_num_seqs)
            if params.graph == "full"
            else []
        )
        self.num_forwards = self.num_replays = 0
        self.draft_logits = None
        for size in self.sizes:
            probe.on_capture(SimpleNamespace(num_decodes=size), None)  # type: ignore[arg-type]

    def run(self, step: Step) -> Tensor:
        """Drawn logits [n, vocab] in the step's order."""
        self.probe.before_step(step)
        ordered = batches.order(step.scheduled)
        if ordered:
            with self.probe.on_step(ordered, None):  # type: ignore[arg-type]
                decodes_only = all(item.is_decode for item in ordered)
                size = next(
                    (size for size in self.sizes if decodes_only and size >= len(ordered)), None
                )
                self.num_forwards += 1 if size is None else 3
                if size is not None:
                    self.num_replays += 1
                    with self.probe.on_replay(SimpleNamespace(num_decodes=size)):  # type: ignore[arg-type]
                        pass
        tokens = []
        for item in step.scheduled:
            known = (item.sequence.tokens + item.sequence.drafts)[-item.num_rows :]
            tokens += [
                (t + 1) % 4 if self.random.random() < 0.8 else self.random.randrange(self.vocab)
                for t in known
            ]
        return torch.nn.functional.one_hot(
            torch.tensor(tokens, dtype=torch.int64), self.vocab
        ).float()

    def run_dummy(self) -> None:
        self.num_forwards += 1
        with self.probe.on_dummy_step():
            pass


@lru_cache(maxsize=64)
def _scheduled(text: str) -> tuple[tuple[str, ...], float]:
    """What a case shows by its schedule, and about the milliseconds that it costs."""
    target = _target(EngineParams.model_validate_json(text))
    params, config = target._params, target._config
    probe = _Schedule(params)
    engine = object.__new__(ReferenceEngine)
    engine.params, engine.probe, engine.adapters = params, probe, [0]
    engine.num_reloads = engine.num_requests = 0
    engine.max_model_len = max(length(request) for request in params.requests)
    engine.pool = BlockPool(params.num_blocks, params.free_list)
    engine._query_len, engine._drafts = params.query_len, SuffixDrafts(params.speculative_tokens)
    engine._cancelled = frozenset(params.cancelled)
    trash = engine.pool.reserve() if params.pad_tokens == "trash" else None
    model = SimpleNamespace(
        model=SimpleNamespace(config=config),
        routed_experts=lambda: (
            [SimpleNamespace(ranks=[0] * params.expert_ranks)] if params.num_experts else []
        ),
    )
    kv = [
        params.window_kv or params.kv if kind == "window" else params.kv
        for kind in config.layer_types
    ]
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}
    memory = SimpleNamespace(latents=lambda layer: SimpleNamespace(dtype=types[kv[layer]]))
    probe.on_start(model, memory, engine.pool, batches.Padding(trash, params.pad_keys))  # type: ignore[arg-type]
    engine.runner = runner = _Runner(params, probe, params.vocab_size)  # type: ignore[assignment]
    engine.scheduler = Scheduler(
        engine.pool,
        params.max_batched_tokens,
        params.max_num_seqs,
        needs_state=config.is_hybrid,
        prefix_caching=params.prefix_caching,
        window=config.sliding_window,
    )
    serve(engine, probe, target._prompts(), lambda _: None)  # type: ignore[arg-type, return-value]
    captures = len(runner.sizes) * (
        1 + (params.quantize != "none") + 0.5 * (params.num_experts > 0)
    )
    cost = START + len(params.layers) * (FORWARD * runner.num_forwards + CAPTURE * captures)
    cost += sum(REQUEST + TOKEN * prompt for prompt, _ in params.requests)
    # A graph that never replays proves nothing.
    proves = not runner.sizes or runner.num_replays
    return tuple(sorted(probe.conditions.points)) if proves else (), cost


def _target(params: EngineParams) -> EngineTarget:
    return EngineTarget(
        Case(id="engine-conditions", scenario="engine-conditions", system="engine", params=params)
    )


def _text(given: Given) -> str:
    return EngineParams.model_validate(given).model_dump_json()


def show(given: Given) -> tuple[str, ...]:
    """The points of a case by its schedule."""
    return _scheduled(_text(given))[0]


def cost(given: Given) -> float:
    """About the milliseconds of a case."""
    return _scheduled(_text(given))[1]


def serve_really(given: Given) -> tuple[str, ...]:
    """The points of a case, served by the engine."""
    return (
        _target(EngineParams.model_validate(given))
        .run(Poison("zeros", frozenset()))
        .shown[key_of(SPACE)]
    )


def engine_case(random: Random, wanted: Iterator[Wanted]) -> Given:
    """The parameters of a case.

    The first of `wanted` decides what the engine has, and requests take what they can.
    """
    first = next(wanted)

    def pick(name: str, *weights: int) -> str:
        labels = SPACE[name].classes
        return first.get(name) or random.choices(labels, weights or None)[0]

    wants_hit = first.get("hit", "none") != "none"
    wants_drafts = (
        first.get("drafts", "none") != "none"
        or bool({"accepted"} & set(first))
        or "cut" in first.values()
    )
    layer = pick("layer", 3, 3, 3, 2)
    wants_hit = layer != "window" and (wants_hit or random.random() < 0.35)
    drafts = pick("drafts", 5, 2, 2, 1)
    if wants_drafts and drafts == "none":
        drafts = random.choice(
            ("2-3", "2-3", "4+")
            if first.get("accepted") in ("some", "all but one")
            else ("1", "2-3")
        )
    drafts = "none" if layer == "state" else drafts
    spec = {"none": 0, "1": 1, "2-3": random.choice((2, 3)), "4+": random.choice((4, 5))}[drafts]
    kinds = ["mla", "sparse"] + ["window"] * (not wants_hit) + ["kda"] * (not spec)
    own = next(kind for kind, name in LAYERS.items() if name == layer)
    others = [kind for kind in kinds if kind != own]
    layers = [
        *random.sample(
            others, min(random.choice((1, 1, 2, 0 if own != "kda" else 1)), len(others))
        ),
        own,
    ]
    target = random.choice(SPACE["batch"].numbers[pick("batch", 2, 4, 4, 2)][:4])
    is_early = "batch" in first or target > 4
    count = min(target + random.choice((0, 1, 1, 2, 3)), 13)
    edges = (
        EDGES
        if target > 4 or random.random() < 0.4
        else (*EDGES, 100, 127, 128, 129, 190, 192, 193, 257, 300)
    )
    pages = {
        "1": (1, 9, 62, 63),
        "2": (65, 66, 100, 126, 127),
        "3-4": (130, 191, 192, 250),
        "5+": (257, 300, 320),
    }
    requests, tokens = [], (1, 2, 3, 3, 4, 6) if is_early else (1, 2, 3, 4, 6, 9)
    for _ in range(count):
        prompt = random.choice(pages.get(next(wanted).get("pages", ""), edges))
        requests.append([prompt, random.choice(tokens)])
    budgets = (100, 128, 300, 600, 600) if is_early else (20, 64, 64, 65, 100, 128, 300)
    arrivals = sorted(
        random.choice((0, 0, 0, 0, 0, 1, 3) if is_early else (0, 0, 1, 2, 4, 8)) for _ in requests
    )
    if spec and (
        first.get("moved") == "new" or first.get("change") == "joined" or random.random() < 0.1
    ):
        # Steps that have no place for every request's drafts.
        at_once = random.randint(1, 3)
        budgets = ((1 + spec) * at_once + random.randint(1, spec),)
        requests = [
            [random.choice((1, 2, 3, 9, 62)), random.choice((4, 6, 9))]
            for _ in range(at_once + random.randint(1, 3))
        ]
        arrivals = []
    elif "inner" in first.values():
        requests[-1][0], arrivals, budgets = (
            random.choice((257, 300)),
            [0] * (len(requests) - 1) + [1],
            (100, 128),
        )
    elif first.get("life") == "again" or first.get("phase") == "tail":
        # A chunk that leaves one token, of a prompt or of what a preempted request has.
        requests = [
            [random.choice((9, 40, 60, 61, 62, 63, 64)), random.choice((4, 6, 9))]
            for _ in requests[:6]
        ]
        left = (
            requests[-1][0] - 1 if random.random() < 0.3 else requests[-1][0] + random.randint(0, 4)
        )
        budgets, arrivals = (max(left, 2 + spec),), []
    graph = pick("graph", 2, 2, 3, 2, 2)
    sizes = {
        "eager": [1],
        "exact": [target],
        "padded 1": [target + 1, target - 1, target - 3],
        "padded more": [target + 3],
    }.get(graph, [])
    sizes = sorted({size for size in sizes if size > 0})
    if "larger" in (first.get("size"), random.choice(("larger", "smallest"))):
        sizes = sorted({1, *sizes}) if graph != "eager" else [1, 2]
    change, is_tight = (
        first.get("change"),
        first.get("life", "first") != "first" or first.get("change") == "preempted",
    )
    given: Given = SIZES | {
        "layers": layers,
        "kv": pick("kv"),
        "requests": requests,
        "max_num_seqs": random.choice((target, target, 16)),
        "max_batched_tokens": spec + random.choice(budgets) if len(budgets) > 1 else budgets[0],
        "context_chunk": random.choice((32, 64, 128, 512)),
        "arrivals": arrivals,
        "free_list": random.choice(("fifo", "lifo")),
        "zero_fill_output": pick("output") == "persistent",
        "pad_tokens": "trash" if pick("padding") == "trash" else "skip",
        "pad_keys": int(pick("padding", 1, 1, 1) == "key"),
        "dummy_steps": pick("dummy", 4, 1) == "before",
        "quantize": random.choice(SCALED[pick("activations", 3, 1, 1)]),
        "context_ranks": {"1": 1, "2+": random.choice((2, 3))}[pick("ranks")],
        "speculative_tokens": spec,
    }
    if given["pad_tokens"] == "trash":
        given["pad_keys"] = 0
    if (experts := pick("experts", 3, 1, 1)) != "none":
        given |= {"num_experts": 4, "expert_ranks": 1 if experts == "one rank" else 2}
    if sizes:
        given |= {"graph": "full", "capture_sizes": sizes, "capture": pick("plan")}
    limits = [prompt + random.randint(0, more) for prompt, more in requests]
    if "window" in layers:
        given |= {
            "window": random.choice((1, 20, 64, 300, *limits)),
            "window_kv": random.choice(("fp32", "bf16", "fp8_e4m3")),
        }
    if "sparse" in layers:
        given["index_topk"] = random.choice((4, 16, 300, *limits))
    if wants_hit and "window" not in layers:
        chains = ("_", "a", "ab", "b", "abc", "a")
        if (
            long := "2+" in first.values()
            or "fewer rounds" in first.values()
            or random.random() < 0.4
        ):
            chains = ("a", "abc", "ab", "abc")
        given |= {"prefix_caching": True, "chains": [random.choice(chains) for _ in requests]}
        for chain, request in zip(given["chains"], requests, strict=True):
            if long and random.random() < 0.8:
                request[0] = len(chain) * PAGE_SIZE + random.choice((1, 1, 9, 63, 64, 66))
        if long:
            given["arrivals"] = [0, *sorted(random.choice((1, 2, 2, 2, 3)) for _ in requests[1:])]
    count = len(requests)
    if count > 1 and (change == "aborted" or random.random() < 0.25):
        given["aborts"] = [
            [random.randrange(1, count), random.randint(1, 6)] for _ in range(random.choice((1, 2)))
        ]
    if count > 1 and (change == "cancelled" or random.random() < 0.2):
        given["cancelled"] = random.sample(range(1, count), 1)
    needed = EngineParams.model_validate(given | {"num_blocks": 10_000}).blocks_needed
    lists = 1 + ("window" in layers)
    all_pages = sum(
        lists * num_pages(prompt + more + spec) + ("kda" in layers) for prompt, more in requests
    )
    few = needed + random.randint(0, max(all_pages // 3, 1))
    plenty = all_pages + 4
    return given | {
        "num_blocks": max(
            4, 2 + (few if is_tight or random.random() < 0.35 else max(plenty, needed))
        )
    }


HEAD = """# Drawn by: python -m trust.arrays.write_engine_conditions
name: {name}
summary: "the engine: steps of unlike requests that show {what} of its conditions"
tags: [{tags}]
why: >
  An engine that is wrong under a plain combination, such as the last row of a padded replay after a preemption, passes
  any list of cases that was grown bug by bug. These {count} cases show what the other scenarios leave out: with them
  {pairs:,} of {all_pairs:,} allowed pairs and {triples:,} of {all_triples:,} triples. See docs/how-it-is-tested.md.
system: engine
params: {sizes}
# Other scenarios compare patterns. Here one run of each case is enough.
poison: {{patterns: [nan]}}
oracles: [{oracles}]
matrix:
  case:
"""
ORACLES = (
    "finite, sentinel, reference, replay, address, padding, zeroed, distinct_experts, tokens,"
    " conserved, policy"
)


def document(cases: Sequence[Given], shown: Shown, is_nightly: bool = False) -> str:
    """The scenario of these cases as YAML.

    The nightly one has what costs most for what it shows.
    """
    own = ("engine-rare-conditions", "rare triples", "conditions, nightly")
    name, what, tags = (
        own if is_nightly else ("engine-conditions", "pairs and triples", "conditions, engine")
    )
    (pairs, all_pairs), (triples, all_triples) = shown.counts(2), shown.counts(3)
    counts = {
        "pairs": pairs,
        "all_pairs": all_pairs,
        "triples": triples,
        "all_triples": all_triples,
    }
    head = HEAD.format(
        count=len(cases),
        oracles=ORACLES,
        sizes=_flow(SIZES),
        name=name,
        what=what,
        tags=tags,
        **counts,
    )
    return head + "".join(
        f"    c{number:02}: {_flow(_own(given))}\n" for number, given in enumerate(cases)
    )


def _own(given: Given) -> Given:
    """Parameters that are no defaults, and that all cases do not have."""
    plain = EngineParams().model_dump(mode="json")
    return {
        name: value for name, value in given.items() if name not in SIZES and plain[name] != value
    }


def _flow(given: Given) -> str:
    return yaml.safe_dump(given, default_flow_style=True, width=10**6, sort_keys=False).strip()


def others() -> list[str]:
    """The points that the engine's other scenarios of a default run show, served with one pattern
    of poison.
    """
    scenarios = [
        s
        for s in load_scenarios(shipped_directory())
        if not {"nightly", "conditions"} & set(s.tags)
    ]
    cases = [case for scenario in scenarios for case in expand(scenario) if case.system == SPACE.op]
    runs = (
        EngineTarget(case).run(Poison("zeros", frozenset()))
        for case in cases
        if not EngineTarget.why_not(case)
    )
    return [point for run in runs for point in run.shown.get(key_of(SPACE), ())]


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit("usage: python -m trust.arrays.write_engine_conditions NUMBER_OF_CASES")
    kept, met = covering_calls(
        SPACE,
        engine_case,
        show,
        cost,
        triples=0.9,
        seed=SPACE.op,
        most=int(sys.argv[1]),
        known=others(),
        serve=serve_really,
    )
    print(document(kept, met), end="")
