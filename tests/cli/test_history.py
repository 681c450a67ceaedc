"""Runs go into the history by themselves, are followed and compared; trouble with it never costs a
run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

Cli = Callable[..., tuple[int, str, str]]
RUNS = Path("reports") / "runs"
GOOD = """
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""


@pytest.fixture(autouse=True)
def known_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run in a folder without git; the environment says which code it is."""
    monkeypatch.setenv("MLA_HARNESS_COMMIT", "abcdef0123456789")
    monkeypatch.setenv("MLA_HARNESS_BRANCH", "main")
    monkeypatch.delenv("MLA_HARNESS_HISTORY", raising=False)


def run_ids() -> list[str]:
    return sorted(path.name for path in RUNS.iterdir())


def test_runs_are_recorded_listed_followed_and_compared(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    options = ("--scenarios", scenarios, "-n", 1)
    assert cli("run", *options)[0] == 0
    assert (
        cli("run", "merge", "--fault", "merge.ignore-context-count", "--branch", "topic", *options)[
            0
        ]
        == 1
    )
    assert cli("selftest", *options)[0] == 0
    code, out, err = cli("history")
    assert (code, err) == (0, "") and all(name in out for name in run_ids()) and "abcdef0" in out
    code, out, _ = cli("history", "merge", "--branch", "topic", "--json")
    found = json.loads(out)
    assert code == 0 and [run["branch"] for run in found["runs"]] == ["topic"]
    assert {case["key"]: case["verdicts"] for case in found["cases"]} == {
        "merge[num_with_context=7]!merge.ignore-context-count": "f",
        "merge[num_with_context=12]!merge.ignore-context-count": "p",
    }
    code, out, _ = cli("history", "merge")
    assert code == 0
    approved(lines_with(out, "fault merge.ignore-context-count caught"))
    code, out, _ = cli("history", "merge[num_with_context=7]")
    assert code == 0 and out.count("pass") == 2

    code, out, _ = cli("compare")
    assert code == 0 and "new failures: 0" in out
    approved(lines_with(out, "6 in both"))


def test_a_fault_in_a_case_is_followed_by_its_own_name(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    """`run --fault` and `selftest` write the same key: a verdict in one, what became of the fault
    in the other.
    """
    key, file = "merge[num_with_context=7]!merge.ignore-context-count", scenarios / "merge.yaml"
    for blames in ("[context.output, context.lse]", "[kv.tail]"):
        file.write_text(file.read_text().replace("[context.output, context.lse]", blames))
        cli("selftest", "merge", "--scenarios", scenarios, "-n", 1)
    code, out, err = cli("history", key)
    assert (code, err) == (0, "") and "caught" in out and "WRONG BLAME" in out
    assert "where kv.tail was" in " ".join(out.split())
    _, out, _ = cli("history", "merge")
    approved(lines_with(out, "fault merge.ignore-context-count caught"))
    code, out, _ = cli("compare")
    assert code == 1 and "WRONG BLAME" in out


def test_compare_tells_new_failures_first_and_ends_in_1(
    cli: Cli, scenarios: Path, plugin: Callable[..., Path], approved: Approved
) -> None:
    good, options = plugin(GOOD), ("--scenarios", scenarios, "--kernel", "mine", "-n", 1)
    assert cli("run", "quantize", "--plugin", good, *options)[0] == 0
    broken = plugin("return x.to(torch.float8_e4m3fn), torch.full((1,), float('nan'))")
    assert broken == good
    assert cli("run", "quantize", "--plugin", broken, *options)[0] == 1
    code, out, _ = cli("compare", "previous", "latest")
    assert code == 1
    assert (
        out.index("new failures: ") < out.index("FAIL quantize_fp8/mine:") < out.index("fixed: 0")
    )
    code, out, _ = cli("compare", "latest", run_ids()[0])
    assert code == 0 and "fixed: " in out
    code, out, _ = cli("compare", *sorted(RUNS.iterdir()), "--history", "none", "--json")
    found = json.loads(out)
    assert code == 1 and found["new_failures"][0]["after"]["verdict"] == "fail"
    assert found["before"]["commit"] == "abcdef0123456789"
    code, out, err = cli("report", "latest", "--markdown")
    assert (code, err) == (0, "") and "**New failures: " in out
    approved(lines_with(out, "### Flaky in"))


def test_a_file_is_no_folder_of_runs(cli: Cli, scenarios: Path, approved: Approved) -> None:
    Path("history.txt").write_text("no folder")
    for words in (
        ("run", "quantize", "--scenarios", scenarios, "-n", 1),
        ("history",),
        ("compare",),
    ):
        code, _, err = cli(*words, "--history", "history.txt")
        assert code == 2 and len(err.strip().splitlines()) == 1
        approved(err)
    assert not Path("reports").exists(), "refused before the run"


def test_a_damaged_run_costs_one_line_and_no_run(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    options = ("run", "quantize", "--scenarios", scenarios, "-n", 1)
    assert cli(*options)[0] == 0
    (folder,) = RUNS.iterdir()
    (folder / "summary.json").write_text('{"source"')
    code, out, err = cli(*options)
    assert (code, err) == (0, "") and "4 pass in" in out
    code, _, err = cli("report", "latest", "--markdown")
    (line,) = err.strip().splitlines()
    assert code == 0 and folder.name in line
    approved(line)
    code, out, err = cli("history")
    assert code == 2 and f"left out: {folder}" in err and run_ids()[-1] in out


def test_a_run_of_an_older_version_is_one_line_in_every_command_that_reads_it(
    cli: Cli, scenarios: Path
) -> None:
    options = ("run", "quantize", "--scenarios", scenarios, "-n", 1)
    assert cli(*options)[0] == cli(*options)[0] == 0
    old, new = sorted(RUNS.iterdir())
    for name in ("run.json", "summary.json"):
        found = json.loads((old / name).read_text()) | {"schema_version": 1}
        found["environment"]["harness"] = "0.1.0"
        (old / name).write_text(json.dumps(found))
    told = "written by version 0.1.0 of mla-harness (schema 1, this one reads 2); run again"
    for words in (
        ("report", old),
        ("run", "--resume", old),
        ("compare", old, new),
        ("merge", old, new),
        ("history",),
    ):
        code, _, err = cli(*words)
        assert code == 2 and len(err.strip().splitlines()) == 1, (words, err)
        assert str(old) in err and told in err, words
    # A run that is compared with earlier ones goes on without it.
    assert cli(*options)[0] == 0


@pytest.mark.nightly
def test_the_environment_chooses_the_folder_of_runs(
    cli: Cli, scenarios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("run", "quantize", "--scenarios", scenarios, "-n", 1)
    assert cli(*options, "--out", tmp_path / "mine")[0] == 0
    monkeypatch.setenv("MLA_HARNESS_HISTORY", str(tmp_path / "mine"))
    assert cli(*options)[0] == 0
    code, out, _ = cli("history")
    assert code == 0 and next((tmp_path / "mine").iterdir()).name in out and run_ids()[0] not in out
    monkeypatch.setenv("MLA_HARNESS_HISTORY", "none")
    code, _, err = cli("history")
    assert code == 2 and "nothing to read" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("history",), "no run there yet"),
        (("history", "--since", "yesterday"), "--since 'yesterday'"),
        (("compare",), "no run 'latest'"),
        (("compare", "a", "b", "c"), "takes two runs"),
        (("compare", "nothing", "latest"), "no run"),
        (("report", "latest", "--markdown", "--json"), "give one"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, words: tuple[str, ...], message: str) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "") and message in err and len(err.strip().splitlines()) == 1


def test_a_name_that_the_history_does_not_know_is_refused_with_the_nearest(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    assert cli("run", "quantize", "--scenarios", scenarios, "-n", 1)[0] == 0
    code, _, err = cli("history", "quantise")
    assert code == 2
    approved(err)
    code, _, err = cli("history", "quantize[kernel=other]")
    assert code == 2
    approved(err)


def test_a_resumed_run_is_in_the_history_once(cli: Cli, scenarios: Path) -> None:
    assert cli("run", "quantize", "--scenarios", scenarios, "-n", 1)[0] == 0
    (folder,) = Path("reports/runs").iterdir()
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "results.jsonl").write_text("".join(lines[:2]))
    assert cli("run", "--resume", "latest", "-n", 1)[0] == 0
    assert run_ids() == [folder.name]
    _, out, _ = cli("history", "quantize", "--json")
    assert [case["verdicts"] for case in json.loads(out)["cases"]] == ["p"] * 4


def test_compare_fails_when_what_passed_is_skipped_and_never_takes_an_idle_run_as_latest(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    options = ("--scenarios", scenarios, "-n", 1)
    assert cli("run", *options)[0] == 0
    assert cli("run", "--device", "cuda", *options)[0] == 2, (
        "this test is for machines without a GPU"
    )
    idle = run_ids()[-1]
    code, out, err = cli("compare", "previous", idle)
    assert code == 1 and err == ""
    approved(lines_with(out, "good before, skipped"))
    assert len(json.loads(cli("compare", "previous", idle, "--json")[1])["lost"]) == 1
    assert cli("run", *options)[0] == 0
    assert cli("compare")[::2] == (0, ""), "the run before is the first, with six passes"
    assert cli("run", "--device", "cuda", *options)[0] == 2
    code, _, err = cli("compare")
    assert code == 0 and f"warning: {run_ids()[-1]} is newer than " in err
    assert cli("run", "quantize", *options)[0] == 0
    code, out, _ = cli("compare")
    assert code == 1
    approved(lines_with(out, "2: not in"))
