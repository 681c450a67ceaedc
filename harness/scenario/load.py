"""Scenario files -> checked scenarios, or an InputError with file, line, column and the way to mend it."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

import harness
from harness.core.errors import InputError
from harness.scenario import document, explain, matrix
from harness.scenario.document import Document, DocumentError
from harness.scenario.explain import Problem
from harness.scenario.schema import Scenario

SUFFIXES = (".yaml", ".yml")


def shipped_directory() -> Path:
    """The folder of the harness's own scenarios: beside the package in a checkout, inside it when installed."""
    package = Path(harness.__file__).parent if harness.__file__ else Path(next(iter(harness.__path__)))
    inside = package / "_scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"


def default_directory() -> Path:
    """`./scenarios` if it exists, else the folder of the shipped scenarios."""
    here = Path("scenarios")
    return here if here.is_dir() else shipped_directory()


def load_scenarios(directory: Path | None = None) -> list[Scenario]:
    """All scenarios of a folder, ordered by file name. Raises InputError for the first problem."""
    folder = default_directory() if directory is None else directory
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of scenarios; name another with --scenarios")
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not paths:
        raise InputError(f"{folder}: no scenario here; a scenario is a file that ends in .yaml")
    origin: dict[str, Path] = {}
    scenarios = []
    for path in paths:
        scenario, found = _load(path)
        if scenario.name in origin:
            first = origin[scenario.name]
            message = f"the name {scenario.name!r} is taken by {first}; rename one of them"
            raise _input_error(Problem(("name",), message), found, path)
        origin[scenario.name] = path
        scenarios.append(scenario)
    return scenarios


def load_scenario(path: Path) -> Scenario:
    """One scenario file. Raises InputError for its first problem."""
    return _load(path)[0]


def _load(path: Path) -> tuple[Scenario, Document]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}:1:1: cannot be read: {error.strerror}") from None
    try:
        found = document.read(content)
    except DocumentError as error:
        raise InputError(f"{path}:{error.line}:{error.column}: {error.message}") from None
    return _checked(found, path), found


def _checked(found: Document, path: Path) -> Scenario:
    if not isinstance(found.data, dict):
        raise _input_error(Problem((), "a scenario is a mapping with a name, not a list or a word"), found, path)
    try:
        scenario = Scenario.model_validate_json(json.dumps(found.data), strict=True)
    except ValidationError as error:
        raise _first(explain.problems(error, Scenario), found, path) from None
    problems = list(matrix.check(scenario))
    if problems:
        raise _first(problems, found, path)
    return scenario


def _first(problems: list[Problem], found: Document, path: Path) -> InputError:
    """The first problem in the file. A missing key comes after wrong ones."""
    return _input_error(min(problems, key=lambda p: (not p.location, found.place(p.location, p.at_key))), found, path)


def _input_error(problem: Problem, found: Document, path: Path) -> InputError:
    line, column = found.place(problem.location, problem.at_key)
    return InputError(f"{path}:{line}:{column}: {problem.message}")
