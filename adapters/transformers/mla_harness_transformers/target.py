"""transformers as a target: a canary answers a task's questions in this process."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch_poison.patterns import Poison

from harness.api import FIXTURES, Answered, Case, Code, Questions, Run, Target, WhyNot
from mla_harness_adapters.backend import EngineBackend, Generated
from mla_harness_adapters.base import why_not_installed
from mla_harness_transformers.params import TransformersParams
from mla_harness_transformers.tables import ENGINE

PAGE = 64
"""Tokens of a page of the cache."""
NEEDED = ("psutil",)
"""Packages without which continuous batching sees no memory on a CPU, and does not start."""


class TransformersBackend(EngineBackend):
    """A checkpoint in bfloat16 on the CPU."""

    def __init__(self, path: str, params: TransformersParams) -> None:
        super().__init__(ENGINE, path, "transformers")
        self._params = params
        self._model = self._module.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.bfloat16
        ).eval()
        self._tokenizer = self._module.AutoTokenizer.from_pretrained(path)
        self.describe(self._model.config.vocab_size, torch.bfloat16, "auto")

    def close(self) -> None:
        """Nothing is held between calls."""

    def _generated(
        self, prompts: list[str], max_tokens: int, stop: list[str]
    ) -> Iterator[Generated]:
        prompts_ids = [self._tokenizer(prompt)["input_ids"] for prompt in prompts]
        asked = self._module.GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        ask = self._batched if self._params.batching == "continuous" else self._one_by_one
        for tokens, error in ask(prompts_ids, asked):
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            yield text, "abort" if error else "stop", tokens, ()

    def _one_by_one(
        self, prompts: list[list[int]], asked: object
    ) -> Iterator[tuple[list[int], str]]:
        for prompt in prompts:
            with torch.inference_mode():
                row = self._model.generate(torch.tensor([prompt]), generation_config=asked)[0]
            yield row[len(prompt) :].tolist(), ""

    def _batched(self, prompts: list[list[int]], asked: object) -> Iterator[tuple[list[int], str]]:
        small = self._module.ContinuousBatchingConfig(
            num_blocks=self._params.num_blocks, page_size=PAGE, max_batch_tokens=512
        )
        found = self._model.generate_batch(
            inputs=prompts, generation_config=asked, continuous_batching_config=small
        )
        # Its order is not promised. Equal prompts have equal answers.
        by_prompt = {tuple(one.prompt_ids): one for one in found.values()}
        for prompt in prompts:
            one = by_prompt.get(tuple(prompt))
            yield (one.generated_tokens, one.error or "") if one else ([], "no answer")


class TransformersTarget(Target):
    """Asks a canary a task's questions, `epochs` times."""

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        """Why the case cannot run here: a package is missing; None if it can."""
        if reason := why_not_installed(ENGINE):
            return reason
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if case.params_as(TransformersParams).batching == "none" or not missing:
            return None
        how = f"pip install {' '.join(missing)}"
        return WhyNot(f"{missing[0]} is not installed ({how})", Code.NOT_INSTALLED, missing[0], how)

    def run(self, poison: Poison) -> Run:
        """Answer the questions without a stored answer in the directory."""
        params = self.case.params_as(TransformersParams)
        backend = TransformersBackend(str(FIXTURES / f"canary-{params.canary}"), params)
        with (
            tempfile.TemporaryDirectory() as scratch,
            Questions(params.task, params.limit) as questions,
        ):
            folder = Path(self.directory or scratch)
            questions.ask(backend, folder, epochs=params.epochs, max_tokens=params.max_tokens)
            answered = Answered.read(folder, params.least_correct_percent / 100)
        return Run(poison.pattern, [answered])
