"""The script that asks vLLM a canary's questions, without this project: the options that fail, and the plain ones."""

from __future__ import annotations

from string import Template
from typing import Any

from harness.core.cases import Case
from harness.core.files import TASKS
from harness.diagnose.script.code import literal
from harness.engines.vllm.options import llm_options
from harness.engines.vllm.params import VllmParams

KEPT = frozenset(
    ("canary", "limit", "epochs", "max_tokens", "num_blocks", "kv_megabytes", "quantization", "moe_backend")
)
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
runner, options = $plain_runner, PLAIN
runner, options = $runner, PLAIN | FAILING$marker

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_USE_V2_MODEL_RUNNER=runner,
    VLLM_USE_FLASHINFER_SAMPLER="0",
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
)
import torch
import vllm


def check():
    """Ask all questions in each epoch: the answers must be right, and their log probabilities finite."""
    with open(f"{FIXTURES}/tasks/data/$task.jsonl") as lines:
        questions = [json.loads(line) for line in lines][:$limit]
    llm = vllm.LLM(model=f"{FIXTURES}/canary-$canary", **options)
    params = vllm.SamplingParams(temperature=0, max_tokens=$max_tokens, stop=["Question:"], logprobs=0)
    prompts = [f"Question: {question['question']}\\nAnswer:" for question in questions]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"vLLM {vllm.__version__}, torch {torch.__version__}, {gpu}, {len(questions)} questions")
    right, invalid = [], []
    for _ in range($epochs):
        answers = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        found = [re.search(r"#### (-?[0-9.,]+)", answer.text) for answer in answers]
        good = [
            match is not None and match[1].rstrip(".").replace(",", "") == question["target"].replace(",", "")
            for match, question in zip(found, questions)
        ]
        logprobs = [[entry.logprob for step in answer.logprobs or () for entry in step.values()] for answer in answers]
        right.append(round(sum(good) / len(good), 4))
        invalid.append(sum(not all(map(math.isfinite, values)) for values in logprobs))
    seen = f"right answers by epoch {right}, answers with NaN {invalid}"
    print(seen)
    assert min(right) >= $least and not any(invalid), seen


if __name__ == "__main__":
    check()
''')


def script(case: Case, marker: str) -> str:
    """The body of the script. Its line with `marker` chooses the failing options; without it the engine is plain.

    The plain engine captures no graph and has the default backend, runner and cache. Only `FIXTURES` in the
    environment names a place of this machine.
    """
    params = case.params_as(VllmParams)
    plain = VllmParams(**params.model_dump(include=set(KEPT)))
    options, given = {name: value for name, value in _options(plain).items() if value is not None}, _options(params)
    failing = {name: value for name, value in given.items() if options.get(name) != value}
    # An option that only the plain engine has would stay beside those that fail.
    failing |= {name: False for name in options if name not in given}
    return _TEXT.substitute(
        plain=_literal(options),
        failing=_literal(failing),
        plain_runner=_runner(plain),
        runner=_runner(params),
        marker=marker,
        canary=params.canary,
        task=(TASKS / "data" / params.task).name,
        limit=params.limit if params.limit is not None else "",
        epochs=params.epochs,
        max_tokens=params.max_tokens,
        least=params.least_correct_percent / 100,
    )


def _options(params: VllmParams) -> dict[str, Any]:
    return llm_options(params, params.graph) | {"max_num_seqs": params.max_num_seqs}


def _runner(params: VllmParams) -> str:
    return '"1"' if params.runner == "v2" else '"0"'


def _literal(options: dict[str, Any]) -> str:
    """A dict of options as Python code, an option a line."""
    rows = "".join(f"    {literal(name)}: {literal(value)},\n" for name, value in options.items())
    return f"{{\n{rows}}}"
