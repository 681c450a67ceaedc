"""Only plain tensors are judged.

An output of another kind is a finding, before anything reads it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.judge.run_case import run_case
from harness.kernels.outputs import is_plain

NO_WORDS = "(no message: its __str__ raised ValueError)"


class Liar(Tensor):
    """A tensor that is finite and equal to whatever it is compared with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("isfinite", "__eq__", "eq"):
            return torch.ones(args[0].shape, dtype=torch.bool)
        return super().__torch_function__(func, types, args, kwargs or {})


def resized(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(8)
    return x


def fake(x: Tensor) -> Tensor:
    with FakeTensorMode():
        return torch.empty(x.shape)


ODD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a subclass": (
        lambda x: x.as_subclass(Liar),
        "as Liar, a subclass of torch.Tensor; return a torch.Tensor itself",
    ),
    "a fake tensor": (fake, "as FakeTensor, a subclass of torch.Tensor"),
    "sparse": (lambda x: x.to_sparse(), "with layout torch.sparse_coo; return a strided tensor"),
    "sparse rows": (lambda x: x.flatten(1).to_sparse_csr(), "with layout torch.sparse_csr"),
    "nested": (lambda x: torch.nested.nested_tensor(list(x)), "with layout nested"),
    "quantised": (
        lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
        "as a quantised tensor (torch.qint8)",
    ),
    "meta": (lambda x: x.to("meta"), "on device meta, where it has no memory"),
    "zeros without memory": (
        lambda x: torch._efficientzerotensor(x.shape),
        "without memory of its own",
    ),
    "a closed storage": (resized, "on a storage of 8 bytes, where it needs"),
    "an array": (lambda x: x.float().numpy(), "as ndarray; return a torch.Tensor"),
}


def with_attributes(x: Tensor) -> Tensor:
    x.isnan = x.isfinite = lambda: torch.ones_like(x, dtype=torch.bool)  # type: ignore[method-assign]
    x.clone = lambda: torch.zeros_like(x)  # type: ignore[method-assign, assignment]
    return x


def inferred(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x * 1


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "of a graph of autograd": lambda x: x.requires_grad_() * 1,
    "a leaf of autograd": lambda x: x.requires_grad_(),
    "a parameter": torch.nn.Parameter,
    "a view that negates": lambda x: torch._neg_view(-x),
    "of inference mode": inferred,
    "with methods of its own": with_attributes,
    "strided": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}
"""What is judged as the tensor that it is."""


def result_of(change: Callable[[Tensor], Any]) -> CaseResult:
    """A case of a merge whose first output is changed."""

    def merge(*args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        out, lse = KERNELS.get("merge_attn_states/torch").load()(*args, **kwargs)
        with warnings.catch_warnings():
            # Torch warns of some kinds of tensors.
            warnings.simplefilter("ignore")
            return change(out), lse

    spec = KernelSpec("merge_attn_states", "odd", "", merge, is_plugin=True)
    params = {
        "kernel": "odd",
        "num_tokens": 6,
        "num_with_context": 4,
        "num_heads": 2,
        "v_head_dim": 16,
    }
    oracles, poison = (
        ("finite", "sentinel", "reference", "non_interference"),
        PoisonPlan(patterns=("nan", "max")),
    )
    case = Case(
        id="odd",
        scenario="s",
        system="kernel",
        op="merge_attn_states",
        params=params,
        oracles=oracles,
        poison=poison,
    )
    with KERNELS.scoped(spec):
        return run_case(Job(key="k", case=case))


@pytest.mark.parametrize("name", ODD)
def test_an_output_that_is_no_plain_tensor_is_a_crash_of_the_kernel(name: str) -> None:
    change, says = ODD[name]
    result = result_of(change)
    assert result.verdict is Verdict.CRASH, result
    (finding,) = result.findings
    assert (
        finding.cause == Code.BAD_OUTPUT
        and f"merge_attn_states/odd returned out {says}" in finding.message
    )


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_tensor_is_judged_whatever_torch_knows_about_it(name: str) -> None:
    result = result_of(PLAIN[name])
    assert result.verdict is Verdict.PASS, result


@pytest.mark.parametrize("name", PLAIN)
def test_its_numbers_are_judged(name: str) -> None:
    result = result_of(lambda x: PLAIN[name](x + 1))
    assert result.verdict is Verdict.FAIL, result
    assert {finding.oracle for finding in result.findings} >= {"reference"}


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Speechless(), f"merge_attn_states/odd raised Speechless: {NO_WORDS}"),
        (
            ValueError("x" * 2_000_000),
            "raised ValueError: " + "x" * 1000 + " … (2,000,000 characters)",
        ),
        (ValueError("x\n" * 1_000_000), "raised ValueError: x …"),
    ],
    ids=["a __str__ that raises", "a long line", "many lines"],
)
def test_an_exception_keeps_its_cause_and_its_line_whatever_its_message(
    error: Exception, says: str
) -> None:
    def change(x: Tensor) -> Tensor:
        raise error

    result = result_of(change)
    assert result.verdict is Verdict.CRASH
    (finding,) = result.findings
    assert says in finding.message and len(finding.message) < 1200
    assert finding.cause == Code.RAISED and "raise error" in result.log and len(result.log) <= 4000


def test_metadata_that_only_the_kernel_reads_may_be_anything() -> None:
    assert (
        is_plain(torch.ones(2))
        and not is_plain(torch.ones(2).to_sparse())
        and not is_plain(object())
    )
