"""The kernels that the harness has itself, with their promises; engines and people add their own.

No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.cause_codes import Code, WhyNot
from harness.core.contract import Out
from harness.core.files import with_tuples
from harness.core.ops import OPS, rows_of_ops
from harness.core.params import KernelParams, Params, ParamsT
from harness.core.registry import attribute_at
from harness.core.shapes import ANY, RESIZABLE, Shapes, misfit, shapes_of, sizes_of

EmptyRows = Literal["undefined", "identity", "nan"]
EmptyLse = Literal["-inf", "+inf", "undefined"]
Fp8Products = Literal["float32", "bf16", "fp8"]
Bf16Step = Literal["partials", "sums"]
BUILT_IN = "built in"
"""The origin of a kernel that comes with the harness.

Any other is an engine, or the file of a plug-in.
"""
Checks = Literal["nothing", "arguments", "values"]
SOUND = "sound-"
"""How the names of sound variants begin: right kernels that differ as real ones do. A checkout has
them.
"""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One implementation of one op, with the promises on which kernels legitimately differ.

    - `kv`: the cache types that it reads. `shapes`: the sizes that it accepts; None if it declares
      none.
    - `empty_rows`: its output for empty requests; `identity` is output 0, `undefined` promises
      nothing. `empty_lse`: its log-sum-exp for these rows.
    - `gives_lse`: it gives a log-sum-exp. Without one it may return `out` alone, an `lse` is not
      judged, and cases that use it are skipped.
    - `needs_finite_tail`: it masks unused KV slots by multiplying, so the owner of the cache must
      keep them finite.
    - `needs_valid_table`: it looks up table entries of empty requests, so each must be the number
      of a block.
    - `checks`: which calls that break the contract end in an error that names the argument.
      `arguments`: wrong shapes, types, strides and numbers, which the host sees. `values`: indices
      and lengths in device memory too. Of any other such call the result is undefined. See
      docs/reject-or-correct.md.
    - `keeps_ties`: a `select_topk` that gives the same set for equal logits in each launch. Others
      give any right set.
    - `capturable`: a CUDA graph can hold it. It reads no device value on the host.
    - `takes`: the optional keywords of the op that it has, such as `window`, `kv_lora_rank`, or
      `workspace`, words that are zero on entry and on return. A `route_experts` with `num_live`
      leaves rows past it unwritten.
    - `chunked`: this `mla_decode` or its planner counts work in chunks of pages; the planner has
      `kv_itemsize`.
    - `fp8_products`: the type in which an e4m3 cache is multiplied; it decides the tolerance.
      `float32` and `bf16` convert the dequantized cache, `fp8` rounds query and probabilities to
      e4m3 as well.
    - `bf16_steps`: further values that are rounded to bfloat16: `partials` of split requests before
      they are merged, `sums` of probabilities, each rounded before it is added, so that the
      log-sum-exp inherits the error.
    - `cuda_twin`: the kernel of the same op that replaces it on CUDA. It reads no device value on
      the host, so a graph can capture it.
    - `compile_seconds`: how long its first call on a machine may compile; added to the time limit
      of a case.
    - `requires`: "module:function" of a check, device -> reason why it cannot run, or an empty
      string.
    - `origin`: "built in", the name of an engine, or the file of the function. `is_plugin`: people
      registered it, by `@kernel` in a plug-in or an installed package.
    - `unusable`: why it can run nowhere: the tables of its engine do not load.
    """

    op: str
    short_name: str
    summary: str
    impl: str | Callable[..., Any]
    devices: tuple[str, ...] = ("cpu",)
    kv: tuple[str, ...] = ("fp32", "bf16", "fp8_e4m3")
    shapes: Shapes | None = None
    empty_rows: EmptyRows = "undefined"
    empty_lse: EmptyLse = "undefined"
    gives_lse: bool = True
    needs_finite_tail: bool = False
    needs_valid_table: bool = False
    checks: Checks = "arguments"
    keeps_ties: bool = True
    capturable: bool = True
    takes: tuple[str, ...] = ()
    chunked: bool = False
    fp8_products: Fp8Products = "float32"
    bf16_steps: tuple[Bf16Step, ...] = ()
    cuda_twin: str = ""
    requires: str = ""
    compile_seconds: float = 0.0
    origin: str = BUILT_IN
    is_plugin: bool = False
    unusable: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}/{self.short_name}"

    @property
    def outputs(self) -> tuple[Out, ...]:
        """What it returns, by the contract of its op, without an lse if it gives none."""
        outputs = OPS.get(self.op).outputs
        return tuple(output for output in outputs if self.gives_lse or output.name != "lse")

    def why_not(self, device: str) -> WhyNot | None:
        """Why this kernel cannot run on `device` here, as one clause; None where it can.

        Loads no kernel code.
        """
        # The reasons from the cheapest to find to the dearest: `requires` may import an engine.
        if self.unusable:
            return WhyNot(self.unusable, Code.BROKEN_TABLES)
        if device not in self.devices:
            return WhyNot(
                f"{self.name} runs on {', '.join(self.devices)}, not on {device}", Code.NO_DEVICE
            )
        if not self.requires:
            return None
        reason: WhyNot | None = attribute_at(self.requires)(device)
        return reason

    def why_not_graph(self, device: str) -> WhyNot | None:
        """Why no captured graph can hold this kernel on `device`, as one clause; None if one
        can.
        """
        if device == "cpu" or (self.capturable and not self.cuda_twin):
            return None
        why = f"{self.name} reads device values on the host, which a captured CUDA graph cannot"
        return WhyNot(why, Code.UNSUPPORTED)

    def lacks(self, word: str) -> WhyNot:
        """The reason why cases that give the optional keyword `word` are skipped."""
        mend = (
            f"; add `{word}=None` to its signature, and they are judged" if self.is_plugin else ""
        )
        return WhyNot(
            f"{self.name} has no argument `{word}`, which these cases give{mend}", Code.UNSUPPORTED
        )

    def why_not_params(self, params: Params) -> WhyNot | None:
        """Why this kernel cannot run the calls of a case with these parameters, as one clause;
        None if it can.
        """
        # The cache of an engine's parameters is that of its latents.
        is_its_cache = isinstance(params, KernelParams) or OPS.get(self.op).reads_latents
        if is_its_cache and params.cache_type is not None and params.cache_type not in self.kv:
            why = f"{self.name} reads a cache of {', '.join(self.kv)}, not of {params.cache_type}"
            return WhyNot(why, Code.UNSUPPORTED)
        if missing := [
            word
            for word in params.KEYWORDS
            if getattr(params, word) is not None and word not in self.takes
        ]:
            return self.lacks(missing[0])
        # Without declared sizes the kernel is called with all of them, and its own refusal counts.
        if self.shapes is None or self.shapes is ANY:
            return None
        problem = misfit(self.shapes, sizes_of(self.op, params))
        return WhyNot(f"{self.name} {problem}", Code.UNSUPPORTED) if problem else None

    def fit(self, params: ParamsT, fixed: Container[str]) -> ParamsT:
        """`params` with the nearest sizes, cache type and optional keywords that this kernel
        accepts.

        Parameters in `fixed` stay. The result is `params` itself where such changes do not suffice
        or are not legal.
        """
        shapes = self.shapes or ANY
        changes: dict[str, Any] = {}
        for size, value in sizes_of(self.op, params).items():
            if size in RESIZABLE and isinstance(value, int) and not shapes.accepts(size, value):
                changes |= params.resized(size, shapes.nearest(size, value), changes)
        changes |= {
            word: None for word in params.KEYWORDS if word not in self.takes and word not in fixed
        }
        if params.cache_type not in (None, *self.kv) and "kv" not in fixed:
            changes["kv"] = self.kv[0]
        # A resized case can break a rule between parameters, which only the parameters know.
        try:
            found = type(params).model_validate(params.model_dump() | changes)
        except ValueError:
            return params
        return params if self.why_not_params(found) else found

    def load(self) -> Callable[..., Any]:
        """The kernel function; imports its module on first use."""
        found: Callable[..., Any] = (
            attribute_at(self.impl) if isinstance(self.impl, str) else self.impl
        )
        return found


TRITON = "harness.memory.triton_interpreter:unavailable"


def kernel_of(name: str, row: dict[str, Any], package: str, **own: Any) -> KernelSpec:
    """The kernel of a row of a table, called OP/NAME.

    Its `impl` and `requires` are functions in `package`.

    `own` are the promises of a row that does not say others.
    """
    op, _, short_name = name.partition("/")
    found = own | with_tuples(row)
    found |= {field: f"{package}.{row[field]}" for field in ("impl", "requires") if field in row}
    if "shapes" in row:
        found["shapes"] = shapes_of(row["shapes"])
    return KernelSpec(op, short_name, **found)


def _kernel(op: str, short_name: str, row: dict[str, Any]) -> KernelSpec:
    """A kernel of the harness itself. A Triton kernel needs Triton, and prefers a GPU."""
    name = f"{op}/{short_name}"
    package = f"harness.ops.{op}.kernels"
    if row["impl"].startswith("triton:"):
        # On a CPU the interpreter runs it, which is slow, and wrong for some types.
        gpu_first = ("cuda", "cpu")
        return kernel_of(name, row, package, devices=gpu_first, requires=TRITON, shapes=ANY)
    return kernel_of(name, row, package, devices=("cpu", "cuda"), checks="values", shapes=ANY)


KERNELS = tuple(
    _kernel(op, short_name, row)
    for op, rows in rows_of_ops("kernels.yaml").items()
    for short_name, row in rows.items()
)
"""The entries of each op's `kernels.yaml`."""
