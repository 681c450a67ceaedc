"""A report for an engine's maintainers: it says what was seen, and is written only once the script has shown it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.errors import HarnessError, InputError
from harness.core.records import CaseResult, Finding, Verdict
from harness.diagnose.script.code import MARKER
from harness.diagnose.script.export import Check, Exported, Outcome, first_that_shows
from harness.diagnose.script.render import Story
from harness.diagnose.upstream import Notes, issue_text, read_notes, write_report
from harness.engines.vllm.params import VllmParams
from harness.run.environment import Environment

FAKE = Path(__file__).parents[1] / "vllm" / "fake"
FAILING = {"graph": "full", "runner": "v2", "prefix_caching": True, "max_num_seqs": 16}


def served(**params: object) -> Job:
    case = Case(
        id="vllm-x[graph=full]", scenario="vllm-x", system="vllm", refs=("vllm-project/vllm#57017",),
        params=VllmParams.model_validate({"limit": 4, "epochs": 2, **params}), oracles=("answers",),
        poison=PoisonPlan(patterns=("nan",), sites=()),
    )  # fmt: skip
    return Job(key=case.id, case=case, device="cpu")


def exported(job: Job) -> Exported:
    found = Finding(oracle="answers", message="0 of 4 answers are right")
    result = CaseResult(key=job.key, id=job.case.id, scenario="vllm-x", verdict=Verdict.FAIL, findings=(found,))
    machine = Environment(torch="2.13.0", python="3.11", platform="Linux")
    return first_that_shows(job, result, None, machine, is_pytest=False)


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for vLLM in the script's process, which loses answers under graphs."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_VLLM", "wrong")


@pytest.mark.usefixtures("fake_vllm")
def test_a_served_case_becomes_a_script_of_the_options_that_fail_and_the_plain_ones(tmp_path: Path) -> None:
    one = exported(served(**FAILING))
    assert one.check.holds
    assert "answers by epoch [0.0, 0.0], answers with NaN [0, 0]" in one.check.with_bug.printed
    assert "answers by epoch [1.0, 1.0]" in one.check.without_bug.printed
    options = one.text.partition("FAILING = ")[2].partition("}\n")[0]
    assert '"enable_prefix_caching": True' in options and '"enforce_eager": False' in options
    assert '"max_num_seqs": 16' in options and "kv_cache_dtype" not in options
    (marked,) = (line for line in one.text.splitlines() if line.endswith(MARKER))
    assert '"VLLM_USE_V2_MODEL_RUNNER": "1"' in marked and marked.endswith(f"PLAIN | FAILING{MARKER}")
    assert "harness." not in one.text
    write_report(tmp_path, one, Notes(title="Graphs lose answers", cause="line 7"), "mla-harness run x")
    issue = (tmp_path / "issue.md").read_text()
    assert issue.startswith("# Graphs lose answers\n") and "## Cause\n\nline 7\n" in issue
    assert (
        "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve" in issue
        and "https://github.com/vllm-project/vllm/issues/57017" in issue
    )
    assert "Suggested fix" not in issue and "Found with `mla-harness run x`." in issue
    assert issue.index("[1.0, 1.0]") < issue.index("## Seen") < issue.index("[0.0, 0.0]")
    assert (tmp_path / "script.py").read_text() == one.text
    assert "exit status 1\n" in (tmp_path / "output.txt").read_text()


@pytest.mark.nightly
@pytest.mark.usefixtures("fake_vllm")
def test_no_report_is_made_of_a_script_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(HarnessError, match=r"fails with the bug: no \(passes\)"):
        exported(served())
    monkeypatch.setenv("FAKE_VLLM", "")
    with pytest.raises(HarnessError, match=r"fails with the bug: no \(passes\)"):
        exported(served(**FAILING))


def test_what_a_server_prints_stays_in_its_block_of_the_issue() -> None:
    job = served()
    runs = Check(Outcome(1, "AssertionError", printed="```\n# no title\x1b[2J\n"), Outcome(0, ""))
    text = issue_text(Exported("", job.case, Story("a title"), runs), Notes(), "again")
    assert "````\n```\n# no title\\x1b[2J\n````" in text


def test_notes_are_made_once_and_a_wrong_key_is_one_line(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == Notes()
    file = tmp_path / "notes.yaml"
    assert "cause:  # the lines that are wrong, and why" in file.read_text()
    file.write_text("title: two words\ncause:\n")
    assert read_notes(tmp_path) == Notes(title="two words")
    for text in ("titel: x\n", "- a\n", "title: [\n", "title: 3\n"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"notes.yaml:\d+:\d+: .*") as raised:
            read_notes(tmp_path)
        assert "\n" not in str(raised.value)
