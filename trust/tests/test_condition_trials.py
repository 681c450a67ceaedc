"""`mutants --conditions`: kernels that are wrong under a combination of conditions, and what a run
sees of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.cases import Job
from harness.core.conditions.table import SPACES, space_for
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.ops.context_attention import inputs as context_attention_inputs
from harness.ops.context_attention.kernels.dense import context_attention
from harness.ops.context_attention.params import ContextAttentionParams
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.kernels.tiled import mla_decode
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from trust.arrays import op_condition_errors as op_errors
from trust.arrays.condition_errors import ERRORS, with_error
from trust.arrays.condition_trials import Trial, attempt, drawn
from trust.mutants.trials import run
from trust.verdict_loop import KERNELS

Cli = Callable[..., tuple[int, str, str]]
SMALL = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "num_heads": 2, "kv": "fp32"}


def jobs_of(name: str) -> list[Job]:
    (scenario,) = (s for s in load_scenarios(shipped_directory()) if s.name == name)
    return [Job(key=case.id, case=case) for case in expand(scenario)]


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are right again after the test."""
    monkeypatch.setattr(KernelSpec, "load", KernelSpec.load)


@pytest.mark.parametrize("kind", ERRORS["mla_decode"])
def test_each_error_changes_its_requests_and_no_other(kind: str) -> None:
    made = mla_decode_inputs.draw(
        MlaDecodeParams.model_validate(SMALL | {"seq_lens": [70, 90, 130]}), 3
    )
    arguments = {
        "q": made.q,
        "kv_cache": made.kv_cache,
        "block_table": made.block_table,
        "seq_lens": made.seq_lens,
    }
    right = mla_decode(**arguments, scale=made.scale)[0]
    found = with_error(
        mla_decode, arguments | {"scale": made.scale}, [1], ERRORS["mla_decode"][kind], False, {}
    )[0]
    assert torch.equal(found[[0, 2]], right[[0, 2]])
    assert not torch.allclose(found[1], right[1], rtol=1e-3)


@pytest.mark.parametrize("kind", op_errors.ERRORS["context_attention"])
def test_each_error_of_another_op_changes_its_requests_and_no_other(kind: str) -> None:
    given = {
        "query_lens": [3, 2, 4],
        "context_lens": [5, 9, 70],
        "num_heads": 2,
        "qk_head_dim": 24,
        "v_head_dim": 16,
    }
    made = context_attention_inputs.draw(ContextAttentionParams.model_validate(given), 3)
    names = (*OPS.get("context_attention").positional, "scale")
    arguments = {name: getattr(made, name) for name in names}
    right = context_attention(**arguments)[0]
    error = op_errors.ERRORS["context_attention"][kind]
    found = op_errors.with_error(
        "context_attention", context_attention, arguments, [1], error, False
    )[0]
    assert torch.equal(found[:3], right[:3]) and torch.equal(found[5:], right[5:])
    assert not torch.allclose(found[3:5], right[3:5], rtol=1e-3)


@pytest.mark.parametrize("op", op_errors.ERRORS)
def test_each_op_has_errors_and_an_array_of_calls(op: str) -> None:
    assert len(op_errors.ERRORS[op]) >= 3 and op in SPACES


@pytest.mark.parametrize(
    ("combination", "status"),
    [
        ((("end", "whole"), ("tokens", "2")), "killed"),
        ((("heads", "128+"), ("tokens", "2")), "not reached"),
    ],
)
def test_an_error_is_caught_where_its_classes_are_shown(
    combination: Any, status: str, unchanged: None
) -> None:
    jobs = jobs_of("decode-lengths")
    clean = {job.key: (*run(job), 0.0) for job in jobs}
    found = attempt(Trial("mla_decode", combination, "another's block", False), jobs, clean)
    assert found.status == status, found


def test_an_error_without_effect_is_equivalent(unchanged: None) -> None:
    # A batch of one has itself as its neighbour.
    jobs = [job for job in jobs_of("decode-lengths") if "lengths=one" in job.key]
    clean = {job.key: (*run(job), 0.0) for job in jobs}
    trial = Trial("mla_decode", (("batch", "1"), ("pages", "1")), "the neighbour's scale", False)
    assert attempt(trial, jobs, clean).status == "equivalent"


def test_a_seed_draws_allowed_pairs_and_triples_in_turn() -> None:
    one, again, other = (
        drawn(8, 1, ["mla_decode"]),
        drawn(8, 1, ["mla_decode"]),
        drawn(8, 2, ["mla_decode"]),
    )
    assert (
        [trial.name for trial in one]
        == [trial.name for trial in again]
        != [trial.name for trial in other]
    )
    assert [len(trial.combination) for trial in one] == [2, 3] * 4
    assert not any(SPACES["mla_decode"].why_not(trial.combination) for trial in one)


@pytest.mark.nightly
def test_the_command_counts_by_pairs_and_triples_and_lists_what_is_missed(cli: Cli) -> None:
    code, told, _ = cli(
        "mutants", "decode-lengths", "--conditions", 6, "--seed", 3, "-n", 1, "--json"
    )
    assert code == 0
    found = json.loads(told)["mutants"]["mutants"]
    assert [one["file"] for one in found] == ["mla_decode, pairs", "mla_decode, triples"] * 3
    assert {one["status"] for one in found} <= {"killed", "not reached", "equivalent"}


@pytest.mark.nightly
def test_errors_of_a_kernel_of_a_file_are_tried_in_the_calls_of_judge(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    words = "from harness import kernel\nkernel(op='merge_attn_states', name='mine')(merge)\n"
    file.write_text(KERNELS + words)
    code, told, error = cli(
        *("mutants", "merge-kernel", "--conditions", 4, "--judged", file, "--seed", 3),
        *("-n", 1, "--out", tmp_path, "--json"),
    )
    assert code == 0, error
    found = json.loads(told)["mutants"]["mutants"]
    assert [one["function"] for one in found] == ["merge_attn_states"] * 4
    killed = [one for one in found if one["status"] == "killed"]
    assert killed and all("kernel=mine" in one["case"] for one in killed)


def test_a_file_without_conditions_is_refused(cli: Cli, tmp_path: Path) -> None:
    code, _, error = cli("mutants", "--changes", 2, "--judged", tmp_path / "mine.py")
    assert code == 2 and "give --conditions N too" in error


def test_errors_of_a_kernel_are_drawn_among_the_classes_that_it_takes() -> None:
    spec = KernelSpec("mla_decode", "mine", "", print, kv=("bf16",))
    space = space_for(spec)
    trials = drawn(60, 1, ["mla_decode"], {"mla_decode": space})
    assert not any(space.why_not(trial.combination) for trial in trials)
    assert any(space.why_not(trial.combination) for trial in drawn(60, 1, ["mla_decode"]))
