"""SGLang's Triton kernels in Triton's interpreter, from the folder of a release.

Run by test_interpreted_kernels.py.

python adapters/sglang/tests/serve/interpreted_kernels.py FOLDER WHAT
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.memory.triton_interpreter import prepare

assert prepare(), "set TRITON_INTERPRET=1"

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from harness.core.cases import Job  # noqa: E402
from harness.core.catalog import KERNELS  # noqa: E402
from harness.judge.run_case import run_case  # noqa: E402
from harness.scenario.expand import expand  # noqa: E402
from harness.scenario.load import load_scenarios  # noqa: E402
from mla_harness_adapters.releases import Renamed  # noqa: E402
from mla_harness_sglang.releases import DECODE_ATTENTION, MERGE_STATE  # noqa: E402

SCORES = "sglang.kernels.ops.attention.score_mod"
"""What a decode kernel of 0.5.16 and later imports and calls. It imports nothing of SGLang."""
KDA = Renamed(
    (
        "sglang.kernels.ops.attention.fla.chunk_intra",
        "sglang.srt.layers.attention.fla.chunk_intra",
    ),
    "since 0.5.16",
)
KDA_DIAGONAL = "chunk_intra_token_parallel"
"""The kernel of the diagonal blocks that `chunk_intra` does not compute itself."""


def _file(folder: str, name: str) -> Path:
    return Path(folder, *name.split(".")).with_suffix(".py")


def _is_there(folder: str, name: str) -> bool:
    return _file(folder, name).is_file() or _file(folder, name).with_suffix("").is_dir()


class _Empty(ModuleType):
    """A package of SGLang. Each of its functions says no."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of SGLang that the release in a folder has, as an empty one."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "sglang" or not _is_there(self._folder, name):
            return None
        if name == SCORES or name.endswith(KDA_DIAGONAL):
            return importlib.util.spec_from_file_location(name, _file(self._folder, name))
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(folder: str, place: Renamed) -> Any:
    """The module of the release; whatever it imports of SGLang is empty."""
    name = next(name for name in place.names if _is_there(folder, name))
    spec = importlib.util.spec_from_file_location(name, _file(folder, name))
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def decode(folder: str, identity: str, products: str) -> Any:
    """The result of a case of the matrix with the products declared as given."""
    case = next(
        case
        for scenario in load_scenarios(None)
        if scenario.name == identity.partition("[")[0]
        for case in expand(scenario)
        if case.id == identity
    )
    load(folder, DECODE_ATTENTION)
    spec = KERNELS.get("mla_decode/sglang-triton")
    for name, value in {"devices": ("cpu",), "requires": "", "fp8_products": products}.items():
        object.__setattr__(spec, name, value)
    return run_case(Job(key=case.id, case=case, device="cpu"))


def error_of_small_queries(folder: str) -> None:
    """The relative error of the output by the size of the query, with the same scores, for an fp8
    cache.
    """
    kernel = load(folder, DECODE_ATTENTION).decode_attention_fwd
    torch.manual_seed(0)
    keys = torch.randn(64, 1, 576).to(torch.float8_e4m3fn)
    unit, slots = torch.randn(1, 16, 576), torch.arange(64)
    for size in (1e-3, 1e-2, 1.0, 1e2, 1e3):
        query, scale = (unit * size).bfloat16(), 576**-0.5 / size
        out, partial, lse = (
            torch.empty(1, 16, 512),
            torch.empty(1, 16, 8, 512),
            torch.empty(1, 16, 8),
        )
        starts, splits = (
            torch.tensor([0, 64], dtype=torch.int32),
            torch.full((1,), 8, dtype=torch.int32),
        )
        kernel(
            query,
            keys,
            keys[..., :512],
            out,
            starts,
            slots,
            partial,
            lse,
            splits,
            8,
            scale,
            1.0,
            1.0,
            has_mla=True,
        )
        scores = query[0].double() @ keys[:, 0].double().T * scale
        exact = scores.softmax(-1) @ keys[:, 0, :512].double()
        print(f"query of {size:g}: relative L2 {float((out[0] - exact).norm() / exact.norm()):.4f}")


def merge(folder: str) -> None:
    """Print whether NaN of an empty side reaches the result."""
    kernel = load(folder, MERGE_STATE).merge_state_triton
    for empty in (float("-inf"), float("inf")):
        prefix, suffix = torch.full((2, 2, 128), float("nan")), torch.randn(2, 2, 128)
        out, _ = kernel(prefix, torch.full((2, 2), empty), suffix, torch.randn(2, 2), None, None)
        print(f"lse {empty}: {int(out.isnan().sum())} of {out.numel()} are NaN")


@triton.jit
def exp2(x: Any) -> Any:
    """As SGLang's, which is of a library that the interpreter lacks."""
    return tl.exp2(x)


def stub(name: str, **values: Any) -> None:
    """A module of SGLang that has these values."""
    module = sys.modules[name] = _Empty(name)
    vars(module).update(values)


def scores_of_strong_decays(folder: str) -> None:
    """The relative error of the scores q @ k within a chunk of KDA, by the most that a channel
    decays in 16 tokens, for both ways in which SGLang computes the blocks of the diagonal.

    Half of the channels do not decay, so that no score is 0.
    """
    autotune = triton.autotune
    # The interpreter measures no time.
    triton.autotune = lambda configs, key, **_: autotune([configs[0]], key)
    room = next(name for name in KDA.names if _is_there(folder, name)).rpartition(".")[0]
    stub(f"{room}.op", exp2=exp2, gather=None)
    stub(
        f"{room}.utils",
        autotune_cache_kwargs={},
        is_gather_supported=False,
        is_tf32_supported=False,
        tensor_cache=lambda function: function,
    )
    kernel = load(folder, KDA).chunk_kda_fwd_intra
    torch.manual_seed(0)
    num_tokens, width = 64, 32
    q, k, v = torch.randn(3, 1, num_tokens, 1, width)
    k = k / k.norm(dim=-1, keepdim=True)
    beta = torch.full((1, num_tokens, 1), 0.5)
    for bits in (120, 250):
        # log2 of what is left of each channel, summed since the chunk began.
        decay = torch.zeros(num_tokens, width)
        decay[:, ::2] = -bits / 16
        gate = decay.cumsum(0)
        left = torch.exp2((gate[:, None] - gate[None]).clamp(max=0).double())
        exact = torch.einsum("id,jd,ijd->ij", q[0, :, 0].double(), k[0, :, 0].double(), left).tril()
        for title, is_fused in (("one kernel", True), ("token by token", False)):
            _, _, _, _, found, _ = kernel(
                q,
                k,
                v,
                gk=gate[None, :, None].contiguous(),
                beta=beta,
                scale=1.0,
                chunk_size=num_tokens,
                fuse_diagonal=is_fused,
                fuse_recompute=True,
            )
            error = (found[0, :, 0].double().tril() - exact).norm() / exact.norm()
            print(f"2^-{bits} in 16 tokens, {title}: relative L2 {float(error):.4f}")


if __name__ == "__main__":
    place, what, *more = sys.argv[1:]
    sys.meta_path.append(_Finder(place))
    if what == "decode":
        found = decode(place, *more)
        print(found.verdict.value, *(f"{one.tensor}: {one.cause}" for one in found.findings))
    else:
        {
            "merge": merge,
            "small": error_of_small_queries,
            "decays": scores_of_strong_decays,
        }[what](place)
