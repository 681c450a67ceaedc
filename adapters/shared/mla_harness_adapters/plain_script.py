"""A script that asks an engine a canary's questions, without this project: with options that fail,
or plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from harness.api import EngineSpec, render_script
from mla_harness_adapters.served_params import ServedParams

TEMPLATE = Path(__file__).with_name("plain_engine.py.j2")

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
    plain = start_of(type(params)(**params.model_dump(include=set(kept))))
    failing = start_of(params)
    options = {name: value for name, value in plain.options.items() if value is not None}
    changed = {name: value for name, value in failing.options.items() if options.get(name) != value}
    # An option that only the plain engine has would stay beside those that fail.
    changed |= {name: absent for name in options if name not in failing.options}
    code = {"title": engine.title, "package": engine.package, "marker": marker, "start": start}
    code |= {"canary": params.checkpoint.name, "task": Path(params.task).name}
    return render_script(
        TEMPLATE,
        code,
        plain=options,
        failing=changed,
        plain_environ=dict(plain.environ),
        environ=dict(failing.environ),
        params=params,
        least=params.least_correct_percent / 100,
    )
