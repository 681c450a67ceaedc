"""What our adapters call is read off their own text, whole, so that no list of it can be out of
date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

from adapters.vllm.tests.fits.calls import calls_of
from adapters.vllm.tests.fits.checks import OF_ENGINES
from tests.transcripts import Approved

ADAPTER = """
import importlib

_OPS = "vllm.ops"


def decode(q, cache):
    ops = importlib.import_module(_OPS)
    size = ops.workspace_size(q, num_splits=1)
    return _run("vllm.other", ops.Wrapper(size), q)


def _run(module, wrapper, q):
    wrapper.plan(q, causal=True)
    merge = importlib.import_module(module).inner.merge
    merge(*q, out=q)
    return q.sum()


def nothing(q):
    return q
"""


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_adapter.py").write_text(ADAPTER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "some_adapter"


def test_calls_are_followed_through_names_objects_and_functions_of_the_file(adapter: str) -> None:
    found = {
        call.path: (len(call.positions), call.names, call.is_open)
        for call in calls_of(f"{adapter}:decode")
    }
    assert found == {
        "vllm.ops:workspace_size": (1, ("num_splits",), False),
        "vllm.ops:Wrapper": (1, (), False),
        "vllm.ops:Wrapper.plan": (1, ("causal",), False),
        "vllm.other:inner.merge": (0, ("out",), True),
    }
    assert "some_adapter" not in sys.modules


def test_a_function_that_is_not_there_is_no_empty_list_of_calls(
    adapter: str, approved: Approved
) -> None:
    with approved.raises(LookupError):
        calls_of(f"{adapter}:gone")


@pytest.mark.parametrize("spec", OF_ENGINES, ids=lambda spec: spec.name)
def test_every_kernel_of_vllm_is_seen_to_call_what_it_imports(spec: object) -> None:
    impl = str(spec.impl)  # type: ignore[attr-defined]
    calls = calls_of(impl)
    assert calls and {call.path.partition(".")[0] for call in calls} <= {"vllm", "flashinfer"}


def test_every_module_that_an_adapter_imports_by_name_is_among_the_calls() -> None:
    """An import that the reader cannot follow would go unchecked."""
    called = {
        call.path.partition(":")[0] for spec in OF_ENGINES for call in calls_of(str(spec.impl))
    }
    for name in {str(spec.impl).partition(":")[0] for spec in OF_ENGINES}:
        tree = ast.parse(inspect.getsource(importlib.import_module(name)))
        words = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        named = {
            word for word in words if word.startswith(("vllm.", "flashinfer.")) and " " not in word
        }
        assert named - {"vllm.v1.attention.backends.utils"} <= called, name
