"""The smallest sets of options that fail, on a pool that fails by a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from harness.cli.survey import sets_table, words_of
from harness.core.cases import Case, Job
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.smallest_options import smallest_sets, suspected
from harness.run.pool import JobPool
from mla_harness_vllm.options import serve_command
from mla_harness_vllm.params import VllmParams

PLAIN = VllmParams()
Fails = Callable[[VllmParams], str]


class Rule:
    """A pool whose cases fail by the oracle that a rule names, and pass where it names none."""

    def __init__(self, rule: Fails) -> None:
        self.rule, self.asked = rule, list[str]()

    def run_in_order(self, jobs: list[Job]) -> list[CaseResult]:
        self.asked += [job.case.id for job in jobs]
        return [self.result(job) for job in jobs]

    def result(self, job: Job) -> CaseResult:
        oracle = self.rule(job.case.params_as(VllmParams))
        if not oracle:
            return CaseResult.of(job, Verdict.PASS)
        return CaseResult.of(
            job, Verdict.FAIL, findings=(Finding(oracle=oracle, message="60 of 64 answers"),)
        )


def failing(rule: Rule, **options: Any) -> tuple[Job, CaseResult]:
    name = ",".join(map(str, options.values()))
    case = Case(
        id=f"survey[{name}]", scenario="survey", system="vllm", params=VllmParams(**options)
    )
    job = Job(key=case.id, case=case)
    return job, rule.result(job)


def triton_fp8_graphs(params: VllmParams) -> str:
    is_bad = (params.backend, params.quantization) == (
        "TRITON_MLA",
        "fp8_per_tensor",
    ) and params.graph != "none"
    return "answers" if is_bad else ""


def found(rule: Rule, *failures: tuple[Job, CaseResult], seconds: float = 60.0) -> Any:
    return smallest_sets(cast(JobPool, rule), failures, PLAIN, seconds=seconds)


def test_options_that_the_failure_does_not_need_are_set_back_and_others_stay() -> None:
    rule = Rule(triton_fp8_graphs)
    more = {"prefix_caching": True, "kv": "fp8_e4m3", "speculative": "ngram", "max_num_seqs": 1}
    options = {
        "canary": "moe",
        "backend": "TRITON_MLA",
        "quantization": "fp8_per_tensor",
        "graph": "default",
    }
    (one,) = found(rule, failing(rule, **options, **more))
    del options["canary"]
    assert one.options == options and one.is_smallest and one.result.has_failed
    assert words_of(one) == "graph=default backend=TRITON_MLA quantization=fp8_per_tensor"
    # Without any of the three it passes.
    for name in options:
        assert not triton_fp8_graphs(
            one.case.params.model_copy(update={name: getattr(PLAIN, name)})
        )


def test_options_that_stand_in_for_each_other_are_set_back_one_after_another() -> None:
    rule = Rule(
        lambda params: "answers" if params.prefix_caching or params.async_scheduling else ""
    )
    (one,) = found(rule, failing(rule, prefix_caching=True, async_scheduling=True, runner="v2"))
    assert one.options == {"prefix_caching": True} or one.options == {"async_scheduling": True}
    assert one.is_smallest and one.num_trials == len(rule.asked) == 3 + 1 + 3


def test_the_combinations_themselves_suggest_the_set_and_one_trial_proves_it() -> None:
    rule = Rule(
        lambda params: "answers" if (params.canary, params.kv) == ("hybrid", "fp8_e4m3") else ""
    )
    bad = {"canary": "hybrid", "kv": "fp8_e4m3"}
    failures = [
        failing(rule, **bad, runner=runner, graph=graph)
        for runner, graph in (("v2", "full"), ("v1", "none"))
    ]
    right = [
        VllmParams(canary="hybrid", runner="v2"),
        VllmParams(kv="fp8_e4m3", graph="full"),
        PLAIN,
    ]
    assert suspected([job.case.params for job, _ in failures], right) == bad
    (one,) = smallest_sets(cast(JobPool, rule), failures, PLAIN, seconds=60, right=right)
    assert one.options == bad and one.is_smallest and len(one.keys) == 2
    assert one.num_trials == 1 + len(bad), "one with the two alone, one without each"


def test_nothing_is_suspected_where_several_sets_fit_or_the_failures_share_none() -> None:
    first, second = VllmParams(canary="hybrid", runner="v2"), VllmParams(kv="fp8_e4m3")
    assert suspected([first], [PLAIN]) == {}
    assert suspected([first, second], [PLAIN]) == {}


def test_a_crash_by_another_error_is_another_failure() -> None:
    rule = Rule(lambda params: "crash" if params.runner == "v2" or params.kv == "fp8_e4m3" else "")

    def crashed(error: str, **options: Any) -> tuple[Job, CaseResult]:
        job, result = failing(rule, **options)
        return job, result.model_copy(update={"findings": (Finding(oracle="crash", error=error),)})

    sets = found(
        rule,
        crashed("ValueError", runner="v2"),
        crashed("torch.AcceleratorError", kv="fp8_e4m3", runner="v2"),
    )
    assert [len(one.keys) for one in sets] == [1, 1]


def test_a_known_failure_is_reduced_too() -> None:
    rule = Rule(triton_fp8_graphs)
    bad = {"backend": "TRITON_MLA", "quantization": "fp8_per_tensor", "graph": "full"}
    job, result = failing(rule, **bad, runner="v2")
    (one,) = found(rule, (job, result.model_copy(update={"verdict": Verdict.KNOWN})))
    assert one.options == bad and one.result.verdict is Verdict.FAIL


def test_a_failure_with_a_known_set_costs_no_trial_and_another_symptom_is_another_set() -> None:
    rule = Rule(lambda params: "streams" if params.runner == "v2" else triton_fp8_graphs(params))
    bad = {"backend": "TRITON_MLA", "quantization": "fp8_per_tensor", "graph": "full"}
    first = failing(rule, **bad)
    sets = found(rule, first)
    trials = len(rule.asked)
    sets = found(
        rule, first, failing(rule, **bad, prefix_caching=True), failing(rule, **bad, runner="v2")
    )
    assert [(one.options, len(one.keys)) for one in sets] == [(bad, 2), ({"runner": "v2"}, 1)]
    assert len(rule.asked) - trials == trials + sets[1].num_trials


def test_when_the_time_is_up_the_set_is_returned_as_it_is() -> None:
    rule = Rule(triton_fp8_graphs)
    options = {
        "backend": "TRITON_MLA",
        "quantization": "fp8_per_tensor",
        "graph": "full",
        "async_scheduling": True,
    }
    (one,) = found(rule, failing(rule, **options), seconds=0.0)
    assert one.options == options and not one.is_smallest and rule.asked == []
    assert "perhaps fewer" in words_of(one)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "TRITON_MLA", "graph": "default"}, "--attention-backend TRITON_MLA"),
        ({"graph": "none"}, "--enforce-eager"),
        ({"quantization": "fp8_per_tensor"}, "--quantization fp8_per_tensor"),
        ({"speculative": "ngram"}, '"method": "ngram"'),
        ({"runner": "v2"}, "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve"),
        ({"max_num_seqs": 1}, "--max-num-seqs 1"),
        ({"prefix_caching": True}, "--enable-prefix-caching"),
        ({}, "--no-enable-prefix-caching"),
    ],
)
def test_the_command_has_the_options_of_the_case(options: dict[str, Any], words: str) -> None:
    rule = Rule(lambda params: "answers")
    command = serve_command(failing(rule, **options)[0].case)
    assert words in command and "fixtures/canary-" in command
    assert ("cudagraph_mode" in command) == (
        options.get("graph", "none") not in ("none", "default")
    )


def test_the_table_has_each_set_with_its_command_and_each_refusal_once() -> None:
    rule = Rule(triton_fp8_graphs)
    failure = failing(rule, backend="TRITON_MLA", quantization="fp8_per_tensor", graph="full")
    refused = [CaseResult.of(failure[0], Verdict.SKIP, reason="vLLM refuses these options: no")] * 2
    table = sets_table([failure[1], *refused], found(rule, failure))
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["1", "", "2"] and cells[1] == ["fail", "", "skipped"]
    assert "vllm serve" in cells[3][1] and "refuses" in cells[3][2]
    assert "60 of 64" in cells[3][0]
