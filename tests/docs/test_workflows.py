"""What the workflows run is there: files, tox environments, commands and their options."""

from __future__ import annotations

import configparser
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.cli.commands import Commands
from harness.cli.main import app

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
TOX = configparser.ConfigParser()
TOX.read(ROOT / "tox.ini")
ROOMS = (
    *(".ci", ".github", "docs", "examples", "fixtures", "harness", "poison", "scenarios", "tests"),
    *("adapters", "tools", "trust"),
)


def wrong(workflow: dict[str, Any]) -> list[str]:
    """What the jobs of `workflow` name and the checkout lacks."""
    found = []
    for name, job in workflow["jobs"].items():
        needed = job.get("needs", [])
        needed = [needed] if isinstance(needed, str) else needed
        found += [
            f"{name} needs {other}, which is no job"
            for other in needed
            if other not in workflow["jobs"]
        ]
        for step in job["steps"]:
            if "uses" in step and not re.fullmatch(r"[\w-]+/[\w/-]+@\S+", step["uses"]):
                found.append(f"{name}: {step['uses']} names no version")
            for script in spelled_out(
                step.get("run", ""), job.get("strategy", {}).get("matrix", {})
            ):
                found += [f"{name}: {text}" for text in wrong_in(script)]
    return found


def spelled_out(script: str, matrix: dict[str, list[Any]]) -> list[str]:
    """The script for each value of the matrix that it uses."""
    scripts = [script]
    for name, values in matrix.items():
        use = f"${{{{ matrix.{name} }}}}"
        scripts = [
            one.replace(use, str(value))
            for one in scripts
            for value in (values if use in one else [""])
        ]
    return scripts


def wrong_in(script: str) -> list[str]:
    """What a shell script names and the checkout lacks. Command substitutions are left out."""
    script = re.sub(r"\$\([^)]*\)", "", script)
    paths = re.findall(
        rf"(?<![\w/.-])((?:{'|'.join(map(re.escape, ROOMS))})/[\w./-]+|[\w-]+\.(?:md|txt|toml|ini))",  # noqa: E501
        script,
    )
    made = re.findall(r"(?:>|tee) *([\w-]+\.txt)", script)
    found = [f"no file {path}" for path in paths if path not in made and not (ROOT / path).exists()]
    for module in re.findall(r"-m ((?:harness|tests|trust)[\w.]+)", script):
        file = ROOT / module.replace(".", "/")
        if not (file.with_suffix(".py").exists() or (file / "__main__.py").exists()):
            found.append(f"no module {module}")
    extras = re.findall(r"\.\[([\w,-]+)\]|try_installs \"?([\w,-]+)", script)
    found += [
        f"no extra {extra}"
        for extra in ",".join(map("".join, extras)).split(",")
        if extra and extra not in (*EXTRAS, "core")
    ]
    for env in re.findall(r"tox (?:run )?-e (\w[\w-]*)", script):
        if not (TOX.has_section(f"testenv:{env}") or re.fullmatch(r"py(3\d+)?", env)):
            found.append(f"no tox environment {env}")
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    for name, rest in re.findall(r"(?:^|[\s;])mla-harness ([a-z][a-z-]*)([^\n;|>]*)", script):
        command = group.get_command(typer.Context(group), name)
        options = (
            {option for parameter in command.params for option in parameter.opts}
            if command
            else set()
        )
        if command is None:
            found.append(f"no command {name}")
        else:
            found += [
                f"{name} has no {word}"
                for word in re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest)
                if word not in options
            ]
    return found


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_what_a_workflow_names_is_there(file: Path) -> None:
    assert wrong(yaml.safe_load(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("name", [name for name in TOX.sections() if name.startswith("testenv")])
def test_what_a_tox_environment_names_is_there(name: str) -> None:
    extras = TOX[name].get("extras", "")
    assert (
        wrong_in(
            TOX[name]["commands"]
            + (f"\npip install '.[{extras.replace(' ', '')}]'" if extras else "")
        )
        == []
    )


def test_a_workflow_that_names_what_is_not_there_is_seen() -> None:
    steps = [
        {"uses": "actions/checkout"},
        {"run": "bash .ci/gone\ntox run -e gone\nmla-harness gone\nmla-harness list --gone"},
        {
            "run": (
                "python -m tests.gone\npip install -e '.[dev,gone]'\n.ci/try_installs ${{"
                " matrix.install }}"
            )
        },
    ]
    job = {
        "needs": "b",
        "steps": steps,
        "strategy": {"matrix": {"install": ["core", "dev,lost"], "unused": [1, 2]}},
    }
    assert wrong({"jobs": {"a": job}}) == [
        "a needs b, which is no job",
        "a: actions/checkout names no version",
        "a: no file .ci/gone",
        "a: no tox environment gone",
        "a: no command gone",
        "a: list has no --gone",
        "a: no module tests.gone",
        "a: no extra gone",
        "a: no module tests.gone",
        "a: no extra gone",
        "a: no extra lost",
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
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "pages.yml").read_text(encoding="utf-8")
    )
    steps = workflow["jobs"]["pages"]["steps"]
    built = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["site_dir"]
    (upload,) = [
        step for step in steps if step.get("uses", "").startswith("actions/upload-pages-artifact")
    ]
    assert upload["with"]["path"] == built
    assert any(step.get("uses", "").startswith("actions/deploy-pages") for step in steps)
