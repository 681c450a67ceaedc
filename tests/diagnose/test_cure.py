"""A cure that removes the cause is told from one that hides it, on bugs of the past put back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.cases import AskReaders, Job
from harness.core.cure_names import parse
from harness.core.errors import InputError
from harness.core.records import CaseResult, CureResult, Finding, Verdict
from harness.diagnose.cure import HIDES, NO_HELP, REMOVES, judge_cure
from harness.judge.run_case import run_case
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

CURES = Path(__file__).parents[2] / "examples" / "cures"
INT32_IDS, MERGE = str(CURES / "int32_ids.py"), str(CURES / "merge_from_suffix.py")

SMALL = "requests=[[2,3],[3,2]],capture_sizes=[3],hidden_size=16,vocab_size=32,num_blocks=6"
PADDED = f"cudagraph-padding[zero_fill_output=empty,quantize_kernel=amax]@{SMALL}"
MIXED = "mixed-context[kv=bf16,context_kernel=minus-inf,context_chunk=32]@requests=[[50,1],[3,2]],num_blocks=6"
HYBRID = "kv-cache-full[kv=bf16,free_list=fifo]@requests=[[5,3],[9,2]],epochs=1,num_blocks=8"
DECODE = "decode-kernel[kernel=tiled,kv=bf16,planned=planned]@seq_lens=[3,65],num_heads=2"
MERGE_KERNEL = "merge-kernel[with_context=some,empty_rows=none,strides=equal]"


class HerePool:
    """Executes jobs in this process, as a worker would."""

    num_workers = 1

    def __init__(self) -> None:
        self.seen: list[Job] = []

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        self.seen += jobs
        return [run_case(job) for job in jobs]

    def run(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return self.run_in_order(jobs)


def job_of(case_id: str, *faults: str) -> Job:
    (case,) = select(load_scenarios(None), [case_id])
    return Job(key=case.id, case=case, fault=faults[0] if faults else None, more_faults=faults[1:])


def judged(case_id: str, faults: tuple[str, ...], *cures: str, oracle: str = "finite") -> CureResult:
    return judge_cure(HerePool(), job_of(case_id, *faults), [parse(cure) for cure in cures], oracle=oracle)


def read(result: CureResult) -> dict[str, str]:
    return {reading.site: reading.reader for reading in result.after}


IDS = ("router.int64-ids",)
IDS_AND_AMAX = ("router.int64-ids", "graph.padded-rows-in-amax")


@pytest.mark.nightly
def test_zero_filled_output_hides_the_nan_of_38359_and_the_expert_ids_are_named():
    result = judged(f"{PADDED},sites=[output]", IDS_AND_AMAX, "zero:output")
    assert result.verdict == HIDES
    assert read(result)["router.ids"] == "apply_experts"
    assert read(result)["output"] == "quantize_fp8/torch"
    assert "router.ids is still read, first by apply_experts (ids, step 0)" in result.statement


def test_ids_of_32_bits_remove_the_cause_of_38359():
    result = judged(PADDED, IDS, INT32_IDS)
    assert (result.verdict, result.after, result.left) == (REMOVES, (), ())
    assert [reading.site for reading in result.before] == ["router.ids"]
    assert result.num_compared > 0


@pytest.mark.nightly
def test_both_causes_together_need_both_cures():
    one = judged(f"{PADDED},sites=[output]", IDS_AND_AMAX, INT32_IDS)
    assert one.verdict == NO_HELP
    assert "router.ids" not in read(one)
    both = judged(f"{PADDED},sites=[output]", IDS_AND_AMAX, INT32_IDS, "fix:graph.padded-rows-in-amax")
    assert (both.verdict, both.after) == (REMOVES, ())


def test_a_fill_of_other_memory_does_not_help():
    result = judged(PADDED, IDS, "zero:output")
    assert result.verdict == NO_HELP
    assert result.statement.startswith("`finite` fires as before; router.ids is still read, first by apply_experts")


HIDE_AND_REMOVE = [
    pytest.param(PADDED, IDS, "zero:router.ids", INT32_IDS, "router.ids", marks=pytest.mark.nightly),
    (MIXED, ("merge.ignore-context-count",), "nan_to_num:merge_attn_states.out", MERGE, "context.output"),
    (HYBRID, ("kv.skip-zero-new-blocks",), "nan_to_num:mla_decode.out", "zero:kv.new", "kv.new"),
    (DECODE, ("kv.tail-masked-by-multiply",), "nan_to_num:mla_decode.out", "zero:kv.tail", "kv.tail"),
    (MERGE_KERNEL, ("merge.ignore-context-count",), "nan_to_num:merge_attn_states.out nan_to_num:merge_attn_states.lse",
     "fix:merge.ignore-context-count", "context.output"),
]  # fmt: skip


@pytest.mark.parametrize(("case_id", "faults", "hiding", "removing", "site"), HIDE_AND_REMOVE)
def test_what_hides_a_bug_is_told_from_what_removes_it(case_id, faults, hiding, removing, site):
    hidden = judged(case_id, faults, *hiding.split())
    assert hidden.verdict == HIDES, hidden.statement
    assert site in read(hidden)
    removed = judged(case_id, faults, removing)
    assert (removed.verdict, removed.after) == (REMOVES, ()), removed.statement
    assert site in [reading.site for reading in removed.before]


@pytest.mark.nightly
def test_scrubbing_the_logits_hides_whatever_is_upstream():
    result = judged(PADDED, IDS, "nan_to_num:logits")
    assert result.verdict == HIDES
    assert read(result) == {"router.ids": "apply_experts"}


def test_a_cure_that_breaks_the_numbers_does_not_help(tmp_path):
    path = tmp_path / "half.py"
    path.write_text(
        "from harness import cure\n\n"
        "@cure(replaces='harness.engine.experts:hand_over_ids')\n"
        "def first_expert(wrapped, ids, poison):\n    return ids * 0\n"
    )
    result = judged(PADDED, IDS, str(path))
    assert result.verdict == NO_HELP
    assert "`finite` is silent, but `reference`" in result.statement


@pytest.mark.parametrize("case_id", [PADDED, MIXED, HYBRID, DECODE, MERGE_KERNEL])
def test_nothing_is_read_where_no_bug_is_put_back(case_id):
    from harness.core.catalog import SITES

    result = run_case(job_of(case_id).model_copy(update={"ask": AskReaders(sites=tuple(SITES.names()))}))
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    assert result.looked_at["compared"] > 0


def test_an_index_that_nobody_wrote_is_found_even_if_its_value_changes_nothing():
    job = job_of(PADDED, *IDS).model_copy(update={"ask": AskReaders(sites=("router.ids",))})
    (finding,) = run_case(job).findings
    assert (finding.site, finding.message, finding.tensor) == ("router.ids", "apply_experts", "ids")


def test_a_case_that_passes_has_nothing_to_cure():
    with pytest.raises(InputError, match="nothing to cure"):
        judged(DECODE, (), "zero:kv.tail")


class DyingPool(HerePool):
    """A pool whose workers die over `kv.tail`, as a kernel that faults would make them."""

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return [self._result(job) for job in jobs]

    def run(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return self.run_in_order(jobs)

    def _result(self, job: Job) -> CaseResult:
        if job.sites is None:
            return run_case(job)
        dies = "kv.tail" in job.sites
        findings = (Finding(oracle="crash", message="the worker died: SIGSEGV"),) if dies else ()
        verdict = Verdict.CRASH if dies else Verdict.PASS
        return CaseResult(
            key=job.key, id=job.case.id, scenario="s", sites=job.sites, verdict=verdict, findings=findings
        )


def test_a_worker_that_dies_over_a_site_has_read_it():
    job = job_of(DECODE, "kv.tail-masked-by-multiply")
    result = judge_cure(DyingPool(), job, [parse("nan_to_num:mla_decode.out")], oracle="finite")
    assert result.verdict == HIDES
    assert read(result) == {"kv.tail": "the worker died: SIGSEGV"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zero:outputs", "did you mean 'output'"),
        ("zero", "give zero:SITE"),
        ("scrub:output", "unknown cure; give zero:SITE"),
        ("nan_to_num:mla_decode.ou", "did you mean 'mla_decode.out'"),
        ("fix:router.int64", "did you mean 'router.int64-ids'"),
        ("missing.py", "there is no such file"),
    ],
)
def test_a_cure_that_does_not_exist_is_refused_with_what_does(text, told):
    with pytest.raises(InputError) as refused:
        parse(text)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "declares no cure"),
        ("from harness import cure\n\n@cure()\ndef f(wrapped): ...\n", ":3: @cure: give either replaces"),
        ("from harness import cure\n@cure(op='mla_decod')\ndef f(wrapped): ...\n", "did you mean 'mla_decode'"),
        ("from harness import cure\n@cure(replaces='os:remove')\ndef f(wrapped): ...\n", "harness.module:function"),
        ("from harness import cure\n@cure(replaces='harness.engine.batch:nobody')\ndef f(w): ...\n", "name a function"),
        ("1 / 0\n", ":1: ZeroDivisionError: division by zero"),
        ("def (\n", ":1: SyntaxError"),
    ],
)
def test_a_file_that_is_no_cure_is_refused_in_one_line(tmp_path, text, told):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        judged(DECODE, ("kv.tail-masked-by-multiply",), str(path))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
