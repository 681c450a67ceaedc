from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.accuracy.backends import Answer, open_backend, parse_model
from harness.accuracy.lm import BackendLM
from harness.core.errors import InputError
from tests.transcripts import Approved


def request(prompt: str, **settings: Any) -> SimpleNamespace:
    return SimpleNamespace(args=(prompt, settings))


def test_requests_of_one_setting_are_one_call_and_answers_keep_their_order(scripted: Any) -> None:
    backend = scripted(lambda call, prompt: Answer(prompt.upper()))
    lm = BackendLM(backend)
    texts = lm.generate_until(
        [
            request("a", until=["\n"]),
            request("b", until="x", max_gen_toks=9),
            request("c", until=["\n"]),
        ]
    )
    assert texts == ["A", "B", "C"]
    assert backend.calls == [["a", "c"], ["b"]]
    assert backend.limits == [(256, ("\n",)), (9, ("x",))]


def test_an_order_changes_what_is_asked_first_and_not_what_is_returned(scripted: Any) -> None:
    backend = scripted(lambda call, prompt: Answer(prompt.upper()))
    lm = BackendLM(backend)
    lm.order = lambda requests: [2, 0, 1]
    assert lm.generate_until([request("a"), request("b"), request("c")]) == ["A", "B", "C"]
    assert backend.calls == [["c", "a", "b"]]


@pytest.mark.parametrize("settings", [{"do_sample": True}, {"temperature": 0.7}])
def test_a_task_that_samples_is_refused(perfect: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="need greedy ones"):
        BackendLM(perfect).generate_until([request("a", **settings)])


@pytest.mark.parametrize("method", ["loglikelihood", "loglikelihood_rolling"])
def test_log_probabilities_are_refused_in_one_sentence(
    perfect: Any, method: str, approved: Approved
) -> None:
    with approved.raises(InputError):
        getattr(BackendLM(perfect), method)([])


@pytest.mark.parametrize("spec", ["fixtures/canary-mla", "engine:", "hf:gpt2", ""])
def test_a_model_that_is_none_of_the_three_kinds_is_an_input_error(
    spec: str, approved: Approved
) -> None:
    with approved.raises(InputError):
        parse_model(spec)


def test_a_server_address_keeps_its_colons() -> None:
    kind, where = parse_model("server:http://host:8000/v1")
    assert (kind.name, where) == ("server", "http://host:8000/v1")


def test_an_engine_without_a_checkpoint_is_an_input_error(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"no config\.json there"):
        open_backend(f"engine:{tmp_path}")
