"""What the README and docs/ say is what the code has: tables, commands, exit codes, links,
words.
"""

from __future__ import annotations

import csv
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
from harness.core.catalog import ENGINES, FAULTS, KERNELS, ORACLES, SITES
from harness.core.ops import OPS
from harness.scenario.load import load_scenario

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("findings/*.md"), *DOCS.glob("data/*.md")])


def table(page: str, first_column: str) -> list[list[str]]:
    """The cells of the table of a page whose header starts with `first_column`, without
    backticks.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    match = re.search(rf"^\| {first_column} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert match, f"{page} has no table of {first_column}"
    rows = [line.strip().strip("|").split(" | ") for line in match[1].splitlines()]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows]


def command(name: str) -> Any:
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    found = group.get_command(typer.Context(group), name)
    assert found, name
    return found


def is_of_an_engine(name: str) -> bool:
    """Whether a system or a fault is one of a real engine: its bugs are in the engine's pages."""
    return re.split(r"[-.]", name)[0] in ENGINES.names()


def test_every_scenario_with_faults_is_in_the_table_of_families_with_their_upstream_numbers() -> (
    None
):
    told = {
        name: row[3].split(", ")
        for row in table("what-goes-wrong.md", "family")
        for name in row[2].split(", ")
    }
    scenarios = [load_scenario(path) for path in sorted((ROOT / "scenarios").rglob("*.yaml"))]
    faulty = {
        scenario.name: scenario
        for scenario in scenarios
        if scenario.faults and not is_of_an_engine(scenario.system)
    }
    assert set(told) == set(faulty)
    for name, scenario in faulty.items():
        refs = {
            FAULTS.get(use.name).ref.replace("vllm-project/vllm#", "#") for use in scenario.faults
        }
        assert refs <= set(told[name]), name


def test_the_list_of_bugs_has_every_fault_on_the_engine_and_the_kernels() -> None:
    record = ROOT / "docs" / "data" / "bugs"
    with (record / "bugs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    listed = {row["fault"] for row in rows}
    own = {fault.name for fault in FAULTS if not is_of_an_engine(fault.name)}
    assert listed == own
    # A floor: an exact number would be one more place to edit for each new bug.
    told = re.search(r"\[More than (\d+) upstream bugs\]\(docs/data/bugs\.md\)", README)
    assert told and int(told[1]) < len(own)
    assert [row["fault"] for row in rows if "NOT CAUGHT" in row["oracle"]] == []


def test_commands_are_those_of_the_program() -> None:
    assert {row[0].split()[0] for row in table("index.md", "command")} == set(COMMANDS)


def test_exit_codes_are_those_of_the_help() -> None:
    assert {row[0] for row in table("ci.md", "code")} == set(re.findall(r"\b\d+\b", EXIT_CODES))


@pytest.mark.parametrize("name", ["ops.md", "reference.md"])
def test_the_tables_of_the_code_are_what_the_tool_writes(name: str) -> None:
    command = [sys.executable, "tools/pages.py", name.removesuffix(".md")]
    written = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert written == (ROOT / "docs" / name).read_text(encoding="utf-8"), (
        f"run python {' '.join(command[1:])}"
    )
    assert all(op in written for op in OPS.names())


def test_the_page_of_tables_has_every_oracle_site_and_kernel() -> None:
    assert table("reference.md", "oracle") == [[entry.name, entry.summary] for entry in ORACLES]
    assert table("reference.md", "site") == [[entry.name, entry.summary] for entry in SITES]
    kernels = {row[0]: row[1].split(", ") for row in table("reference.md", "op")}
    assert kernels == {
        op: [spec.short_name for spec in KERNELS if spec.op == op] for op in OPS.names()
    }


def test_the_picture_is_what_its_script_draws_of_its_data(tmp_path: Path) -> None:
    for file in (ROOT / "docs" / "pictures").iterdir():
        if file.suffix in (".json", ".py"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, str(tmp_path / "answers_by_option.py")], check=True)
    drawn = (tmp_path / "answers-by-option.svg").read_bytes()
    assert drawn == (ROOT / "docs" / "pictures" / "answers-by-option.svg").read_bytes()


def test_mentioned_options_exist() -> None:
    known = {option for name in COMMANDS for p in command(name).params for option in p.opts}
    known |= {
        "--cases",
        "--help",
        "--version",
        "--dir",
        "--install-completion",
        "--show-completion",
    }
    pages = [README, *(file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.md"))]
    told = {
        option
        for page in pages
        for option in re.findall(r"^\$ mla-harness [^`\n]*?(--[a-z-]+)", page, re.M)
    }
    assert told <= known, told - known


def test_files_that_documents_link_to_exist() -> None:
    for page in [*ROOT.glob("*.md"), *PAGES, *(ROOT / "examples").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target, fragment in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            if fragment and linked.suffix == ".md":
                heads = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
                assert fragment in map(slug, heads), f"{page.name} links to {target}#{fragment}"


def slug(head: str) -> str:
    """The fragment of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")


def test_every_page_is_in_the_menu_and_in_the_index() -> None:
    pages = {file.relative_to(ROOT / "docs").as_posix() for file in PAGES}
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = [
        page
        for entry in menu
        for page in (next(iter(entry.values())) if isinstance(entry, dict) else [entry])
    ]
    assert sorted(listed) == sorted(pages)
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    findings = (DOCS / "findings.md").read_text(encoding="utf-8")
    lists = {name: findings if name.startswith("findings/") else index for name in pages}
    assert {name for name, text in lists.items() if f"]({name}" not in text} == {"index.md"}


RIDDLES = re.compile(
    r"\b(nobody|somebody|anybody|of which|put back|belongs? to nobody|stands? for nothing|looked at"
    r" nothing|"
    r"with nothing poisoned|one value only)\b",
    re.IGNORECASE,
)


def test_pages_and_messages_have_plain_words() -> None:
    files = [
        *DOCS.glob("*.md"),
        *DOCS.glob("findings/*.md"),
        ROOT / "README.md",
        *(ROOT / "scenarios").rglob("*.yaml"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    files += [
        file for file in (ROOT / "harness").rglob("*") if file.suffix in (".py", ".html", ".j2")
    ]
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        for match in RIDDLES.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == set()


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
    # The engines are what is judged: whichever version is installed, so none is pinned.
    assert (
        names - {"vllm", "sglang", "sglang-kernel", "flashinfer-python", "lmdeploy", "mla-harness"}
        <= pinned
    )


def test_workflows_are_yaml_that_runs_what_the_readme_says() -> None:
    for name, command in (("ci", "bash .ci/run"), ("nightly", "mla-harness selftest")):
        workflow = yaml.safe_load(
            (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        )
        runs = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
        assert command in runs


def test_ci_writes_the_summary_of_each_run_to_the_page_of_its_job() -> None:
    for name in ("ci", "nightly"):
        workflow = yaml.safe_load(
            (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        )
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        runs = r"mla-harness report \S+ --markdown >> \"\$GITHUB_STEP_SUMMARY\""
        (summary,) = [step for step in steps if re.search(runs, step.get("run", ""))]
        assert summary["if"] == "always()", "a run that failed is the one to read about"


def test_the_nightly_keeps_its_history_whether_the_night_was_good_or_not() -> None:
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    )
    report = workflow["jobs"]["report"]
    steps = report["steps"]
    (kept,) = [step for step in steps if step.get("uses", "").startswith("actions/cache/save")]
    (taken,) = [step for step in steps if step.get("uses", "").startswith("actions/cache/restore")]
    assert report["if"] == kept["if"] == "always()"
    assert kept["with"]["path"] == taken["with"]["path"] == "reports/runs/*/summary.json"
    assert kept["with"]["key"] == taken["with"]["key"]
    (merged,) = [step for step in steps if "mla-harness merge" in step.get("run", "")]
    assert steps.index(taken) < steps.index(merged) < steps.index(kept)


def test_a_regression_of_the_nightly_keeps_no_run_out_of_its_history() -> None:
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    )
    steps = workflow["jobs"]["report"]["steps"]
    (merged,) = [step for step in steps if "mla-harness merge" in step.get("run", "")]
    (taken_in,) = [step for step in steps if "cp -r reports/tonight/faults" in step.get("run", "")]
    # `merge` ends with 1 on a regression, and what stands behind it in its step would not be run.
    assert len(merged["run"].splitlines()) == 1 and merged is not taken_in
    assert merged["if"] == taken_in["if"] == "always()"


def test_every_shard_of_the_nightly_is_run_and_merged() -> None:
    jobs = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    )["jobs"]
    shards = jobs["scenarios"]["strategy"]["matrix"]["shard"]
    (run,) = [
        step["run"]
        for step in jobs["scenarios"]["steps"]
        if "mla-harness run" in step.get("run", "")
    ]
    assert (
        shards == list(range(1, len(shards) + 1))
        and f"--shard ${{{{ matrix.shard }}}}/{len(shards)}" in run
    )
    assert "scenarios" in jobs["report"]["needs"]


def test_options_and_variables_of_the_history_are_those_of_the_program() -> None:
    text = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(--[a-z]+) [A-Z]+` \| `([A-Z_]+)` \|", text, re.MULTILINE))
    assert told == {
        p.opts[0]: p.envvar for p in command("run").params if getattr(p, "envvar", None)
    }


COMMANDS_ELSEWHERE = {
    ".github/workflows/gpu.yml": {"doctor", "survey", "run", "report"},
    ".ci/vllm.buildkite.yaml": {"doctor", "run"},
    "Dockerfile": {"survey"},
}


@pytest.mark.parametrize("file", COMMANDS_ELSEWHERE)
def test_what_runs_on_a_gpu_in_ci_is_yaml_with_commands_and_tags_of_the_program(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    if file != "Dockerfile":
        assert yaml.safe_load(text)
    lines = re.findall(r"(?:^|[\s;])mla-harness ((?:survey|doctor|run|report)\b[^\n;>]*)", text)
    assert {line.split()[0] for line in lines} == COMMANDS_ELSEWHERE[file]
    tags = {
        tag for path in (ROOT / "scenarios").rglob("*.yaml") for tag in load_scenario(path).tags
    }
    for name, *words in (line.split() for line in lines):
        options = {option for parameter in command(name).params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, words
        assert {words[i + 1] for i, word in enumerate(words) if word == "-m"} <= tags
