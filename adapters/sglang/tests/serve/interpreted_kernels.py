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

from harness.core.cases import Job  # noqa: E402
from harness.core.catalog import KERNELS  # noqa: E402
from harness.judge.run_case import run_case  # noqa: E402
from harness.scenario.expand import expand  # noqa: E402
from harness.scenario.load import load_scenarios  # noqa: E402

OPS = "sglang.srt.layers.attention.triton_ops."


class _Empty(ModuleType):
    """A package of SGLang. Each of its functions says no."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name.startswith("sglang") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(folder: str, name: str) -> Any:
    """The module of the release; whatever it imports of SGLang is empty."""
    spec = importlib.util.spec_from_file_location(
        name, Path(folder, *name.split(".")).with_suffix(".py")
    )
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
    load(folder, OPS + "decode_attention")
    spec = KERNELS.get("mla_decode/sglang-triton")
    for name, value in {"devices": ("cpu",), "requires": "", "fp8_products": products}.items():
        object.__setattr__(spec, name, value)
    return run_case(Job(key=case.id, case=case, device="cpu"))


def error_of_small_queries(folder: str) -> None:
    """The relative error of the output by the size of the query, with the same scores, for an fp8
    cache.
    """
    kernel = load(folder, OPS + "decode_attention").decode_attention_fwd
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
    kernel = load(folder, OPS + "merge_state").merge_state_triton
    for empty in (float("-inf"), float("inf")):
        prefix, suffix = torch.full((2, 2, 128), float("nan")), torch.randn(2, 2, 128)
        out, _ = kernel(prefix, torch.full((2, 2), empty), suffix, torch.randn(2, 2), None, None)
        print(f"lse {empty}: {int(out.isnan().sum())} of {out.numel()} are NaN")


if __name__ == "__main__":
    sys.meta_path.append(_Finder())
    place, what, *more = sys.argv[1:]
    if what == "decode":
        found = decode(place, *more)
        print(found.verdict.value, *(finding.message for finding in found.findings))
    else:
        {"merge": merge, "small": error_of_small_queries}[what](place)
