"""What the workflows run is there: files, tox environments, commands and their options."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.cli.commands import Commands
from harness.cli.main import app

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ROOMS = (".ci", ".github", "docs", "examples", "fixtures", "harness", "scenarios", "tests", "tools")


def wrong(workflow: dict[str, Any]) -> list[str]:
    """What the jobs of `workflow` name and the checkout lacks."""
    found = []
    for name, job in workflow["jobs"].items():
        needed = job.get("needs", [])
        needed = [needed] if isinstance(needed, str) else needed
        found += [f"{name} needs {other}, which is no job" for other in needed if other not in workflow["jobs"]]
        for step in job["steps"]:
            if "uses" in step and not re.fullmatch(r"[\w-]+/[\w/-]+@\S+", step["uses"]):
                found.append(f"{name}: {step['uses']} names no version")
            found += [f"{name}: {text}" for text in wrong_in(step.get("run", ""))]
    return found


def wrong_in(script: str) -> list[str]:
    """What a shell script names and the checkout lacks. Command substitutions are left out."""
    script = re.sub(r"\$\([^)]*\)", "", script)
    paths = re.findall(
        rf"(?<![\w/.-])((?:{'|'.join(map(re.escape, ROOMS))})/[\w./-]+|[\w-]+\.(?:md|txt|toml|ini))", script
    )
    made = re.findall(r"(?:>|tee) *([\w-]+\.txt)", script)
    found = [f"no file {path}" for path in paths if path not in made and not (ROOT / path).exists()]
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    for env in re.findall(r"tox (?:run )?-e (\w[\w-]*)", script):
        if not (tox.has_section(f"testenv:{env}") or re.fullmatch(r"py(3\d+)?", env)):
            found.append(f"no tox environment {env}")
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    for name, rest in re.findall(r"(?:^|[\s;])mla-harness ([a-z][a-z-]*)([^\n;|>]*)", script):
        command = group.get_command(typer.Context(group), name)
        options = {option for parameter in command.params for option in parameter.opts} if command else set()
        if command is None:
            found.append(f"no command {name}")
        else:
            found += [
                f"{name} has no {word}" for word in re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest) if word not in options
            ]
    return found


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_what_a_workflow_names_is_there(file: Path) -> None:
    assert wrong(yaml.safe_load(file.read_text(encoding="utf-8"))) == []


def test_a_workflow_that_names_what_is_not_there_is_seen() -> None:
    steps = [
        {"uses": "actions/checkout"},
        {"run": "bash .ci/gone\ntox run -e gone\nmla-harness gone\nmla-harness list --gone"},
    ]
    assert wrong({"jobs": {"a": {"needs": "b", "steps": steps}}}) == [
        "a needs b, which is no job",
        "a: actions/checkout names no version",
        "a: no file .ci/gone",
        "a: no tox environment gone",
        "a: no command gone",
        "a: list has no --gone",
    ]


@pytest.mark.parametrize(
    "script",
    [file for file in sorted((ROOT / ".ci").iterdir()) if file.is_file() and file.suffix != ".py"],
    ids=lambda file: file.name,
)
def test_a_script_of_ci_is_shell_that_parses(script: Path) -> None:
    if script.suffix == ".yaml":
        assert yaml.safe_load(script.read_text(encoding="utf-8"))
    else:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_documentation_has_a_job_that_publishes_it() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["pages"]["steps"]
    built = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["site_dir"]
    (upload,) = [step for step in steps if step.get("uses", "").startswith("actions/upload-pages-artifact")]
    assert upload["with"]["path"] == built
    assert any(step.get("uses", "").startswith("actions/deploy-pages") for step in steps)
