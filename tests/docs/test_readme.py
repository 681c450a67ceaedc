"""What the README says is what the code has: tables, commands, exit codes, the scenario it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.cli.commands import COMMANDS, Commands
from harness.cli.main import EXIT_CODES, app
from harness.core.catalog import FAULTS, KERNELS, ORACLES, SITES
from harness.core.ops import OPS
from harness.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def table(first_column: str) -> list[list[str]]:
    """The cells of the table whose header starts with `first_column`, without backticks."""
    match = re.search(rf"^\| {first_column} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", README, re.MULTILINE)
    assert match, f"README has no table of {first_column}"
    rows = [line.strip().strip("|").split(" | ") for line in match[1].splitlines()]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows]


def command(name: str) -> Any:
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    found = group.get_command(typer.Context(group), name)
    assert found, name
    return found


def test_oracles_are_those_of_the_catalog() -> None:
    assert table("oracle") == [[entry.name, entry.summary] for entry in ORACLES]


def test_sites_are_those_of_the_table_of_sites() -> None:
    assert table("site") == [[entry.name, entry.summary] for entry in SITES]


def test_every_scenario_with_faults_is_in_the_table_of_families_with_their_upstream_numbers() -> None:
    told = {name: row[3].split(", ") for row in table("family") for name in row[2].split(", ")}
    scenarios = [load_scenario(path) for path in sorted((ROOT / "scenarios").glob("*.yaml"))]
    faulty = {scenario.name: scenario for scenario in scenarios if scenario.faults and "vllm" not in scenario.name}
    assert set(told) == set(faulty)
    for name, scenario in faulty.items():
        refs = {FAULTS.get(use.name).ref.replace("vllm-project/vllm#", "#") for use in scenario.faults}
        assert refs <= set(told[name]), name


def test_the_list_of_bugs_has_every_fault_on_the_engine_and_the_kernels() -> None:
    bugs = (ROOT / "docs" / "bugs.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\| `([a-z_]+\.[a-z0-9-]+)` \|", bugs))
    own = {fault.name for fault in FAULTS if not fault.name.startswith("vllm.")}
    assert listed == own and f"lists the {len(own)} bugs one by one" in README
    assert "NOT CAUGHT" not in bugs


def test_commands_are_those_of_the_program() -> None:
    assert {row[0].split()[0] for row in table("command")} == set(COMMANDS)


def test_exit_codes_are_those_of_the_help() -> None:
    documented = {row[0] for row in table("code")}
    assert documented == set(re.findall(r"\b\d+\b", EXIT_CODES))


def test_the_page_of_ops_is_what_the_code_gives() -> None:
    written = subprocess.run([sys.executable, "tools/ops_document.py"], cwd=ROOT, capture_output=True, text=True)
    assert written.stdout == (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert all(f"## {name}" in written.stdout for name in OPS.names())


@pytest.mark.parametrize("op", OPS.names())
def test_support_matrix_lists_the_kernels_of_each_op(op: str) -> None:
    match = re.search(rf"^\| `{op}` \| ([^|]*) \| ([^|]*) \| [^|]* \|$", README, re.MULTILINE)
    assert match, f"the support matrix has no row for {op}"
    specs = [spec for spec in KERNELS if spec.op == op]
    assert match[1].replace("`", "").split(", ") == [spec.short_name for spec in specs]
    assert set(match[2].split(", ")) == {device for spec in specs for device in spec.devices}


def test_scenario_of_the_first_screen_is_a_valid_excerpt_of_the_shipped_one(tmp_path: Path) -> None:
    shown = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert shown
    path = tmp_path / "shown.yaml"
    path.write_text(shown[1], encoding="utf-8")
    excerpt = load_scenario(path)
    shipped = load_scenario(ROOT / "scenarios" / f"{excerpt.name}.yaml")
    assert excerpt.summary == shipped.summary
    assert excerpt.refs == shipped.refs
    for axis, values in excerpt.matrix.items():
        assert shipped.matrix[axis] == values
    assert len(shown[1].splitlines()) <= 12


def test_mentioned_options_exist() -> None:
    known = {option for name in COMMANDS for p in command(name).params for option in p.opts}
    known |= {"--cases", "--help", "--version"}
    told = set(re.findall(r"mla-harness [^`\n]*?(--[a-z-]+)", README)) | {"--resume", "--plugin", "--kernel"}
    assert told <= known


def test_files_that_documents_link_to_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / target).exists(), f"{name} links to {target}"


def test_folders_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:harness|tests|scenarios)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), f"CONTRIBUTING.md names {path}"


def test_constraints_pin_every_dependency_of_the_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = {
        re.split(r"==", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    }
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {re.split(r"[><=\[; ]", item)[0].lower() for item in wanted}
    # vLLM is what is judged: whichever version is installed, so none is pinned.
    assert names - {"vllm", "mla-harness"} <= pinned


def test_workflows_are_yaml_that_runs_what_the_readme_says() -> None:
    for name, command in (("ci", "bash .ci/run"), ("nightly", "mla-harness selftest")):
        workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
        runs = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
        assert command in runs


def test_ci_writes_the_summary_of_each_run_to_the_page_of_its_job() -> None:
    for name in ("ci", "nightly"):
        workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        (summary,) = [step for step in steps if "$GITHUB_STEP_SUMMARY" in step.get("run", "")]
        assert re.search(r"mla-harness report \S+ --markdown >> ", summary["run"])
        assert summary["if"] == "always()", "a run that failed is the one to read about"


def test_the_nightly_keeps_its_history_whether_the_night_was_good_or_not() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8"))
    report = workflow["jobs"]["report"]
    steps = report["steps"]
    (kept,) = [step for step in steps if step.get("uses", "").startswith("actions/cache/save")]
    (taken,) = [step for step in steps if step.get("uses", "").startswith("actions/cache/restore")]
    assert report["if"] == kept["if"] == "always()"
    assert kept["with"]["path"] == taken["with"]["path"] == "reports/history.sqlite"
    assert kept["with"]["key"] == taken["with"]["key"]
    (merged,) = [step for step in steps if "mla-harness merge" in step.get("run", "")]
    assert steps.index(taken) < steps.index(merged) < steps.index(kept)


def test_a_regression_of_the_nightly_keeps_no_run_out_of_its_history() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["report"]["steps"]
    (merged,) = [step for step in steps if "mla-harness merge" in step.get("run", "")]
    (taken_in,) = [step for step in steps if "mla-harness history --import" in step.get("run", "")]
    # `merge` ends with 1 on a regression, and what stands behind it in its step would not be run.
    assert len(merged["run"].splitlines()) == 1 and merged is not taken_in
    assert merged["if"] == taken_in["if"] == "always()" and "cp -r reports/tonight/faults" in taken_in["run"]


def test_every_shard_of_the_nightly_is_run_and_merged() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8"))["jobs"]
    shards = jobs["scenarios"]["strategy"]["matrix"]["shard"]
    (run,) = [step["run"] for step in jobs["scenarios"]["steps"] if "mla-harness run" in step.get("run", "")]
    assert shards == list(range(1, len(shards) + 1)) and f"--shard ${{{{ matrix.shard }}}}/{len(shards)}" in run
    assert "scenarios" in jobs["report"]["needs"]


def test_options_and_variables_of_the_history_are_those_of_the_program() -> None:
    text = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(--[a-z]+) [A-Z]+` \| `([A-Z_]+)` \|", text, re.MULTILINE))
    assert told == {p.opts[0]: p.envvar for p in command("run").params if getattr(p, "envvar", None)}
