"""Answers of transformers are judged, and a request that fails is no answer."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from harness.api import FIXTURES, Code
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from tests.transcripts import Approved

pytest.importorskip("transformers")
from mla_harness_transformers import target
from mla_harness_transformers.params import TransformersParams


class FakeModel:
    """A model whose continuous batching answers all prompts but the longest."""

    config = SimpleNamespace(vocab_size=2048)

    def eval(self) -> FakeModel:
        return self

    def generate_batch(self, inputs: list[list[int]], **more: Any) -> dict[str, Any]:
        longest = max(inputs, key=len)
        found = {
            f"req_{number}": SimpleNamespace(
                prompt_ids=prompt,
                generated_tokens=[] if prompt == longest else prompt[:2],
                error="no slot" if prompt == longest else None,
            )
            for number, prompt in enumerate(inputs)
        }
        # The order of requests is not promised.
        return dict(reversed(found.items()))


def test_each_answer_of_a_batch_goes_to_its_prompt_and_a_failed_one_is_invalid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import transformers

    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: FakeModel()
    )
    path = str(FIXTURES / "canary-mla")
    backend = target.TransformersBackend(path, TransformersParams())
    prompts = ["1 2", "3 4", "a longer prompt than the others"]
    answers = backend.generate(prompts, max_tokens=4, stop=())
    assert [answer.text for answer in answers] == ["1 ", "3 ", ""]
    assert [answer.had_invalid_tokens for answer in answers] == [False, False, True]


def test_without_psutil_only_plain_generate_runs(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        target.importlib.util, "find_spec", lambda name: None if name == "psutil" else found(name)
    )
    scenarios = [one for one in load_scenarios() if one.name == "transformers-batches"]
    cases = {
        case.params_as(TransformersParams).batching: case
        for scenario in scenarios
        for case in expand(scenario)
    }
    assert target.TransformersTarget.why_not(cases["none"]) is None
    reason = target.TransformersTarget.why_not(cases["continuous"])
    assert reason is not None and reason.cause == Code.NOT_INSTALLED
    approved(str(reason))
