"""Each command does what its help says, with the exit codes that are documented."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_poison.errors import PoisonError

from harness.core.cases import Case, Job
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with

ROOT = Path(__file__).parents[2]
Cli = Callable[..., tuple[int, str, str]]


def only_run(tmp_path: Path) -> Path:
    runs = list((tmp_path / "reports" / "runs").iterdir())
    assert len(runs) == 1
    return runs[0]


def test_run_passes_writes_every_report_and_can_be_reported_again(
    cli: Cli, scenarios: Path, tmp_path: Path
) -> None:
    code, out, err = cli("run", "--scenarios", scenarios, "-n", 1)
    assert (code, err) == (0, "")
    assert "6 pass in" in out and "quantize[" not in out, (
        "the table of scenarios is printed by `report`"
    )
    run = only_run(tmp_path)
    names = {path.name for path in run.iterdir()}
    assert names == {
        "run.json",
        "results.jsonl",
        "results.csv",
        "summary.json",
        "report.html",
        "junit.xml",
    }
    summary = json.loads((run / "summary.json").read_text())
    assert summary["totals"] == {"pass": 6, "fail": 0, "crash": 0, "skip": 0, "error": 0}
    assert summary["environment"]["torch"] and summary["environment"]["command"].startswith(
        "mla-harness"
    )
    (run / "report.html").unlink()
    code, out, _ = cli("report", "latest")
    assert code == 0 and "6 pass in" in out and "quantize" in out and (run / "report.html").exists()


def test_run_json_is_one_strict_object_on_stdout(cli: Cli, scenarios: Path) -> None:
    code, out, err = cli("run", "quantize", "--scenarios", scenarios, "-n", 1, "--json")
    assert code == 0
    summary = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert summary["cases"][0]["id"] == "quantize[kernel=torch,num_live=1]"
    assert "4 pass in" in err


def test_a_fault_fails_its_cases_and_the_blame_and_the_command_are_told(
    cli: Cli, scenarios: Path, tmp_path: Path, approved: Approved
) -> None:
    code, out, _ = cli(
        "run", "--fault", "merge.ignore-context-count", "--scenarios", scenarios, "-n", 1
    )
    assert code == 1
    assert "blame: context.output, context.lse" in out
    assert "--fault merge.ignore-context-count" in out
    approved(lines_with(out, "again: mla-harness run"))
    assert "quantize" not in out, "a fault is tried where it is declared"
    words = (
        "--fault",
        "merge.ignore-context-count",
        "--scenarios",
        scenarios,
        "--out",
        tmp_path / "x",
        "-n",
        1,
    )
    code, told, _ = cli("run", "quantize", *words)
    assert code == 0 and "no case fails" not in out
    approved(lines_with(told, "no case fails"))
    blames = (only_run(tmp_path) / "blame.jsonl").read_text()
    assert json.loads(blames.splitlines()[0])["blame"]["sites"] == ["context.output", "context.lse"]


def test_selftest_catches_the_fault_by_the_declared_oracle_and_site(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    code, out, err = cli("selftest", "--scenarios", scenarios, "-n", 1, "--json")
    found = json.loads(out)
    assert (
        code == 0
        and found["ok"] is True
        and found["totals"]["pass"] == 6
        and found["not_clean"] == []
    )
    (fault,) = found["faults"]
    assert (
        fault["caught"]
        and "finite" in fault["by"]
        and fault["blamed"] == ["context.output", "context.lse"]
    )
    assert "caught merge.ignore-context-count by" in err
    approved(err)


def test_run_injects_the_faults_of_a_scenario_only_when_asked(cli: Cli, scenarios: Path) -> None:
    code, out, _ = cli("run", "merge", "--scenarios", scenarios, "-n", 1)
    assert code == 0 and "merge.ignore-context-count" not in out and "2 pass in" in out
    code, out, _ = cli("run", "merge", "--with-faults", "--scenarios", scenarios, "-n", 1)
    assert code == 0 and "2 pass in" in out
    assert "caught merge.ignore-context-count by" in out and "context.output" in out


@pytest.mark.parametrize(
    ("declared", "wrong", "why"),
    [
        ("caught_by: finite", "caught_by: [address, replay]", "expected address or replay to fire"),
        ("on: {num_with_context: 7}", "on: {num_with_context: 12}", "the case ended in pass"),
    ],
)
def test_selftest_fails_when_a_fault_is_not_caught_as_declared(
    cli: Cli, scenarios: Path, declared: str, wrong: str, why: str, approved: Approved
) -> None:
    file = scenarios / "merge.yaml"
    assert declared in file.read_text()
    file.write_text(file.read_text().replace(declared, wrong))
    code, out, _ = cli("selftest", "merge", "--scenarios", scenarios, "-n", 1)
    assert code == 1
    assert "MISSED merge.ignore-context-count" in out and why in out
    approved(lines_with(out, "faults caught: 0"))


def test_a_verbose_run_says_that_a_case_which_passes_with_a_bug_misses_it(
    cli: Cli, scenarios: Path
) -> None:
    file = scenarios / "merge.yaml"
    text = file.read_text()
    file.write_text(text.replace("on: {num_with_context: 7}", "on: {num_with_context: 12}"))
    words = ("run", "merge", "--with-faults", "--scenarios", scenarios, "-n", 1, "-v")
    code, out, _ = cli(*words)
    missed = lines_with(out, "MISSED merge[num_with_context=12]!merge.ignore-context-count")
    assert code == 1 and "passes with the bug" in missed
    file.write_text(text)
    code, out, _ = cli(*words)
    assert code == 0 and "MISSED" not in out


BLAMES = "blames: [context.output, context.lse]"


@pytest.mark.parametrize(
    "declared", ["blames: [kv.tail]", "may_blame: [context.output]", "blames: []"]
)
def test_selftest_says_that_a_fault_was_seen_when_only_the_blame_is_not_as_declared(
    cli: Cli, scenarios: Path, declared: str, approved: Approved
) -> None:
    file = scenarios / "merge.yaml"
    file.write_text(file.read_text().replace(BLAMES, declared))
    for command in (("selftest", "merge"), ("run", "merge", "--with-faults")):
        code, out, _ = cli(*command, "--scenarios", scenarios, "-n", 1)
        assert code == 1 and "MISSED" not in out
        approved(lines_with(out, "WRONG BLAME merge.ignore-context-count", "faults caught: 0"))


@pytest.mark.parametrize(
    "declared",
    [
        "may_blame: [context.output, context.lse, lse]",
        "blames: [context.lse]\n    may_blame: [context.output]",
    ],
)
def test_a_declaration_may_allow_sites_that_are_not_always_blamed(
    cli: Cli, scenarios: Path, declared: str, approved: Approved
) -> None:
    file = scenarios / "merge.yaml"
    text = file.read_text().replace(BLAMES, declared)
    file.write_text(text.replace("caught_by: finite", "caught_by: [address, finite]"))
    code, out, _ = cli("selftest", "merge", "--scenarios", scenarios, "-n", 1)
    assert code == 0
    approved(lines_with(out, "faults caught: 1"))


@pytest.mark.parametrize("reference", ["36540", "vllm-project/vllm#36540"])
def test_repro_shows_a_bug_without_and_with_it(cli: Cli, scenarios: Path, reference: str) -> None:
    code, out, err = cli("repro", reference, "--scenarios", scenarios, "-n", 1)
    assert (code, err) == (0, "")
    row = next(
        line for line in out.splitlines() if line.strip().endswith("merge[num_with_context=7]")
    )
    assert row.split()[:3] == ["1", "pass", "FAIL"] and "context.output" in row
    command = (
        f"mla-harness run 'merge[num_with_context=7]' --scenarios {scenarios} --fault"
        " merge.ignore-context-count"
    )
    assert command in out


def test_show_tells_parameters_sites_oracles_faults_and_the_command(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    code, out, _ = cli("show", "merge[num_with_context=7]", "--scenarios", scenarios)
    assert code == 0
    for words in (
        "num_with_context",
        "context.output",
        "finite",
        "merge.ignore-context-count",
        "vllm-project/vllm#36540",
    ):
        assert words in out
    approved(lines_with(out, "run: mla-harness run"))
    code, out, _ = cli("show", "merge[num_with_context=7]", "--scenarios", scenarios, "--json")
    assert json.loads(out)["case"]["params"]["num_with_context"] == 7


def test_list_names_everything_and_its_case_ids_are_runnable(cli: Cli, scenarios: Path) -> None:
    code, out, _ = cli("list", "--scenarios", scenarios, "--json")
    tables = json.loads(out)
    assert code == 0 and set(tables) == {"scenarios", "kernels", "faults", "oracles", "sites"}
    assert {row["name"]: row["cases"] for row in tables["scenarios"]} == {"quantize": 4, "merge": 2}
    ids = cli("list", "--scenarios", scenarios, "--cases")[1].split()
    assert len(ids) == 6
    assert cli("show", ids[-1], "--scenarios", scenarios)[0] == 0


def test_doctor_says_what_runs_here_and_why_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RAISE_ON_LOGIT_NANS", "1")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    code, out, _ = cli("doctor", "--json")
    found = json.loads(out)
    assert found["environment"]["variables"] == {"VLLM_RAISE_ON_LOGIT_NANS": "1"}
    assert code == 0 and found["devices"]["cpu"] == "yes"
    assert found["devices"]["cuda"] == "yes" or "torch" in found["devices"]["cuda"]
    assert {"kernel", "cpu", "cuda"} == set(found["kernels"][0])


def test_doctor_counts_what_one_thing_more_would_let_it_judge(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    plan = json.loads(cli("doctor", "--json")[1])["plan"]
    assert 0 < plan["can_run"] <= plan["cases"]
    skipped = plan["cases"] - plan["can_run"]
    assert 0 < sum(gain["cases"] for gain in plan["gains"]) <= skipped
    alone = [gain["cases"] for gain in plan["gains"] if len(gain["things"]) == 1]
    assert alone == sorted(alone, reverse=True)


def test_schema_is_a_json_schema_of_scenarios(cli: Cli) -> None:
    code, out, _ = cli("schema")
    schema = json.loads(out)
    assert code == 0 and "name" in schema["properties"] and schema["additionalProperties"] is False


def test_bench_prints_ratios(cli: Cli, scenarios: Path) -> None:
    code, out, err = cli("bench", "quantize", "--scenarios", scenarios, "--repeats", 1, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["num_cases"] == 4 and found["cases_per_second"] > 0
    assert found["poison"]["median"] > 0 and found["poison"]["worst"] >= found["poison"]["median"]
    assert found["replay"]["num_cases"] == 0


def test_bad_input_is_one_line_on_stderr_and_exit_code_2(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    for words in [
        ["run", "mergee"],
        ["run", "merge[num_with_context=9]"],
        ["run", "99999"],
        ["run", "-m", "prefil"],
        ["run", "--device", "tpu"],
        ["run", "--fault", "merge.ignore"],
        ["run", "--kernel", "mine"],
        ["run", "--plugin", "no_such_file.py"],
        ["run", "--resume", "nonsense"],
        ["run", "--timeout", "abc"],
        ["run", "--timeout", "inf"],
        ["run", "-n", "-1"],
        ["run", "--no-such-option"],
        ["frobnicate"],
        ["repro"],
        ["baseline"],
        ["repro", "99999"],
        ["show", "nonsense"],
        ["run", "--fault", "xyz"],
        ["run", "--kernel", "xyz"],
        ["run", "merge", "--set", "kernel=tild"],
        ["run", "merge", "--set", "corrupt=count"],
        ["run", "my_kernel.py"],
        ["show", "my_kernel.py"],
        ["run", "merge[num_with_context=7"],
        ["repro", "my_kernel.py"],
        ["report", "nonsense"],
        ["selftest", "quantize", "--faults-only"],
        ["mutants"],
        ["mutants", "--changes", "1", "--conditions", "1"],
    ]:
        takes_scenarios = (
            words[0] in ("run", "repro", "show", "selftest") and "--resume" not in words
        )
        code, out, err = cli(*words, *(["--scenarios", scenarios] if takes_scenarios else []))
        assert code == 2
        assert err.count("\n") == 1 and "Traceback" not in err
        approved(err, " ".join(words))
        assert out == ""


def test_a_run_whose_cases_are_all_skipped_is_not_green(cli: Cli, scenarios: Path) -> None:
    code, out, err = cli("run", "quantize", "--device", "cuda", "--scenarios", scenarios, "-n", 1)
    assert code == 2
    assert "skipped 4 cases" in out and "nothing ran" in err


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed: its cases run"
)
@pytest.mark.parametrize(
    "words",
    [("survey", "-n", 1), ("bench", "vllm-host-batch-order")],
)
def test_another_command_of_which_nothing_ran_is_not_green(
    cli: Cli, words: tuple[object, ...], approved: Approved
) -> None:
    code, out, err = cli(*words)
    assert (code, err.count("\n")) == (2, 1)
    approved(err)
    assert "not installed" in out or "runs on cuda" in out


def test_resume_refuses_a_new_plan(cli: Cli, scenarios: Path, approved: Approved) -> None:
    cli("run", "quantize", "--scenarios", scenarios, "-n", 1)
    code, _, err = cli("run", "merge", "--resume", "latest")
    assert code == 2
    approved(err)
    given = {
        "--device": "auto",
        "--seed": "0",
        "--timeout": "60",
        "--scenarios": "no",
        "--sanitizer": "memcheck",
    }
    words = [word for pair in given.items() for word in pair]
    code, out, err = cli(
        "run", "--resume", "latest", "-n", 1, "--history", "none", "--json", *words
    )
    assert (code, out, err.count("\n")) == (
        2,
        "",
        1,
    ), "what the run's plan decides is refused, defaults too"
    assert set(err.strip().partition("leave out ")[2].split(", ")) == set(given)
    assert cli("run", "--resume", "latest")[0] == 0, "a finished run has nothing left to do"


def test_a_case_under_the_sanitizer_is_not_resumed_without_it(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    job = Job(
        key="a", case=Case(id="a", scenario="a", system="kernel", op="write_kv"), device="cpu"
    )
    store = RunStore.create(tmp_path, [job], command="x", sanitizer="memcheck")
    code, out, err = cli("run", "--resume", store.path)
    assert (code, out) == (2, "")
    approved(err)
    assert not (store.path / "results.jsonl").exists()


def test_an_unexpected_exception_is_one_line_exit_3_and_a_kept_traceback(
    cli: Cli, scenarios: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    def explode(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("planned by the test")

    monkeypatch.setattr("harness.run.planning.load", explode)
    code, _, err = cli("run", "merge")
    assert code == 3 and err.count("\n") == 1
    approved(err)
    kept = Path(err.split("traceback in ")[1].strip())
    assert "def explode" not in err and "raise ZeroDivisionError" in kept.read_text()
    kept.unlink()


def test_what_prints_at_once_imports_neither_torch_nor_the_pool_nor_the_conditions() -> None:
    heavy = ["torch", "numpy", "pandas"]
    slow = [
        "harness.run.pool",
        "harness.run.worker",
        "harness.scenario.draws",
        "harness.core.conditions.table",
    ]
    of_tables = ["rich", "packaging", "harness.core.records"]
    script = (
        "import sys; from harness.cli.main import exit_code_of\nfor words in (['--help'],"
        " ['list'], ['show', 'decode-kernel'], ['schema'], ['run', '--help']):\n    assert"
        " exit_code_of(words) == 0, words\n    assert words != ['list'] or not sys.modules.keys()"
        f" & {{*{of_tables}}}\n    assert not sys.modules.keys() & {{*{heavy}, *({slow} if words[0]"
        " != 'run' else ())}, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_comes_at_once() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "harness.cli.main", "--help"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, the best of several: other processes may have the cores.
    assert min(seconds() for _ in range(5)) < 0.3


def test_coverage_counts_the_conditions_of_a_run_and_lists_what_was_not_shown(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    assert cli("run", "merge", "--scenarios", scenarios, "-n", 1)[0] == 0
    code, out, _ = cli("coverage", "--json")
    every_kernel, one_kernel = json.loads(out)["coverage"]
    assert one_kernel["kernel"] == "merge_attn_states/torch"
    found, (met, every) = every_kernel, every_kernel["pairs"]
    assert (
        code == 0
        and found["op"] == "merge_attn_states"
        and 0 < met < every == met + len(found["unmet_pairs"])
    )
    code, out, _ = cli("coverage", "latest", "merge_attn_states")
    assert (
        code == 0
        and f"pairs not shown: {every - met:,}" in out
        and f"({met:,} of {every:,})" in out
    )
    code, _, err = cli("coverage", "latest", "quantize_fp8")
    assert code == 2
    approved(err)
    code, _, err = cli("coverage", "merge_attn_states", "quantize_fp8")
    assert code == 2
    approved(err)


def test_an_error_of_the_poison_is_one_line_and_exit_code_3(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    def refuse(**options: object) -> None:
        raise PoisonError("site 'mine': tag 99 is not in 1 to 60; choose another")

    monkeypatch.setattr("harness.cli.main.app", refuse)
    code, _, err = cli("list")
    assert code == 3
    approved(err)
