"""A script that asks an engine a canary's questions, without this project: with options that fail,
or plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.core.files import TASKS
from harness.core.literals import Code, literal
from harness.core.systems import EngineSpec
from harness.diagnose.script.code import templates
from harness.engines.served_params import ServedParams

ServedT = TypeVar("ServedT", bound=ServedParams)


@dataclass(frozen=True, slots=True)
class Start:
    """Options of an engine, and the environment that it needs."""

    options: Mapping[str, Any]
    environ: Mapping[str, str] = field(default_factory=dict)


def plain_script(
    engine: EngineSpec,
    params: ServedT,
    marker: str,
    *,
    kept: frozenset[str],
    start_of: Callable[[ServedT], Start],
    start: str,
    absent: object,
) -> str:
    """The body of the script.

    Its line with `marker` chooses the failing options; without it the engine is plain.

    The plain engine shares the parameters `kept` with the failing one; the others have their
    defaults. `start` is the code of the function `start`: (path of the checkpoint) -> a function
    that asks prompts for at most `MAX_TOKENS` and returns a pair for each, the text and its log
    probabilities. It may use `options`. `absent` switches an option off. Only `FIXTURES` in the
    environment names a place of this machine.
    """
    plain, failing = (
        start_of(type(params)(**params.model_dump(include=set(kept)))),
        start_of(params),
    )
    options = {name: value for name, value in plain.options.items() if value is not None}
    changed = {name: value for name, value in failing.options.items() if options.get(name) != value}
    # An option that only the plain engine has would stay beside those that fail.
    changed |= {name: absent for name in options if name not in failing.options}
    names = {"title": engine.title, "package": engine.package, "marker": marker, "start": start}
    names |= {"canary": params.checkpoint.name, "task": (TASKS / "data" / params.task).name}
    return (
        templates()
        .get_template("plain_engine.py.j2")
        .render(
            {name: Code(text) for name, text in names.items()},
            plain=_lines(options),
            failing=_lines(changed),
            plain_environ=literal(dict(plain.environ)),
            environ=literal(dict(failing.environ)),
            params=params,
            least=params.least_correct_percent / 100,
        )
    )


def _lines(options: Mapping[str, Any]) -> Code:
    rows = "".join(f"    {literal(name)}: {literal(value)},\n" for name, value in options.items())
    return Code(f"{{\n{rows}}}")
