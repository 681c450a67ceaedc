"""The six bugs in four real releases, on a CPU.

Needs their folders: MLA_HARNESS_VLLM_SITES, as tox sets it.
"""

from __future__ import annotations

from adapters.shared.tests.releases import bisected

RELEASES = ("0.21.0", "0.22.1", "0.24.0", "0.33.0")
AS_RELEASED = {
    "vllm-host-batch-order[runner=v1,chunk=longer]": ("pass", "pass", "pass", "pass"),
    "vllm-host-batch-order[runner=v1,chunk=shorter]": ("pass", "pass", "pass", "pass"),
    "vllm-host-batch-order[runner=v2,chunk=longer]": (
        "known reference",
        "known reference",
        "known reference",
        "pass",
    ),
    "vllm-host-batch-order[runner=v2,chunk=shorter]": ("pass", "pass", "pass", "pass"),
    "vllm-host-compressed-metadata[metadata=window]": ("pass", "pass", "pass", "pass"),
    "vllm-host-compressed-metadata[metadata=drafts]": ("skip", "skip", "skip", "pass"),
    "vllm-host-compressed-metadata[metadata=compressed]": ("pass", "pass", "pass", "pass"),
    "vllm-host-compressed-metadata[metadata=states]": ("pass", "pass", "pass", "pass"),
    "vllm-host-context-parallel[search=lengths]": ("pass", "pass", "pass", "pass"),
    "vllm-host-context-parallel[search=drafts]": (
        "known reference",
        "known reference",
        "known reference",
        "pass",
    ),
    "vllm-host-context-parallel[search=slots]": ("pass", "pass", "pass", "pass"),
    "vllm-host-context-parallel[search=chunks]": (
        "known reference",
        "known reference",
        "known reference",
        "pass",
    ),
    "vllm-host-context-parallel[search=partition]": ("skip", "skip", "skip", "pass"),
    "vllm-host-decode-plan": ("pass", "pass", "pass", "pass"),
    "vllm-host-drafter-tokens[prepares=padded]": ("known reference",) * 4,
    "vllm-host-drafter-tokens[prepares=listed]": ("pass",) * 4,
    "vllm-host-drafter-tokens[prepares=second]": ("pass",) * 4,
    "vllm-host-graph-capture": ("known replay", "pass", "pass", "pass"),
    "vllm-host-grammar-rows": ("pass", "pass", "pass", "pass"),
    "vllm-host-in-flight[happens=preempt,drafts=0]": (*("known conserved",) * 3, "pass"),
    "vllm-host-in-flight[happens=preempt,drafts=2]": (*("known conserved",) * 3, "pass"),
    "vllm-host-in-flight[happens=abort,drafts=0]": (*("known conserved",) * 3, "pass"),
    "vllm-host-in-flight[happens=abort,drafts=2]": (*("known conserved",) * 3, "pass"),
    "vllm-host-in-flight[happens=reset,drafts=2]": (*("known conserved",) * 3, "pass"),
    "vllm-host-indexer-records[writer=plain]": ("pass", "pass", "pass", "pass"),
    "vllm-host-indexer-records[writer=fused]": (
        "known reference",
        "known reference",
        "known reference",
        "pass",
    ),
    "vllm-host-idle-rows[idle=drafter]": ("skip", "skip", "known sentinel", "pass"),
    "vllm-host-idle-rows[idle=target]": (
        "known sentinel",
        "known sentinel",
        "known sentinel",
        "pass",
    ),
    "vllm-host-kv-handoff[hybrid=false,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-handoff[hybrid=false,transport=fails]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-handoff[hybrid=true,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-handoff[hybrid=true,transport=fails]": (
        "known landed",
        "known landed",
        "known landed",
        "pass",
    ),
    "vllm-host-kv-groups[connector=simple,overlapped=false]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-groups[connector=simple,overlapped=true]": (
        "known landed",
        "known landed",
        "pass",
        "pass",
    ),
    "vllm-host-kv-groups[connector=offloading,overlapped=false]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-groups[connector=offloading,overlapped=true]": (
        "known landed",
        "known landed",
        "pass",
        "pass",
    ),
    "vllm-host-kv-sidecars[sidecar=index,connector=simple,overlapped=false]": ("pass",) * 4,
    "vllm-host-kv-sidecars[sidecar=index,connector=simple,overlapped=true]": (
        *("known landed",) * 2,
        "pass",
        "pass",
    ),
    "vllm-host-kv-sidecars[sidecar=index,connector=offloading,overlapped=false]": ("pass",) * 4,
    "vllm-host-kv-sidecars[sidecar=index,connector=offloading,overlapped=true]": (
        "known landed",
        "known landed",
        "pass",
        "pass",
    ),
    "vllm-host-kv-sidecars[sidecar=state,connector=simple,overlapped=false]": (
        "skip",
        "skip",
        "known landed",
        "pass",
    ),
    "vllm-host-kv-sidecars[sidecar=state,connector=simple,overlapped=true]": (
        "skip",
        "skip",
        "known landed",
        "pass",
    ),
    "vllm-host-kv-sidecars[sidecar=state,connector=offloading,overlapped=false]": (
        "skip",
        "skip",
        "known landed",
        "pass",
    ),
    "vllm-host-kv-sidecars[sidecar=state,connector=offloading,overlapped=true]": (
        "skip",
        "skip",
        "known landed",
        "pass",
    ),
    "vllm-host-kv-handoff-sidecars[moves=nixl-index]": ("pass",) * 4,
    "vllm-host-kv-handoff-sidecars[moves=mooncake-index]": ("pass",) * 4,
    "vllm-host-kv-handoff-sidecars[moves=mooncake-state]": ("skip", "skip", "skip", "pass"),
    "vllm-host-kv-moves[connector=simple,overlapped=false]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-moves[connector=simple,overlapped=true]": (
        "known landed",
        "known landed",
        "pass",
        "pass",
    ),
    "vllm-host-kv-moves[connector=offloading,overlapped=false]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-moves[connector=offloading,overlapped=true]": (
        "known landed",
        "known landed",
        "pass",
        "pass",
    ),
    "vllm-host-kv-mooncake[hybrid=false,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=false,transport=fails]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=true,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=true,transport=fails]": ("pass", "pass", "pass", "pass"),
    "vllm-host-new-blocks": ("known finite", "known finite", "pass", "pass"),
    "vllm-host-padded-decode[amax=per_tensor]": (
        "known finite",
        "known finite",
        "known finite",
        "known finite",
    ),
    "vllm-host-padded-decode[amax=per_token]": ("pass", "pass", "pass", "pass"),
    "vllm-host-padded-experts[runner=v1,amax=per_tensor]": ("pass", "pass", "pass", "known finite"),
    "vllm-host-padded-experts[runner=v1,amax=per_token]": ("pass", "pass", "pass", "pass"),
    "vllm-host-padded-experts[runner=v2,amax=per_tensor]": ("pass", "pass", "pass", "known finite"),
    "vllm-host-padded-experts[runner=v2,amax=per_token]": ("pass", "pass", "pass", "pass"),
    "vllm-host-prefill-merge": ("pass", "pass", "pass", "pass"),
}
OWN, CAUGHT = "as released", "caught"
INJECTED = {
    "vllm-host-batch-order[runner=v2,chunk=longer] with vllm.context-for-first-rows": (
        OWN,
        OWN,
        OWN,
        CAUGHT,
    ),
    "vllm-host-compressed-metadata[metadata=compressed] with vllm.state-rows-of-batch-width": (
        *("skip",) * 3,
        CAUGHT,
    ),
    "vllm-host-compressed-metadata[metadata=states] with vllm.states-skipped-by-upper-bound": (
        *("skip",) * 3,
        CAUGHT,
    ),
    "vllm-host-context-parallel[search=drafts] with vllm.drafts-without-own-key": (CAUGHT,) * 4,
    "vllm-host-context-parallel[search=drafts] with vllm.drafts-of-padded-rows": (
        OWN,
        OWN,
        OWN,
        CAUGHT,
    ),
    "vllm-host-context-parallel[search=partition] with vllm.unpadded-blocks": (
        "skip",
        "skip",
        "skip",
        CAUGHT,
    ),
    "vllm-host-decode-plan with vllm.fresh-plan-each-step": (CAUGHT,) * 4,
    "vllm-host-drafter-tokens[prepares=listed] with vllm.prompt-end-behind-chunk": (CAUGHT,) * 4,
    "vllm-host-drafter-tokens[prepares=second] with vllm.sampled-token-behind-chunk": (CAUGHT,) * 4,
    "vllm-host-grammar-rows with vllm.grammar-rows-of-kept-drafts": (
        "skip",
        "skip",
        "skip",
        CAUGHT,
    ),
    "vllm-host-in-flight[happens=preempt,drafts=2] with vllm.output-of-preempted-counted": (
        OWN,
        OWN,
        OWN,
        CAUGHT,
    ),
    "vllm-host-in-flight[happens=abort,drafts=2] with vllm.resumed-before-its-output": (
        OWN,
        OWN,
        OWN,
        CAUGHT,
    ),
    "vllm-host-in-flight[happens=reset,drafts=2] with vllm.dropped-output-delivered": (
        OWN,
        OWN,
        OWN,
        CAUGHT,
    ),
    "vllm-host-graph-capture with vllm.plan-in-warmup-only": (OWN, CAUGHT, CAUGHT, CAUGHT),
    "vllm-host-idle-rows[idle=drafter] with vllm.dummy-drafts-by-slot": (OWN, OWN, OWN, CAUGHT),
    "vllm-host-idle-rows[idle=target] with vllm.dummy-rows-of-last-step": (OWN, OWN, OWN, CAUGHT),
    "vllm-host-kv-groups[connector=offloading,overlapped=false] with vllm.load-of-first-group": (
        (CAUGHT,) * 4
    ),
    "vllm-host-kv-sidecars[sidecar=index,connector=offloading,overlapped=false] with vllm.index-left-on-device": (  # noqa: E501
        (CAUGHT,) * 4
    ),
    "vllm-host-kv-sidecars[sidecar=state,connector=offloading,overlapped=false] with vllm.states-left-on-device": (  # noqa: E501
        *("skip",) * 3,
        CAUGHT,
    ),
    "vllm-host-kv-moves[connector=simple,overlapped=true] with vllm.store-before-write": (
        OWN,
        OWN,
        CAUGHT,
        CAUGHT,
    ),
    "vllm-host-kv-moves[connector=simple,overlapped=true] with vllm.load-over-readers": (
        OWN,
        OWN,
        CAUGHT,
        CAUGHT,
    ),
    "vllm-host-kv-mooncake[hybrid=false,transport=fails] with vllm.failed-write-as-finished": (
        (CAUGHT,) * 4
    ),
    "vllm-host-new-blocks with vllm.skip-zero-new-blocks": (OWN, OWN, CAUGHT, CAUGHT),
    "vllm-host-prefill-merge with vllm.merge-ignore-context-count": (CAUGHT,) * 4,
}


def test_each_bug_shows_on_the_release_that_has_it_and_not_on_the_one_that_does_not() -> None:
    rows = bisected("vllm", "vLLM", RELEASES)
    cells = {row["name"]: tuple(row["cells"]) for row in rows}
    assert {name: cells[name] for name in AS_RELEASED} == AS_RELEASED
    shortened = {
        name: tuple(cell.replace("caught ", "caught:").split(":")[0] for cell in cells[name])
        for name in INJECTED
    }
    assert shortened == INJECTED
