"""Plants bugs in the engine's scheduler, block pool, batch and sampler, and shows what catches
each: docs/data/sequences.md.

python tests/judge/planted_sequences.py LOG > docs/data/sequences.md

LOG keeps the results, so that a run that was stopped goes on.

Each bug is a change of the text of one function, made in memory. `PLANTED` names for each the case
that shows it. The page compares two suites: the cases of sequences with all oracles, and all cases
of the engine that there were before, without the oracles `tokens` and `conserved`. A case in which
a bug changes nothing is not run again.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job
from harness.core.records import FAILED
from harness.judge.probes.notes import Notes
from harness.judge.run_case import run_case
from harness.judge.targets.engine import EngineTarget
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory

BEFORE = """activation-scales batch-order-noise context-merge cudagraph-padding decode-plans dummy-steps
empty-context-chunks expert-routing fp8-decode-graphs fuzz graph-memory kv-cache-full mixed-context mrv2-capture
padded-block-table padded-requests prefix-cache shared-graph-pool shared-pools sparse-decode verify-rows warm-context
window-decode wrong-accusations"""  # noqa: E501
"""The scenarios with cases of the engine before there were scenarios of sequences."""
MOST = 60
"""A bug that can change something in more cases of the suite before is not tried on them."""
MISSED = re.compile(r"no case \(\d+ run\)")
NEW_ORACLES = ("tokens", "conserved", "policy")
SCHEDULER, POOL = "harness.engine.schedule.scheduler:", "harness.engine.schedule.block_pool:"
SEQUENCE = "harness.engine.schedule.sequence:"
BATCH, ENGINE, SAMPLER = (
    "harness.engine.batch:",
    "harness.engine.engine:",
    "harness.engine.speculation:",
)


@dataclass(frozen=True)
class Planted:
    """A bug: in the function at `place`, `old` is replaced by `new`.

    `shown_by` is a case that catches it.

    `where` is an expression in the function: the bug changes nothing in a run in which it is never
    true.
    """

    name: str
    place: str
    old: str
    new: str
    shown_by: str
    where: str = "True"

    @property
    def part(self) -> str:
        return {
            SCHEDULER: "scheduler",
            SEQUENCE: "scheduler",
            POOL: "block pool",
            BATCH: "batch",
        }.get(self.module + ":", "sampler")

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]


PLANTED = (
    # Preemption.
    Planted(
        "preempted-keeps-computed-tokens",
        SCHEDULER + "Scheduler._start_over",
        "sequence.num_computed_tokens = sequence.num_shared_tokens = 0",
        "sequence.num_shared_tokens = 0",
        "preempted-phases[phase=page_end]",
        where="sequence.num_computed_tokens > 0",
    ),
    Planted(
        "preempted-keeps-its-table",
        SCHEDULER + "Scheduler._release",
        "sequence.blocks = []",
        "pass",
        "preempted-phases[phase=page_end]",
        where="not sequence.is_finished and bool(sequence.blocks)",
    ),
    Planted(
        "preempted-keeps-its-state",
        SCHEDULER + "Scheduler._release",
        "sequence.state_block = None",
        "pass",
        "preempted-phases[phase=state]",
        where="not sequence.is_finished and sequence.state_block is not None",
    ),
    Planted(
        "preempted-leaks-its-last-page",
        SCHEDULER + "Scheduler._start_over",
        "self._release(sequence)",
        "sequence.blocks[-1:] = []; self._release(sequence)",
        "preempted-phases[phase=decode]",
        where="bool(sequence.blocks)",
    ),
    Planted(
        "preempted-to-the-back-of-the-queue",
        SCHEDULER + "Scheduler._preempt",
        "self.waiting.appendleft(sequence)",
        "self.waiting.append(sequence)",
        "preempted-phases[phase=queue]",
    ),
    Planted(
        "first-to-arrive-is-preempted",
        SCHEDULER + "Scheduler._schedule_running",
        "queue.pop() if queue",
        "queue.popleft() if queue",
        "preempted-phases[phase=queue]",
        where=(
            "sum(self._blocks_for(s, len(s.tokens) + len(s.drafts)) for s in self.running) > "
            "self.pool.num_free_blocks"
        ),
    ),
    Planted(
        "preempted-keeps-drafts",
        SCHEDULER + "forget_drafts",
        "sequence.drafts = []",
        "pass",
        "preempted-phases[phase=verify]",
        where="bool(sequence.drafts)",
    ),
    Planted(
        "preempted-forgets-its-last-token",
        SCHEDULER + "Scheduler._preempt",
        "self._start_over(sequence)",
        "self._start_over(sequence); sequence.tokens.pop()",
        "preempted-phases[phase=decode]",
    ),
    Planted(
        "preempted-answers-again-from-the-prompt",
        SCHEDULER + "Scheduler._preempt",
        "self._start_over(sequence)",
        "self._start_over(sequence); del sequence.tokens[sequence.num_prompt_tokens :]",
        "preempted-phases[phase=decode]",
    ),
    Planted(
        "preempted-leaves-its-place-taken",
        SCHEDULER + "Scheduler._preempt",
        "self.running.remove(sequence)",
        "pass",
        "preempted-phases[phase=decode]",
    ),
    Planted(
        "preempted-leaks-its-window",
        SCHEDULER + "Scheduler._release",
        "blocks += sequence.window_blocks[sequence.num_evicted_pages :]",
        "blocks += sequence.window_blocks[sequence.num_evicted_pages :] if sequence.is_finished"
        " else []",
        "preempted-requests[model=window,graph=none]",
        where="not sequence.is_finished and bool(sequence.window_blocks)",
    ),
    Planted(
        "last-page-is-never-given",
        SCHEDULER + "Scheduler._fits",
        "<= self.pool.num_free_blocks",
        "< self.pool.num_free_blocks",
        "queued-requests[load=whole_pool]",
        where=(
            "self._blocks_for(sequence, sequence.num_computed_tokens + num_new_tokens) == "
            "self.pool.num_free_blocks"
        ),
    ),
    # Window layers in a tight pool.
    Planted(
        "window-pages-not-reserved",
        SCHEDULER + "Scheduler._blocks_for",
        "pages - len(sequence.window_blocks) if self.window else 0",
        "0",
        "window-pages[num_blocks=13,graph=none]",
        where="self.window > 0",
    ),
    Planted(
        "preempted-keeps-its-evicted-pages",
        SCHEDULER + "Scheduler._release",
        "sequence.num_evicted_pages = 0",
        "pass",
        "window-pages[num_blocks=12,graph=none]",
        where="not sequence.is_finished and sequence.num_evicted_pages > 0",
    ),
    Planted(
        "window-keeps-one-page-more",
        SCHEDULER + "Scheduler._evict",
        "first_visible(sequence, self.window) // PAGE_SIZE",
        "max(first_visible(sequence, self.window) // PAGE_SIZE - 1, 0)",
        "window-pages[num_blocks=12,graph=none]",
        where="self.window > 0",
    ),
    Planted(
        "window-pages-are-not-given-back",
        SCHEDULER + "Scheduler._evict",
        "self._freed += self.pool.free(sequence.window_blocks[first:last])",
        "pass",
        "window-pages[num_blocks=12,graph=full]",
        where="self.window > 0",
    ),
    # Prefixes.
    Planted(
        "prefix-hash-without-parent",
        POOL + "prefixes",
        "parent = hash((parent, tuple(tokens[end - PAGE_SIZE : end])))\n"
        "        yield Prefix(\n"
        "            parent if num_hashes is None else parent % num_hashes,"
        " tuple(tokens[:end]), salt\n"
        "        )",
        "page = tuple(tokens[end - PAGE_SIZE : end])\n        yield Prefix(hash(page), page, salt)",
        "prefix-chains[sequence=other_past]",
    ),
    Planted(
        "prefix-without-its-last-token",
        POOL + "prefixes",
        "hash((parent, tuple(tokens[end - PAGE_SIZE : end])))",
        "hash((parent, tuple((tokens := [*tokens[: end - 1], 0, *tokens[end:]])[end - PAGE_SIZE :"
        " end])))",
        "prefix-chains[sequence=other_last_token]",
    ),
    Planted(
        "hash-not-compared",
        POOL + "is_same_prefix",
        "(held.tokens, held.salt) == (wanted.tokens, wanted.salt)",
        "held.hash == wanted.hash",
        "prefix-chains[sequence=collision]",
    ),
    Planted(
        "length-compared-with-the-hash",
        POOL + "is_same_prefix",
        "(held.tokens, held.salt) == (wanted.tokens, wanted.salt)",
        "len(held.tokens) == len(wanted.tokens)",
        "prefix-chains[sequence=collision]",
    ),
    Planted(
        "entry-survives-eviction",
        POOL + "BlockPool.forget",
        "prefix = self._prefix_of.pop(block, None)",
        "prefix = None",
        "prefix-chains[sequence=a_b_a]",
        where="block in self._prefix_of",
    ),
    Planted(
        "only-the-first-page-is-forgotten",
        POOL + "BlockPool.forget",
        "if prefix is not None:",
        "if prefix is not None and len(prefix.tokens) == 64:",
        "prefix-chains[sequence=a_b_a]",
        where="block in self._prefix_of",
    ),
    Planted(
        "free-list-keeps-a-page",
        POOL + "BlockPool.take",
        "self._free.remove(block)",
        "pass",
        "prefix-chains[sequence=hit_of_next]",
    ),
    Planted(
        "second-copy-replaces-the-entry",
        POOL + "BlockPool.cache",
        "if prefix.hash not in self._block_of and block not in self._prefix_of:",
        "if True:",
        "prefix-chains[sequence=concurrent_evicted]",
    ),
    Planted(
        "shared-page-is-free-with-its-first-owner",
        POOL + "BlockPool.free",
        "self._num_owners[block] -= 1",
        "self._num_owners[block] = 0",
        "prefix-chains[sequence=shared_while_running]",
        where=(
            "(blocks := list(blocks)) and any(self._num_owners.get(block, 0) > 1 for block in"
            " blocks)"
        ),
    ),
    Planted(
        "hit-has-no-owner",
        POOL + "BlockPool.share",
        "self._num_owners.get(block, 0) + 1",
        "max(self._num_owners.get(block, 0), 1)",
        "prefix-chains[sequence=shared_while_running]",
        where="bool(blocks)",
    ),
    Planted(
        "whole-prompt-is-found",
        SCHEDULER + "Scheduler._share_prefix",
        "sequence.tokens[:-1]",
        "sequence.tokens",
        "prefix-chains[sequence=whole_pages]",
        where="self.prefix_caching and len(sequence.tokens) % PAGE_SIZE == 0",
    ),
    Planted(
        "last-token-cached-before-computed",
        SCHEDULER + "Scheduler.finish",
        "sequence.num_computed_tokens",
        "len(sequence.tokens)",
        "prefix-chains[sequence=next_turn]",
        where="self.prefix_caching",
    ),
    # States of linear attention beside the pages of a prefix.
    Planted(
        "state-is-not-copied",
        SCHEDULER + "Scheduler._give_blocks",
        "self._state_copies.append((sequence.state_source, sequence.state_block))",
        "pass",
        "prefix-states[sequence=twice]",
        where="sequence.state_source is not None",
    ),
    Planted(
        "pages-without-a-state",
        SCHEDULER + "Scheduler._share_prefix",
        "self.pool.pages_with_state(wanted, num_shared)",
        "num_shared",
        "prefix-states[sequence=replayed]",
        where="self.needs_state",
    ),
    Planted(
        "state-of-the-page-before",
        POOL + "BlockPool.state_after",
        "state_of(pages[-1])",
        "state_of(pages[-2] if len(pages) > 1 else pages[-1])",
        "prefix-states[sequence=next_turn]",
        where="len(pages) > 1",
    ),
    Planted(
        "kept-state-is-never-free",
        POOL + "BlockPool.keep_state",
        "self.free(given)",
        "pass",
        "prefix-states[sequence=twice]",
    ),
    # Aborts.
    Planted(
        "abort-leaks-pages",
        SCHEDULER + "Scheduler.abort",
        "self.cancel(sequence)",
        "sequence.blocks = []; self.cancel(sequence)",
        "aborted-requests[step=3]",
    ),
    Planted(
        "abort-leaks-the-state",
        SCHEDULER + "Scheduler.abort",
        "self.cancel(sequence)",
        "sequence.state_block = None; self.cancel(sequence)",
        "aborted-requests[step=state]",
    ),
    Planted(
        "abort-leaves-the-request-waiting",
        SCHEDULER + "Scheduler.cancel",
        "queue.remove(sequence)",
        "queue.remove(sequence) if queue is self.running else None",
        "aborted-requests[step=0]",
        where="sequence in self.waiting",
    ),
    Planted(
        "abort-takes-the-last-request",
        SCHEDULER + "Scheduler.cancel",
        "queue.remove(sequence)",
        "queue.pop() if not sequence.is_finished else queue.remove(sequence)",
        "aborted-requests[step=all]",
        where="not sequence.is_finished",
    ),
    # The order and the number of requests.
    Planted(
        "last-to-arrive-is-first",
        SCHEDULER + "Scheduler.add",
        "self.waiting.append(sequence)",
        "self.waiting.appendleft(sequence)",
        "queued-requests[load=one_place]",
    ),
    Planted(
        "one-request-too-many",
        SCHEDULER + "Scheduler._schedule_waiting",
        "len(self.running) < self.max_num_seqs",
        "len(self.running) <= self.max_num_seqs",
        "queued-requests[load=two_places]",
        where="len(self.running) + len(self.waiting) > self.max_num_seqs",
    ),
    Planted(
        "budget-counts-requests",
        SCHEDULER + "Scheduler._add",
        "return num_new_tokens",
        "return 1",
        "queued-requests[load=verify_only]",
    ),
    # Tokens.
    Planted(
        "second-best-token",
        SAMPLER + "greedy_tokens",
        "logits.argmax(dim=-1)",
        "logits.topk(2, dim=-1).indices[:, 1]",
        "queued-requests[load=one_place]",
    ),
    Planted(
        "tokens-of-two-requests-swapped",
        ENGINE + "ReferenceEngine._sample",
        "tokens = greedy_tokens(logits).tolist()",
        "tokens = greedy_tokens(logits).tolist()[::-1]",
        "queued-requests[load=two_places]",
    ),
    Planted(
        "token-of-the-step-before",
        ENGINE + "ReferenceEngine._sample",
        "tokens = greedy_tokens(logits).tolist()",
        "tokens = self.before = (getattr(self, 'before', []) + greedy_tokens(logits).tolist())[:"
        " len(logits)]",
        "queued-requests[load=one_place]",
    ),
    Planted(
        "last-token-missing",
        SCHEDULER + "Sequence.is_finished",
        "self.num_generated_tokens >= self.max_tokens",
        "self.num_generated_tokens >= max(self.max_tokens - 1, 1)",
        "queued-requests[load=one_place]",
    ),
    Planted(
        "one-token-too-many",
        SCHEDULER + "Sequence.is_finished",
        "self.num_generated_tokens >= self.max_tokens",
        "self.num_generated_tokens > self.max_tokens",
        "queued-requests[load=one_place]",
    ),
    # Short prompts beside drafts.
    Planted(
        "one-token-prompt-as-decode",
        SEQUENCE + "is_decode",
        "or sequence.num_computed_tokens == 0",
        "",
        "short-prompts[drafts=state]",
        where="num_new_tokens == sequence.query_len and sequence.num_computed_tokens == 0",
    ),
    Planted(
        "short-prompt-as-verified-rows",
        SEQUENCE + "is_decode",
        "or sequence.num_computed_tokens == 0:\n        return False\n    return sequence.query_len"
        " == 1 or sequence.is_decoding",
        ":\n        return False\n    return True",
        "short-prompts[drafts=two]",
        where="num_new_tokens == sequence.query_len > 1 and not sequence.is_decoding",
    ),
    Planted(
        "chunk-as-verified-rows",
        SEQUENCE + "is_decode",
        "sequence.query_len == 1 or sequence.is_decoding",
        "True",
        "short-prompts[drafts=chunks]",
        where="num_new_tokens == sequence.query_len > 1 and not sequence.is_decoding",
    ),
    Planted(
        "verified-rows-by-length",
        BATCH + "order",
        "decodes + prompts_in_order([item for item in scheduled if not item.is_decode])",
        "sorted(scheduled, key=lambda item: (item.num_new_tokens > 1,"
        " -item.sequence.num_computed_tokens))",
        "short-prompts[drafts=two]",
        where=(
            "any(i.is_decode and i.num_new_tokens > 1 for i in scheduled) and any(not i.is_decode"
            " for i in scheduled)"
        ),
    ),
)


@contextlib.contextmanager
def plant(bug: Planted) -> Iterator[None]:
    """Change the function of `bug` for the length of the block.

    Raises ValueError if its text is another.
    """
    text = source_of(bug.place)
    if text.count(bug.old) != 1:
        raise ValueError(
            f"{bug.name}: {bug.old!r} is there {text.count(bug.old)} times in {bug.place}"
        )
    with changed(bug.place, ast.parse(text.replace(bug.old, bug.new))):
        yield


def source_of(place: str) -> str:
    """The text of the function at "module:name", without its decorators."""
    lines = textwrap.dedent(inspect.getsource(function_of(place))).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("def "))
    return "from __future__ import annotations\n" + "\n".join(lines[start:])


@contextlib.contextmanager
def changed(place: str, tree: ast.Module) -> Iterator[None]:
    """Run the code of `tree` in the function at `place`, for the length of the block."""
    function = function_of(place)
    code = compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec")
    before = function.__code__
    function.__code__ = next(
        c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == function.__name__
    )
    try:
        yield
    finally:
        function.__code__ = before


def function_of(place: str) -> FunctionType:
    """The function at "module:name", behind seams and properties."""
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = vars(found)[part]
    found = getattr(found, "fget", None) or found
    return inspect.unwrap(found)


def cases() -> tuple[dict[str, Case], list[Case]]:
    """The cases of sequences by id, and the cases of the engine before them."""
    after: dict[str, Case] = {}
    before: list[Case] = []
    for scenario in load_scenarios(shipped_directory()):
        found = [case for case in expand(scenario) if case.system == "engine"]
        if "sequences" in scenario.tags or scenario.name == "preempted-requests":
            after |= {case.id: case for case in found if scenario.fuzz is None}
        elif scenario.name in BEFORE.split():
            before += found
    return after, before


def catchers(case: Case) -> list[str]:
    """The oracles that fail a case, the most telling one first; `error` if the harness itself
    stumbles.
    """
    result = run_case(Job(key="job", case=case))
    if result.verdict in FAILED:
        return list(dict.fromkeys(finding.oracle for finding in result.findings)) or ["crash"]
    return ["error"] if result.verdict.value == "error" else []


def caught_before(case: Case) -> str:
    """What caught a bug in a case of the suite before: an oracle of then, an error, or a run
    without an end.
    """
    found = catchers(case)
    if old := [name for name in found if name not in NEW_ORACLES]:
        return old[0]
    tensors = (
        {str(finding.tensor) for finding in run_case(Job(key="job", case=case)).findings}
        if found
        else set()
    )
    if "requests that did not end" in tensors:
        return "timeout"
    return "error" if any(name.startswith("rows of logits") for name in tensors) else ""


def calls(every: list[Case]) -> dict[str, set[str]]:
    """Case -> the names of the bugs that change something in it."""
    seen: set[str] = set()
    found = {}
    with contextlib.ExitStack() as stack:
        for place in {bug.place for bug in PLANTED}:
            function_of(place).__globals__["_called"] = seen
            tree = ast.parse(source_of(place))
            (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
            here = [bug for bug in PLANTED if bug.place == place]
            notes = "\n".join(f"if {bug.where}: _called.add({bug.name!r})" for bug in here)
            function.body[:0] = ast.parse(notes).body
            stack.enter_context(changed(place, tree))
        for case in every:
            seen.clear()
            # Requests are scheduled alike with graphs and without.
            params = case.params.model_copy(update={"graph": "none"})
            poison = Poison("zeros", frozenset())
            EngineTarget(case.model_copy(update={"params": params}))._serve(
                poison, Notes(params, poison)
            )
            found[case.id] = set(seen)
    return found


def shown(text: str) -> str:
    """Text of a function on one line."""
    return " ".join(text.split())


def tried(log: Path) -> dict[str, dict[str, str]]:
    """Name -> what catches a bug today and what caught it before.

    Bugs that `log` has are not tried again.
    """
    results = (
        {one["name"]: one for one in map(json.loads, log.read_text().splitlines())}
        if log.exists()
        else {}
    )
    left = [bug for bug in PLANTED if bug.name not in results]
    after, before = cases()
    called = calls(before) if left else {}
    for bug in sorted(left, key=lambda bug: sum(bug.name in names for names in called.values())):
        with plant(bug):
            own = [case for case in after.values() if case.scenario == after[bug.shown_by].scenario]
            today = Counter(found[0] for case in own if (found := catchers(case)))
            reached = [case for case in before if bug.name in called[case.id]]
            is_run = len(reached) <= MOST
            then = next(
                ((case.id, found) for case in reached if is_run and (found := caught_before(case))),
                None,
            )
        results[bug.name] = {
            "name": bug.name,
            "today": (
                ", ".join(f"{name} ({count})" for name, count in today.most_common())
                or "NOT CAUGHT"
            ),
            "before": (
                f"{then[1]} in `{then[0]}`"
                if then
                else f"no case ({len(reached)} {'' if is_run else 'not '}run)"
            ),
        }
        with log.open("a") as stream:
            print(json.dumps(results[bug.name]), file=stream)
    return results


def page(log: Path) -> str:
    """The page of all planted bugs: what catches each today, and what caught it before."""
    results, (after, before) = tried(log), cases()
    head = "| part | bug | change | scenario | caught by | before |"
    rows = []
    for bug in PLANTED:
        found, scenario = results[bug.name], bug.shown_by.partition("[")[0]
        change = f"`{shown(bug.old)}` → `{shown(bug.new) or 'nothing'}`"
        row = (bug.part, f"`{bug.name}`", change, f"`{scenario}`", found["today"], found["before"])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    caught = [found for found in results.values() if found["today"] != "NOT CAUGHT"]
    missed = [found for found in caught if MISSED.search(found["before"])]
    return f"""# Sequences of requests

A record, for whoever asks how much a green says ([how it is tested](../how-it-is-tested.md#sequences-of-requests)). Written by `python tests/judge/planted_sequences.py LOG`.

{len(PLANTED)} bugs were planted one by one in the scheduler, the block pool, the batch and the sampler of the engine.
The {len(after)} cases of sequences caught {len(caught)} of them. The suite before them, {len(before)} cases of the
engine without the oracles {", ".join(f"`{name}`" for name in NEW_ORACLES)}, missed {len(missed)}: a number before
"run" is the number of its cases in which the bug can change something. Bugs for which there are more than {MOST} were
not tried on them, and cases of accuracy are not among them. A number behind an oracle is the number of cases of the
scenario in which it was the first to tell.

{head}
|{" --- |" * 6}
{chr(10).join(rows)}"""  # noqa: E501


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(page(Path(sys.argv[1])))
