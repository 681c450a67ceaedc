"""Kernels in captured graphs and in repeated launches: right ones pass, and each kind of wrong one
is seen.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import ORACLES
from harness.core.kernels import KernelSpec
from harness.evidence.records import Evidence, Run
from harness.judge.targets.kernel import KernelTarget
from harness.kernels.call import keeping_output_sites
from tests.transcripts import Approved

Wrapped = Any


def case(**params: Any) -> Case:
    given = {
        "kernel": "tiled",
        "num_heads": 2,
        "seq_lens": (3, 0, 65, 130),
        "planned": False,
        **params,
    }
    return Case(id="case", scenario="s", system="kernel", op="mla_decode", params=given, seed=3)


def run(**params: Any) -> Run:
    with keeping_output_sites():  # as in a job
        return KernelTarget(case(**params)).run(
            Poison("nan", frozenset({"output", "lse", "kv.tail", "workspace"}))
        )


def messages(oracle: str, found: Run) -> list[str]:
    judgement = ORACLES.get(oracle).judge(Evidence(case(), [found]))
    assert judgement.looked_at > 0
    return [finding.message for finding in judgement.findings]


@contextmanager
def replaced(wrapper: Wrapped) -> Iterator[None]:
    """Launch `wrapper(kernel, *args)` in place of each kernel of mla_decode."""
    load = KernelSpec.load

    def wrapped(spec: KernelSpec) -> Any:
        kernel = load(spec)
        return (
            functools.wraps(kernel)(functools.partial(wrapper, kernel))
            if spec.op == "mla_decode"
            else kernel
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelSpec, "load", wrapped)
        yield


@pytest.mark.parametrize("kernel", ["tiled", "tiled-multiply", "tiled-counted", "tiled-prefetch"])
def test_kernels_that_read_their_inputs_in_each_replay_are_right(kernel: str) -> None:
    found = run(kernel=kernel, graph="full", launches=3, planned=True)
    assert found.error is None
    assert [
        messages(oracle, found) for oracle in ("replay", "repeats", "reference", "sentinel")
    ] == [[]] * 4


@pytest.fixture
def equal_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls with other values in between, for wrappers that count calls."""
    monkeypatch.setattr(KernelTarget, "_call_with_other_values", lambda *args: None)


@pytest.mark.usefixtures("equal_values")
def test_a_graph_with_the_lengths_of_its_capture_is_seen(approved: Approved) -> None:
    kept: list[torch.Tensor] = []

    def lengths_of_the_capture(
        function: Any, q: Any, cache: Any, table: Any, seq_lens: Any, **keywords: Any
    ) -> Any:
        # The second call is the capture; the graph then reads the copy.
        if len(kept) < 2:
            kept.append(seq_lens.clone())
        return function(q, cache, table, kept[-1], **keywords)

    with replaced(lengths_of_the_capture):
        found = run(graph="full")
    approved(messages("reference", found)[0])


def test_a_replay_that_differs_from_the_eager_call_is_seen() -> None:
    calls: list[int] = []

    def grows(function: Any, *args: Any, **keywords: Any) -> Any:
        calls.append(len(calls))
        out, lse = function(*args, **keywords)
        return out + calls[-1] / 4, lse

    with replaced(grows):
        found = run(graph="full")
    assert "eagerly" in messages("replay", found)[0]


@pytest.mark.usefixtures("equal_values")
def test_a_launch_with_other_bits_is_seen() -> None:
    calls: list[int] = []

    def drifts(function: Any, *args: Any, **keywords: Any) -> Any:
        calls.append(len(calls))
        out, lse = function(*args, **keywords)
        return (out + out.abs().amax() * 2**-8 if len(calls) > 2 else out), lse

    with replaced(drifts):
        found = run(launches=4)
    assert messages("repeats", found)[0].startswith("out of launch ")
    assert "the first launch" in messages("repeats", found)[0]


@pytest.mark.parametrize("entries", ["filled", "zero", "out_of_range"])
def test_entries_past_the_pages_of_a_request_are_as_the_case_says(entries: str) -> None:
    seen: list[torch.Tensor] = []

    def looks(function: Any, q: Any, cache: Any, table: Any, seq_lens: Any, **keywords: Any) -> Any:
        seen.append(table.clone())
        return function(q, cache, table, seq_lens, **keywords)

    with replaced(looks):
        torch.set_num_threads(1)
        target = KernelTarget(case(table_entries=entries))
        assert target.run(Poison("nan", frozenset({"block_table.pad"}))).error is None
    spare, blocks = int(seen[0][1, -1]), 1 + 6 + 4 + 1
    assert {"filled": spare == blocks - 1, "zero": spare == 0, "out_of_range": spare >= blocks}[
        entries
    ]


def test_a_scale_of_the_call_before_is_seen() -> None:
    kept: list[torch.Tensor] = []

    def of_the_call_before(function: Any, q: Any, *args: Any, **keywords: Any) -> Any:
        kept.append(q.abs().amax())
        # A scale that is computed once a call too late: right as long as the values stay the same.
        return function(q * (kept[-1] / kept[max(len(kept) - 2, 0)]), *args, **keywords)

    with replaced(of_the_call_before):
        found = run(launches=3)
    assert messages("reference", found)
