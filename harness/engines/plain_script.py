"""A script that asks an engine a canary's questions, without this project: with options that fail, or plain ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any

from harness.core.files import TASKS
from harness.core.literals import literal
from harness.core.params import Params

_TEXT = Template('''\
import json
import math
import os
import re

# The folder fixtures/ of https://github.com/mla-harness/mla-harness: the model (a few MB) and its questions.
FIXTURES = os.environ.get("FIXTURES", "fixtures")
PLAIN = $plain
FAILING = $failing
environ, options = $plain_environ, PLAIN
environ, options = $environ, PLAIN | FAILING$marker

os.environ.update(HF_HUB_OFFLINE="1", TRITON_PRINT_AUTOTUNING="0", **environ)
import torch
import $package


$start
def check():
    """Ask all questions in each epoch: the answers must be right, and their log probabilities finite."""
    with open(f"{FIXTURES}/tasks/data/$task.jsonl") as lines:
        questions = [json.loads(line) for line in lines][:$limit]
    ask = start(f"{FIXTURES}/canary-$canary")
    prompts = [f"Question: {question['question']}\\nAnswer:" for question in questions]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"$title {$package.__version__}, torch {torch.__version__}, {gpu}, {len(questions)} questions")
    right, invalid = [], []
    for _ in range($epochs):
        answers = ask(prompts)
        found = [re.search(r"#### (-?[0-9.,]+)", text) for text, _ in answers]
        good = [
            match is not None and match[1].rstrip(".").replace(",", "") == question["target"].replace(",", "")
            for match, question in zip(found, questions)
        ]
        right.append(round(sum(good) / len(good), 4))
        invalid.append(sum(not all(map(math.isfinite, logprobs)) for _, logprobs in answers))
    seen = f"right answers by epoch {right}, answers with NaN {invalid}"
    print(seen)
    assert min(right) >= $least and not any(invalid), seen


if __name__ == "__main__":
    check()
''')


@dataclass(frozen=True, slots=True)
class Start:
    """Options of an engine, and the environment that it needs."""

    options: Mapping[str, Any]
    environ: Mapping[str, str] = field(default_factory=dict)


def plain_script(
    params: Params, plain: Start, failing: Start, marker: str, *, package: str, title: str, start: str, absent: object
) -> str:
    """The body of the script. Its line with `marker` chooses the failing options; without it the engine is plain.

    `start` is the code of the function `start`: (path of the checkpoint) -> a function that asks prompts and returns a
    pair for each, the text and its log probabilities. It may use `options`. `absent` switches an option off. Only
    `FIXTURES` in the environment names a place of this machine.
    """
    asked = params.model_dump()
    options = {name: value for name, value in plain.options.items() if value is not None}
    changed = {name: value for name, value in failing.options.items() if options.get(name) != value}
    # An option that only the plain engine has would stay beside those that fail.
    changed |= {name: absent for name in options if name not in failing.options}
    return _TEXT.substitute(
        plain=_lines(options),
        failing=_lines(changed),
        plain_environ=literal(dict(plain.environ)),
        environ=literal(dict(failing.environ)),
        marker=marker,
        package=package,
        title=title,
        start=Template(start).substitute(max_tokens=asked["max_tokens"]),
        canary=asked["canary"],
        task=(TASKS / "data" / asked["task"]).name,
        limit="" if asked["limit"] is None else asked["limit"],
        epochs=asked["epochs"],
        least=asked["least_correct_percent"] / 100,
    )


def _lines(options: Mapping[str, Any]) -> str:
    """A dict of options as Python code, an option a line."""
    rows = "".join(f"    {literal(name)}: {literal(value)},\n" for name, value in options.items())
    return f"{{\n{rows}}}"
