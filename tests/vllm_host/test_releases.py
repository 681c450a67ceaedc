"""The six bugs in four real releases, on a CPU. Needs their folders: MLA_HARNESS_VLLM_SITES, as tox sets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RELEASES = ("0.21.0", "0.22.1", "0.24.0", "0.33.0")
AS_RELEASED = {
    "vllm-host-batch-order[runner=v1,chunk=longer]": ("pass", "pass", "pass", "pass"),
    "vllm-host-batch-order[runner=v1,chunk=shorter]": ("pass", "pass", "pass", "pass"),
    "vllm-host-batch-order[runner=v2,chunk=longer]": ("known reference", "known reference", "known reference", "pass"),
    "vllm-host-batch-order[runner=v2,chunk=shorter]": ("pass", "pass", "pass", "pass"),
    "vllm-host-context-parallel[search=lengths]": ("pass", "pass", "pass", "pass"),
    "vllm-host-context-parallel[search=drafts]": ("known reference", "known reference", "known reference", "pass"),
    "vllm-host-context-parallel[search=slots]": ("pass", "pass", "pass", "pass"),
    "vllm-host-context-parallel[search=chunks]": ("known reference", "known reference", "known reference", "pass"),
    "vllm-host-context-parallel[search=partition]": ("ERROR", "ERROR", "ERROR", "pass"),
    "vllm-host-decode-plan": ("pass", "pass", "pass", "pass"),
    "vllm-host-graph-capture": ("known replay", "pass", "pass", "pass"),
    "vllm-host-indexer-records[writer=plain]": ("pass", "pass", "pass", "pass"),
    "vllm-host-indexer-records[writer=fused]": ("known reference", "known reference", "known reference", "pass"),
    "vllm-host-idle-rows[idle=drafter]": ("ERROR", "ERROR", "known sentinel", "pass"),
    "vllm-host-idle-rows[idle=target]": ("known sentinel", "known sentinel", "known sentinel", "pass"),
    "vllm-host-kv-handoff[hybrid=false,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-handoff[hybrid=false,transport=fails]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-handoff[hybrid=true,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-handoff[hybrid=true,transport=fails]": ("known landed", "known landed", "known landed", "pass"),
    "vllm-host-kv-moves[connector=simple,overlapped=false]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-moves[connector=simple,overlapped=true]": ("known landed", "known landed", "pass", "pass"),
    "vllm-host-kv-moves[connector=offloading,overlapped=false]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-moves[connector=offloading,overlapped=true]": ("known landed", "known landed", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=false,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=false,transport=fails]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=true,transport=right]": ("pass", "pass", "pass", "pass"),
    "vllm-host-kv-mooncake[hybrid=true,transport=fails]": ("pass", "pass", "pass", "pass"),
    "vllm-host-new-blocks": ("known finite", "known finite", "pass", "pass"),
    "vllm-host-padded-decode[amax=per_tensor]": ("known finite", "known finite", "known finite", "known finite"),
    "vllm-host-padded-decode[amax=per_token]": ("pass", "pass", "pass", "pass"),
    "vllm-host-padded-experts[runner=v1,amax=per_tensor]": ("pass", "pass", "pass", "known finite"),
    "vllm-host-padded-experts[runner=v1,amax=per_token]": ("pass", "pass", "pass", "pass"),
    "vllm-host-padded-experts[runner=v2,amax=per_tensor]": ("pass", "pass", "pass", "known finite"),
    "vllm-host-padded-experts[runner=v2,amax=per_token]": ("pass", "pass", "pass", "pass"),
    "vllm-host-prefill-merge": ("pass", "pass", "pass", "pass"),
}
INJECTED = {
    "vllm-host-batch-order[runner=v2,chunk=longer] with vllm.context-for-first-rows": (
        "as released",
        "as released",
        "as released",
        "caught",
    ),
    "vllm-host-context-parallel[search=drafts] with vllm.drafts-without-own-key": (
        "caught",
        "caught",
        "caught",
        "caught",
    ),
    "vllm-host-context-parallel[search=drafts] with vllm.drafts-of-padded-rows": (
        "as released",
        "as released",
        "as released",
        "caught",
    ),
    "vllm-host-context-parallel[search=partition] with vllm.unpadded-blocks": ("skip", "skip", "skip", "caught"),
    "vllm-host-decode-plan with vllm.fresh-plan-each-step": ("caught", "caught", "caught", "caught"),
    "vllm-host-graph-capture with vllm.plan-in-warmup-only": ("as released", "caught", "caught", "caught"),
    "vllm-host-idle-rows[idle=drafter] with vllm.dummy-drafts-by-slot": (
        "as released",
        "as released",
        "as released",
        "caught",
    ),
    "vllm-host-idle-rows[idle=target] with vllm.dummy-rows-of-last-step": (
        "as released",
        "as released",
        "as released",
        "caught",
    ),
    "vllm-host-kv-moves[connector=simple,overlapped=true] with vllm.store-before-write": (
        "as released",
        "as released",
        "caught",
        "caught",
    ),
    "vllm-host-kv-moves[connector=simple,overlapped=true] with vllm.load-over-readers": (
        "as released",
        "as released",
        "caught",
        "caught",
    ),
    "vllm-host-kv-mooncake[hybrid=false,transport=fails] with vllm.failed-write-as-finished": (
        "caught",
        "caught",
        "caught",
        "caught",
    ),
    "vllm-host-new-blocks with vllm.skip-zero-new-blocks": ("as released", "as released", "caught", "caught"),
    "vllm-host-prefill-merge with vllm.merge-ignore-context-count": ("caught", "caught", "caught", "caught"),
}


def test_each_bug_shows_on_the_release_that_has_it_and_not_on_the_one_that_does_not() -> None:
    root = os.environ.get("MLA_HARNESS_VLLM_SITES")
    if not root:
        pytest.skip("MLA_HARNESS_VLLM_SITES names no folder: make one with harness.engines.download")
    sites = [Path(root) / f"vllm-{release}" for release in RELEASES]
    missing = [str(site) for site in sites if not (site / "vllm").is_dir()]
    if missing:
        pytest.skip(f"{missing[0]} is not there: make it with harness.engines.download")
    command = [sys.executable, "-m", "harness.cli.main", "bisect", "vllm-host", "--faults", "--json"]
    done = subprocess.run(
        [*command, *(word for site in sites for word in ("--site", str(site)))], capture_output=True, text=True
    )
    print(done.stderr)
    # Parts that a release has not are errors, which the cells below name.
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert [column["label"] for column in told["columns"]] == [f"vLLM {release}" for release in RELEASES]
    for column, site in zip(told["columns"], sites, strict=True):
        assert column["environment"]["engine_paths"]["vllm"] == str(site.resolve() / "vllm")
    cells = {row["name"]: tuple(row["cells"]) for row in told["rows"]}
    assert {name: cells[name] for name in AS_RELEASED} == AS_RELEASED
    shortened = {
        name: tuple(cell.replace("caught ", "caught:").split(":")[0] for cell in cells[name]) for name in INJECTED
    }
    assert shortened == INJECTED
