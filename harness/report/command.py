"""The commands that run or show one case again, as a user types them."""

from __future__ import annotations

import shlex
from typing import Any

from harness.core.records import CaseResult

OPTION_FLAGS = {"device": "--device", "kernel": "--kernel", "scenarios": "--scenarios"}
EPOCHS = "epochs"
"""The scenario, and the key of `run.json`, of a run of `mla-harness epochs`."""


def reproduce(result: CaseResult, options: dict[str, Any]) -> str:
    """`mla-harness run ID` with all that decides the outcome: fault, kernel, plug-ins, seed, device."""
    if result.scenario == EPOCHS and EPOCHS in options:
        return _epochs(options[EPOCHS])
    return reproduce_case(result.id, result.fault, options)


def reproduce_case(case_id: str, fault: str | None, options: dict[str, Any]) -> str:
    """`mla-harness run ID` for a case without a result, such as the smallest failing one."""
    words = ["mla-harness", "run", case_id]
    for name, flag in OPTION_FLAGS.items():
        value = options.get(name)
        if value and (name, value) != ("device", "auto"):
            words += [flag, str(value)]
    words += _rest(options)
    if fault:
        words += ["--fault", fault]
    return shlex.join(words)


def _epochs(questions: dict[str, Any]) -> str:
    words = ["mla-harness", EPOCHS]
    settings = {name: value for name, value in questions.items() if name != "options"} | questions.get("options", {})
    for name, value in settings.items():
        if value is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    return shlex.join(words)


def show(case_id: str, options: dict[str, Any]) -> str:
    """`mla-harness show ID` with the options that decide which case the id names."""
    words = ["mla-harness", "show", case_id]
    for name in ("kernel", "scenarios"):
        if options.get(name):
            words += [OPTION_FLAGS[name], str(options[name])]
    return shlex.join(words + _rest(options))


def _rest(options: dict[str, Any]) -> list[str]:
    words = [word for plugin in options.get("plugins", ()) for word in ("--plugin", str(plugin))]
    return words + (["--seed", str(options["seed"])] if options.get("seed") else [])
