"""A case of served SGLang as a script with plain `sglang.Engine`."""

from __future__ import annotations

from harness.api import Case
from mla_harness_adapters.plain_script import Start, plain_script
from mla_harness_sglang.options import engine_options
from mla_harness_sglang.params import SglangParams
from mla_harness_sglang.tables import ENGINE

KEPT = frozenset(("canary", "limit", "epochs", "max_tokens", "num_slots", "quantization"))
"""Parameters that the plain engine shares with the failing one: the model, the questions and the
size of the pool.
"""
_START = """\
def start(path):
    engine = sglang.Engine(model_path=path, **options)
    params = {"temperature": 0.0, "max_new_tokens": MAX_TOKENS, "stop": ["Question:"]}

    def ask(prompts):
        answers = engine.generate(prompt=prompts, sampling_params=params, return_logprob=True)
        return [(one["text"], [row[0] for row in one["meta_info"]["output_token_logprobs"]]) for one in answers]

    return ask

"""  # noqa: E501


def script(case: Case, marker: str) -> str:
    """The script of :func:`plain_script`.

    The plain engine captures no graph and has the default backend.
    """
    params = case.params_as(SglangParams)
    return plain_script(
        ENGINE, params, marker, kept=KEPT, start_of=_start, start=_START, absent=None
    )


def _start(params: SglangParams) -> Start:
    options = engine_options(params, params.graph)
    return Start({name: value for name, value in options.items() if name != "model_path"})
