"""How a served engine refuses: by its own errors, in a file of the plan's folder or in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InputError, KernelError, Refused
from mla_harness_adapters.backend import options_for
from mla_harness_adapters.refusals import PLAN_FILE, OptionErrors, clear, note
from mla_harness_sglang import backend as sglang_backend
from mla_harness_sglang.options import OPTION_ERRORS as OF_SGLANG
from mla_harness_sglang.tables import ENGINE as SGLANG
from mla_harness_vllm.backend import GRAPHS
from mla_harness_vllm.options import OPTION_ERRORS as OF_VLLM
from mla_harness_vllm.tables import ENGINE as VLLM
from tests.transcripts import Approved

UNKNOWN = "ServerArgs.__init__() got an unexpected keyword argument 'x'"


@pytest.mark.parametrize(
    ("errors", "error", "is_refusal"),
    [
        (OF_VLLM, ValueError("no such backend"), True),
        (OF_VLLM, NotImplementedError(), True),
        (OF_VLLM, UnicodeError("is derived of ValueError"), True),
        (OF_VLLM, ValueError("Free memory on device cuda:0 is too little"), False),
        (OF_VLLM, AssertionError("no such backend"), False),
        (OF_VLLM, RuntimeError("ValueError: in its text"), False),
        (OF_SGLANG, AssertionError("no such cache"), True),
        (OF_SGLANG, TypeError(UNKNOWN), True),
        (OF_SGLANG, TypeError("'int' object is not callable"), False),
    ],
)
def test_an_engine_refuses_with_its_own_errors_and_fails_with_all_others(
    errors: OptionErrors, error: Exception, is_refusal: bool, tmp_path: Path
) -> None:
    with pytest.raises(type(error)), errors.noted(str(tmp_path)):
        raise error
    assert isinstance(errors.found_in(tmp_path), Refused) is is_refusal


def test_a_noted_refusal_is_one_line_and_names_the_engine(
    tmp_path: Path, approved: Approved
) -> None:
    with pytest.raises(ValueError, match="graphs"), OF_VLLM.noted(str(tmp_path)):
        raise ValueError("this backend takes\n no graphs")
    approved(str(OF_VLLM.found_in(tmp_path)))
    clear(tmp_path)
    assert OF_VLLM.found_in(tmp_path) is None


def test_a_plan_that_cannot_be_installed_is_told_before_options_that_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="later"), OF_SGLANG.noted(str(tmp_path)):
        raise ValueError("later")
    note(str(tmp_path), PLAN_FILE, KeyError())
    found = OF_SGLANG.found_in(tmp_path)
    assert isinstance(found, InputError) and str(found) == "KeyError"


def test_a_refusal_in_a_log_is_the_last_error_of_it(approved: Approved) -> None:
    for error in ("ValueError: no such cache", "pydantic.ValidationError: 1 error"):
        approved(str(OF_VLLM.of_log(KernelError(f"it ended: {error}"))), error)
    for other in ("ValueError: Free memory on device cuda:0", "RuntimeError: CUDA error"):
        assert OF_VLLM.of_log(KernelError(f"it ended: {other}")) is None


@pytest.mark.parametrize(
    ("engine", "flag", "value", "choices", "words"),
    [
        pytest.param(VLLM, "--graph", "half", GRAPHS, "none or full", id="vllm"),
        pytest.param(SGLANG, "--kv", "int4", sglang_backend.CACHES, "", id="sglang"),
    ],
)
def test_a_flag_with_another_value_is_refused_with_the_choices(
    engine: Any, flag: str, value: str, choices: Any, words: str, approved: Approved
) -> None:
    with approved.raises(InputError):
        options_for(engine, flag, value, choices, words)
    assert options_for(engine, flag, None, choices) == {}
    first = next(iter(choices))
    assert options_for(engine, flag, first, choices) == choices[first]
