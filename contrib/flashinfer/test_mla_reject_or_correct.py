"""Reject-or-correct suite for the paged MLA wrapper (gh #3605).

One valid decode batch, and one call for each way to corrupt an argument of it. Each call must
either
  * raise a clean error: an exception that names the argument, or
  * return what an independent fp64 oracle returns, log-sum-exp included.
Anything else fails: silent garbage, an error that names nothing, a CUDA error.

What the oracle kit adds to the comparison:
  * output poison: ``out`` and ``lse`` are NaN-filled, so a row that is never written shows;
  * memory poison: pages that belong to nobody and slots past a request's length are NaN;
  * asset snapshot: every input must be bitwise what it was before the call;
  * device-state probe: after a lost context the remaining cases skip, and name the case that lost
    it.

``plan`` copies lengths and indptrs to the host, so their values are judged like shapes and dtypes.
Page indices are read on the device only; a call that is corrupted there may end the context, so the
ledger quarantines these cases.

``_CASES`` is generated. Run (every malformed plan in its own process, if one loses the context):
  pytest -q tests/attention/test_mla_reject_or_correct.py
Env: FLASHINFER_MLA_REJECT_DEVICE (default cuda:0).
"""

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

import pytest
import torch
from tests.test_helpers.fuzz_ledger import Finding, FuzzLedger

import flashinfer
from flashinfer.utils import is_sm90a_supported

_DEVICE = torch.device(os.environ.get("FLASHINFER_MLA_REJECT_DEVICE", "cuda:0"))
_KV_LENS = (70, 130, 65)
_NUM_HEADS, _PAGE_SIZE = 16, 64
_HEAD_DIM_CKV, _HEAD_DIM_KPE = 512, 64
_SM_SCALE = 1.0 / ((128 + 64) ** 0.5)
_SCORE_BELOW_MASK = -52_000.0  # below the -5e4 that some kernels mask with
_CRASH_KW = ("cuda error", "illegal memory", "misaligned", "device-side assert")

pytestmark = pytest.mark.skipif(
    _DEVICE.type == "cuda" and not torch.cuda.is_available(),
    reason="CUDA not available",
)


@dataclass(frozen=True)
class Case:
    """One corrupted argument.

    Attributes:
        name: the id of the case.
        argument: the parameter of ``plan`` or ``run`` that is corrupted.
        change: which change of it, ``to`` its parameter.
        right: a result is defined for the corrupted call.
        means: the value that the corrupted one stands for, where a result is defined.
        names: an error is clean if it has one of these words.
        where: what can see the corruption: "shape", "host" values or "device" values.
    """

    name: str
    argument: str
    change: str
    to: Union[int, str, None] = None
    right: bool = False
    means: Optional[int] = None
    names: Tuple[str, ...] = ()
    where: str = "shape"


# fmt: off
# begin generated cases
_CASES = [
    Case("entry-past-cache", "kv_indices", "element", to="pages", names=("kv_indices", "kv_indptr", "kv_len_arr"), where="device"),
    Case("entry-negative", "kv_indices", "element", to=-1, names=("kv_indices", "kv_indptr", "kv_len_arr"), where="device"),
    Case("entry-huge", "kv_indices", "element", to=2147483647, names=("kv_indices", "kv_indptr", "kv_len_arr"), where="device"),
    Case("entries-repeated", "kv_indices", "repeated", right=True, names=("kv_indices", "kv_indptr", "kv_len_arr"), where="host"),
    Case("length-past-table", "kv_len_arr", "element", to="past-pages", names=("kv_len_arr", "kv_indptr", "qo_indptr", "kv_indices"), where="host"),
    Case("length-negative", "kv_len_arr", "element", to=-3, right=True, means=0, names=("kv_len_arr", "kv_indptr", "qo_indptr"), where="host"),
    Case("lengths-zero", "kv_len_arr", "filled", to=0, right=True, names=("kv_len_arr", "kv_indptr", "qo_indptr"), where="host"),
    Case("fewer-lengths", "kv_len_arr", "fewer", names=("kv_len_arr", "kv_indptr", "qo_indptr", "kv_indices", "q_nope", "q_pe")),
    Case("fewer-tables", "kv_indices", "fewer", names=("kv_indices", "kv_indptr", "kv_len_arr", "q_nope", "q_pe"), where="host"),
    Case("lengths-int64", "kv_len_arr", "dtype", to="int64", right=True, names=("kv_len_arr", "kv_indptr", "qo_indptr")),
    Case("lengths-float", "kv_len_arr", "dtype", to="float32", right=True, names=("kv_len_arr", "kv_indptr", "qo_indptr")),
    Case("table-int64", "kv_indices", "dtype", to="int64", right=True, names=("kv_indices", "kv_indptr", "kv_len_arr")),
    Case("query-fp16", "q_nope", "dtype", to="float16", right=True, names=("q_nope", "q_pe", "q_data_type", "ckv_cache", "kpe_cache")),
    Case("query-strided", "q_nope", "strided", right=True, names=("q_nope", "q_pe", "q_data_type")),
    Case("cache-strided", "ckv_cache", "strided", right=True, names=("ckv_cache", "kpe_cache", "kv_data_type")),
    Case("table-strided", "kv_indices", "strided", right=True, names=("kv_indices", "kv_indptr", "kv_len_arr")),
    Case("lengths-strided", "kv_len_arr", "strided", right=True, names=("kv_len_arr", "kv_indptr", "qo_indptr")),
    Case("heads-3", "q_nope", "heads", to=3, right=True, names=("q_nope", "q_pe", "q_data_type", "num_heads")),
    Case("heads-129", "q_nope", "heads", to=129, right=True, names=("q_nope", "q_pe", "q_data_type", "num_heads")),
    Case("pages-of-32", "ckv_cache", "pages", to=32, right=True, names=("ckv_cache", "kpe_cache", "kv_data_type", "page_size")),
    Case("scores-below-mask", "ckv_cache", "scores", right=True, names=("ckv_cache", "kpe_cache", "kv_data_type")),
    Case("plan-of-fewer-requests", "plan", "plan", to="fewer", right=True, names=("plan", "qo_indptr", "q_nope")),
    Case("queries-unsorted", "qo_indptr", "swapped", names=("qo_indptr",), where="host"),
    Case("keys-unsorted", "kv_indptr", "swapped", names=("kv_indptr", "kv_indices", "qo_indptr"), where="host"),
    Case("queries-past-end", "qo_indptr", "last", to=100000, names=("qo_indptr",), where="host"),
    Case("keys-past-end", "kv_indptr", "last", to=100000, names=("kv_indptr", "kv_indices", "qo_indptr"), where="host"),
    Case("keys-negative", "kv_indptr", "element", to=-3, names=("kv_indptr", "kv_indices", "qo_indptr"), where="host"),
]
# end generated cases
# fmt: on
_CONTROL = Case("valid", "", "none", right=True)

_LEDGER = FuzzLedger(
    "mla-reject-or-correct",
    findings=(
        Finding(
            match=lambda case: case.where == "device",
            reason="#3605: page indices are not checked before the launch. Probe: "
            "remove this entry and run the case in its own process.",
            quarantine=True,
        ),
    ),
)
_LOST_BY: List[str] = []

Call = Dict[str, Union[int, torch.Tensor]]


def _valid_call() -> Call:
    """A decode batch over shuffled pages. Unused slots and pages are NaN."""
    generator = torch.Generator().manual_seed(0)
    lens = torch.tensor(_KV_LENS, dtype=torch.int32)
    num_pages = (lens + _PAGE_SIZE - 1) // _PAGE_SIZE
    used = int(num_pages.sum())
    kv_indptr = torch.cat([torch.zeros(1), num_pages.cumsum(0)]).to(torch.int32)
    kv_indices = torch.randperm(used, generator=generator).to(torch.int32) + 2
    cache = torch.randn(
        used + 4, _PAGE_SIZE, _HEAD_DIM_CKV + _HEAD_DIM_KPE, generator=generator
    )
    for i, length in enumerate(_KV_LENS):
        cache[int(kv_indices[kv_indptr[i + 1] - 1]), (length - 1) % _PAGE_SIZE + 1 :] = (
            float("nan")
        )
    cache[:2] = cache[used + 2 :] = float("nan")
    q = torch.randn(
        len(lens), _NUM_HEADS, _HEAD_DIM_CKV + _HEAD_DIM_KPE, generator=generator
    )
    q_nope, q_pe = q.split([_HEAD_DIM_CKV, _HEAD_DIM_KPE], dim=-1)
    ckv_cache, kpe_cache = cache.split([_HEAD_DIM_CKV, _HEAD_DIM_KPE], dim=-1)
    call = dict(
        qo_indptr=torch.arange(len(lens) + 1, dtype=torch.int32),
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_len_arr=lens,
        q_nope=q_nope.contiguous().to(torch.bfloat16),
        q_pe=q_pe.contiguous().to(torch.bfloat16),
        ckv_cache=ckv_cache.contiguous().to(torch.bfloat16),
        kpe_cache=kpe_cache.contiguous().to(torch.bfloat16),
    )
    call = {name: tensor.to(_DEVICE) for name, tensor in call.items()}
    return {**call, "num_heads": _NUM_HEADS, "page_size": _PAGE_SIZE}


def _corrupt(call: Call, case: Case, to: Union[int, str, None]) -> Call:
    """``call`` with the argument of ``case`` changed."""
    changed = dict(call)
    given = call.get(case.argument)
    if case.change == "element":
        # The first entry; of an indptr the second, as the first is 0.
        first_pages = int(call["kv_indptr"][1])
        number = {
            "pages": call["ckv_cache"].shape[0],
            "past-pages": first_pages * _PAGE_SIZE + 1,
        }.get(to, to)
        changed[case.argument] = given.clone()
        changed[case.argument][int(case.argument.endswith("indptr"))] = number
    elif case.change == "last":
        changed[case.argument] = given.clone()
        changed[case.argument][-1] = to
    elif case.change == "filled":
        changed[case.argument] = torch.full_like(given, to)
    elif case.change == "swapped":
        changed[case.argument] = given.clone()
        changed[case.argument][1], changed[case.argument][2] = given[2] + 1, given[1]
    elif case.change == "repeated":
        second = int(call["kv_indptr"][1])
        changed[case.argument] = given.clone()
        changed[case.argument][[0, 1, second, second + 1]] = given[second]
    elif case.change == "fewer":
        changed[case.argument] = given[:-1]
    elif case.change == "dtype":
        changed[case.argument] = given.to(getattr(torch, to))
    elif case.change == "strided":
        wide = torch.zeros(*given.shape, 2, dtype=given.dtype, device=given.device)
        wide[..., 0] = given
        changed[case.argument] = wide[..., 0]
    elif case.change == "heads":
        which = torch.arange(int(to), device=_DEVICE) % _NUM_HEADS
        changed.update(
            q_nope=call["q_nope"][:, which], q_pe=call["q_pe"][:, which], num_heads=to
        )
    elif case.change == "pages":
        size = int(to)
        parts = torch.arange(_PAGE_SIZE // size, device=_DEVICE, dtype=torch.int32)
        indices = call["kv_indices"][:, None] * len(parts) + parts
        changed.update(
            kv_indices=indices.flatten(),
            kv_indptr=call["kv_indptr"] * len(parts),
            page_size=size,
        )
        for name in ("ckv_cache", "kpe_cache"):
            changed[name] = call[name].reshape(-1, size, call[name].shape[-1])
    elif case.change == "scores":
        # Equal scores for all keys, by one element that is no part of a value.
        q_pe, kpe_cache = torch.zeros_like(call["q_pe"]), call["kpe_cache"].clone()
        q_pe[..., -1] = 1024.0
        kpe_cache[..., -1] = _SCORE_BELOW_MASK / (1024.0 * _SM_SCALE)
        changed.update(
            q_nope=torch.zeros_like(call["q_nope"]), q_pe=q_pe, kpe_cache=kpe_cache
        )
    elif case.change == "plan":
        # The plan lacks the last request; the queries are those of the whole batch.
        for name in ("qo_indptr", "kv_indptr", "kv_len_arr"):
            changed[name] = call[name][:-1]
        changed["kv_indices"] = call["kv_indices"][: int(call["kv_indptr"][-2])]
    return changed


def _meant(case: Case) -> Call:
    """What the oracle gets: the valid call, or the one that a corrupted call stands for."""
    call = _valid_call()
    if case.change in ("strided", "plan", "none") or case.to in ("int64", "float32"):
        return call
    return _corrupt(call, case, case.to if case.means is None else case.means)


def _reference(call: Call) -> Tuple[torch.Tensor, torch.Tensor]:
    """The oracle in fp64: o [n, h, 512] and lse [n, h] (base e). Reads live memory only."""
    q = torch.cat([call["q_nope"], call["q_pe"]], dim=-1).double()
    cache = torch.cat([call["ckv_cache"], call["kpe_cache"]], dim=-1)
    o = torch.zeros(*q.shape[:2], _HEAD_DIM_CKV, dtype=torch.float64, device=_DEVICE)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64, device=_DEVICE)
    for i, length in enumerate(call["kv_len_arr"].tolist()):
        if length == 0:
            continue
        pages = call["kv_indices"][call["kv_indptr"][i] : call["kv_indptr"][i + 1]]
        keys = cache[pages.long()].flatten(0, 1)[:length].double()
        logits = q[i] @ keys.T * _SM_SCALE
        lse[i] = logits.logsumexp(-1)
        o[i] = logits.softmax(-1) @ keys[:, :_HEAD_DIM_CKV]
    return o, lse


def _run(call: Call, backend: str) -> Tuple[torch.Tensor, torch.Tensor]:
    """Plan and run once, into NaN-filled outputs."""
    workspace = torch.empty(128 * 1024 * 1024, dtype=torch.int8, device=_DEVICE)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    wrapper.plan(
        call["qo_indptr"],
        call["kv_indptr"],
        call["kv_indices"],
        call["kv_len_arr"],
        call["num_heads"],
        _HEAD_DIM_CKV,
        _HEAD_DIM_KPE,
        call["page_size"],
        True,  # causal
        _SM_SCALE,
        torch.bfloat16,
        torch.bfloat16,
    )
    q_nope = call["q_nope"]
    out = torch.full(q_nope.shape, torch.nan, dtype=torch.bfloat16, device=_DEVICE)
    lse = torch.full(q_nope.shape[:2], torch.nan, device=_DEVICE)
    wrapper.run(
        q_nope,
        call["q_pe"],
        call["ckv_cache"],
        call["kpe_cache"],
        out=out,
        lse=lse,
        return_lse=True,
        return_lse_base_on_e=True,
    )
    if _DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return out, lse


def _assert_untouched(before: Call, after: Call) -> None:
    for name, tensor in before.items():
        if isinstance(tensor, torch.Tensor):
            same = tensor.view(torch.uint8), after[name].contiguous().view(torch.uint8)
            assert torch.equal(*same), f"{name}: the call wrote to an input"


def _judge(case: Case, backend: str) -> None:
    """Reject or correct. Raises AssertionError with the verdict otherwise."""
    call = _corrupt(_valid_call(), case, case.to)
    before = {
        name: value.clone(memory_format=torch.contiguous_format)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in call.items()
    }
    try:
        out, lse = _run(call, backend)
    except Exception as error:
        message = str(error)
        assert not any(word in message.lower() for word in _CRASH_KW), (
            f"crash: {message[:300]}"
        )
        assert any(re.search(rf"\b{name}\b", message) for name in case.names), (
            f"unclear error, none of {case.names} in it: {message[:300]}"
        )
        return
    assert case.right, "silent garbage: a result where none is right"
    _assert_untouched(before, call)
    meant = _meant(case)
    o_ref, lse_ref = _reference(meant)
    live = (meant["kv_len_arr"] > 0).to(_DEVICE)
    for name, got, want, tolerance in (
        ("out", out.double(), o_ref, dict(rtol=2e-2, atol=1e-2)),
        ("lse", lse.double()[live], lse_ref[live], dict(rtol=1e-3, atol=1e-3)),
    ):
        torch.testing.assert_close(
            got, want, **tolerance, msg=lambda m, name=name: f"silent garbage, {name}: {m}"
        )


@pytest.fixture(autouse=True)
def device_state(request):
    """Probe the device after each case. Once a case lost it, the others say so and skip."""
    if _LOST_BY:
        pytest.skip(f"the device was lost by {_LOST_BY[0]}")
    yield
    try:
        probe = torch.ones(4, device=_DEVICE).sum().item()
        assert probe == 4.0
    except Exception as error:
        _LOST_BY.append(request.node.name)
        pytest.fail(f"the device is lost: {str(error)[:200]}", pytrace=False)


def _check(case: Case, backend: str) -> None:
    if backend == "fa3" and _DEVICE.type == "cuda" and not is_sm90a_supported(_DEVICE):
        pytest.skip("FA3 is not supported on this device")
    _LEDGER.xfail_if_quarantined(case)
    _judge(case, backend)


def _named(where: str):
    cases = [case for case in _CASES if case.where == where]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
def test_mla_valid_call(backend):
    """No false alarm: the call that the others corrupt is right."""
    _check(_CONTROL, backend)


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@_named("shape")
def test_mla_corrupted_shape_or_dtype(case, backend):
    _check(case, backend)


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@_named("host")
def test_mla_corrupted_plan(case, backend):
    _check(case, backend)


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@_named("device")
def test_mla_corrupted_page_index(case, backend):
    _check(case, backend)
