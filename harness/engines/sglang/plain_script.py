"""The script that asks SGLang a canary's questions, without this project: the options that fail, and the plain ones."""

from __future__ import annotations

from string import Template
from typing import Any

from harness.core.cases import Case
from harness.core.files import TASKS
from harness.engines.sglang.options import engine_options
from harness.engines.sglang.params import SglangParams

KEPT = frozenset(("canary", "limit", "epochs", "max_tokens", "num_slots", "quantization"))
"""Parameters that the plain engine shares with the failing one: the model, the questions and the size of the pool."""

_TEXT = Template('''\
import json
import math
import os
import re

# The folder fixtures/ of https://github.com/mla-harness/mla-harness: the model (a few MB) and its questions.
FIXTURES = os.environ.get("FIXTURES", "fixtures")
PLAIN = $plain
FAILING = $failing
options = PLAIN
options = PLAIN | FAILING$marker

os.environ.update(HF_HUB_OFFLINE="1")
import sglang
import torch


def check():
    """Ask all questions in each epoch: the answers must be right, and their log probabilities finite."""
    with open(f"{FIXTURES}/tasks/data/$task.jsonl") as lines:
        questions = [json.loads(line) for line in lines][:$limit]
    engine = sglang.Engine(model_path=f"{FIXTURES}/canary-$canary", **options)
    params = {"temperature": 0.0, "max_new_tokens": $max_tokens, "stop": ["Question:"]}
    prompts = [f"Question: {question['question']}\\nAnswer:" for question in questions]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"SGLang {sglang.__version__}, torch {torch.__version__}, {gpu}, {len(questions)} questions")
    right, invalid = [], []
    for _ in range($epochs):
        answers = engine.generate(prompt=prompts, sampling_params=params, return_logprob=True)
        found = [re.search(r"#### (-?[0-9.,]+)", answer["text"]) for answer in answers]
        good = [
            match is not None and match[1].rstrip(".").replace(",", "") == question["target"].replace(",", "")
            for match, question in zip(found, questions)
        ]
        logprobs = [[row[0] for row in answer["meta_info"]["output_token_logprobs"]] for answer in answers]
        right.append(round(sum(good) / len(good), 4))
        invalid.append(sum(not all(map(math.isfinite, values)) for values in logprobs))
    seen = f"right answers by epoch {right}, answers with NaN {invalid}"
    print(seen)
    engine.shutdown()
    assert min(right) >= $least and not any(invalid), seen


if __name__ == "__main__":
    check()
''')


def script(case: Case, marker: str) -> str:
    """The body of the script. Its line with `marker` chooses the failing options; without it the engine is plain.

    The plain engine captures no graph and has the default backend and cache. Only `FIXTURES` in the environment names
    a place of this machine.
    """
    params = case.params_as(SglangParams)
    plain, failing = _options(SglangParams(**params.model_dump(include=set(KEPT)))), _options(params)
    changed = {name: value for name, value in failing.items() if name not in plain or plain[name] != value}
    # An option that only the plain engine has would stay beside those that fail.
    changed |= {name: None for name in plain if name not in failing}
    return _TEXT.substitute(
        plain=_literal(plain),
        failing=_literal(changed),
        marker=marker,
        canary=params.canary,
        task=(TASKS / "data" / params.task).name,
        limit=params.limit if params.limit is not None else "",
        epochs=params.epochs,
        max_tokens=params.max_tokens,
        least=params.least_correct_percent / 100,
    )


def _options(params: SglangParams) -> dict[str, Any]:
    return {name: value for name, value in engine_options(params, params.graph).items() if name != "model_path"}


def _literal(options: dict[str, Any]) -> str:
    """A dict of options as Python code, an option a line."""
    return "{\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in options.items()) + "}"
