"""A case of served vLLM as a script with plain `vllm.LLM`."""

from __future__ import annotations

from harness.api import Case
from mla_harness_adapters.plain_script import Start, plain_script
from mla_harness_vllm.options import llm_options
from mla_harness_vllm.params import VllmParams
from mla_harness_vllm.tables import ENGINE

KEPT = frozenset(
    (
        "canary",
        "limit",
        "epochs",
        "max_tokens",
        "num_blocks",
        "kv_megabytes",
        "quantization",
        "moe_backend",
    )
)
"""Parameters that the plain engine shares with the failing one: the model, the questions and the
size of the pool.
"""
ENVIRON = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_START = """\
def start(path):
    llm = vllm.LLM(model=path, **options)
    params = vllm.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop=["Question:"], logprobs=0)

    def ask(prompts):
        answers = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        logprobs = [[entry.logprob for step in answer.logprobs or () for entry in step.values()] for answer in answers]
        return [(answer.text, values) for answer, values in zip(answers, logprobs)]

    return ask

"""  # noqa: E501


def script(case: Case, marker: str) -> str:
    """The script of :func:`plain_script`.

    The plain engine captures no graph and has the default backend and runner.
    """
    params = case.params_as(VllmParams)
    return plain_script(
        ENGINE, params, marker, kept=KEPT, start_of=_start, start=_START, absent=False
    )


def _start(params: VllmParams) -> Start:
    options = {**llm_options(params, params.graph), "max_num_seqs": params.max_num_seqs}
    return Start(
        options, ENVIRON | {"VLLM_USE_V2_MODEL_RUNNER": "1" if params.runner == "v2" else "0"}
    )
