"""The parameters of a case: the base of all models, and the parameters of a call of one op.

Every field may be an axis of a scenario's matrix. The validators of a model decide what is legal. A
case with illegal parameters cannot be made, so a failure is never the fault of the case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

FlatLayout = Literal["contiguous", "block_major", "padded_pages", "large"]
"""How the pages of a cache lie in memory; see :mod:`harness.ops.parts.cache_layouts`.

Only a block table shows the blocks of a manager, a flat slot does not.
"""
KvType = Literal["fp32", "bf16", "fp8_e4m3"]
Length = Annotated[int, Field(ge=0, le=100_000)]
Count = Annotated[int, Field(ge=1, le=4096)]
Tokens = Annotated[int, Field(ge=1, le=100_000)]
"""Tokens of a call, or elements of a row: a chunk of prefill and a hidden state have thousands."""

ParamsT = TypeVar("ParamsT", bound="Params")

ILLEGAL = "illegal"
"""The type of pydantic's error for parameters that do not go together."""
STORED = {"stored": True}
"""The validation context for stored runs: it switches off rules, which may be newer than the run.
"""


class Record(BaseModel):
    """A frozen value that refuses unknown fields; `model_dump_json` and `model_validate_json`
    round-trip it.
    """

    # `defer_build`: a command builds only the models that it uses.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def but(self, **changes: Any) -> Self:
        """A copy with other values of these fields, which are not checked."""
        return self.model_copy(update=changes)


class Params(Record):
    """The parameters of one kind of case."""

    LIMITS: ClassVar[dict[str, str]] = {}
    """Counts that may not exceed another: a parameter -> the parameter that bounds it."""
    KEYWORDS: ClassVar[tuple[str, ...]] = ()
    """Parameters that are optional keywords of the kernel. None stands for a call without it."""
    OPEN_SIZES: ClassVar[frozenset[str]] = frozenset()
    """Sizes of a kernel's call that the parameters do not fix; see
    :data:`harness.core.shapes.SIZES`.
    """
    READS_LSE: ClassVar[frozenset[str]] = frozenset()
    """Parameters with a kernel whose log-sum-exp is read by what comes after it."""
    TOGETHER: ClassVar[tuple[str, ...]] = ()
    """Lists with one entry for each request, which lose a request together when a case shrinks."""
    CACHE_TYPE: ClassVar[str] = ""
    """The parameter with the element type of the cache; empty for a case without a cache."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each thing that is wrong with the combination of these values."""
        for name, bound in self.LIMITS.items():
            value = getattr(self, name)
            most = getattr(self, bound)
            if value is not None and most is not None and value > most:
                yield f"{name} is more than {bound}"

    @model_validator(mode="after")
    def _legal(self, info: ValidationInfo) -> Self:
        problem = None if info.context is STORED else next(self.problems(), None)
        if problem is not None:
            raise PydanticCustomError(ILLEGAL, "{sentence}", {"sentence": problem})
        return self

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        """`values` with each count of LIMITS reduced to its bound."""
        for name, bound in cls.LIMITS.items():
            if values[name] is not None and values[bound] is not None:
                values = values | {name: min(values[name], values[bound])}
        return values

    @property
    def has_graph(self) -> bool:
        return bool(self._of("graph", "none") != "none")

    @property
    def cache_type(self) -> str | None:
        """The element type of the cache; None for a case without one."""
        return getattr(self, self.CACHE_TYPE) if self.CACHE_TYPE else None

    @property
    def cache_layout(self) -> str:
        """How the pages of the cache lie in memory: the parameter `layout`, if there is one."""
        return str(self._of("layout", "contiguous"))

    @property
    def own_timeout(self) -> float | None:
        """The time limit of the case: the parameter `timeout_seconds`, or None if the run decides
        it.
        """
        limit: float | None = self._of("timeout_seconds")
        return limit

    @property
    def num_call_tokens(self) -> int:
        """Tokens of a kernel's call: the parameter `num_tokens`, or 0 for a case without it."""
        return int(self._of("num_tokens", 0))

    def _of(self, name: str, otherwise: Any = None) -> Any:
        return getattr(self, name) if name in type(self).model_fields else otherwise

    @property
    def num_gpus(self) -> int:
        """GPUs that the processes of the case need; 1 also for a case that uses none."""
        return 1

    @property
    def must_happen(self) -> tuple[str, ...]:
        """Events without which a run of the case proves nothing."""
        return ()

    def gives(self) -> frozenset[str]:
        """What the case offers to oracles, in the words of `OracleSpec.needs`.

        `floats` are in its outputs, `requests` are served by an engine, a `graph` is captured,
        `batches` of an engine are in it, a task has `answers`, prompts come again `warm` to an
        engine with prefix caching, a `flush` is made, layers of `mixed` types share one pool,
        tokens are routed to `experts`, a kernel `repeats` on equal inputs, inputs of a kernel show
        their `influence`, a cache `moves`, a `script` of requests is played, a drafter's `module`
        knows the answers by heart. A case adds `patterns` if it has two or more.
        """
        return frozenset({"floats", "graph", "batches"} if self.has_graph else {"floats"})

    def idle_kernels(self) -> frozenset[str]:
        """The parameters with a kernel that no run with these parameters launches."""
        return frozenset()

    def resized(self, size: str, value: int, changes: dict[str, Any]) -> dict[str, Any]:
        """The parameters that give the case `value` as its `size`, beside `changes` that are made
        already.
        """
        return {size: value}

    def varied(self) -> Self:
        """These parameters in a variant of a case: without what holds for the written case alone.

        A variant has other values, other kernels or another seed, and so other tokens.
        """
        return self

    def recorded(self) -> Self:
        """The parameters for a run that only looks for the first NaN."""
        return self


class UnreadParams(Params):
    """The parameters of a system that is not there. Any are taken, as no case of it runs."""

    model_config = ConfigDict(frozen=True, extra="allow")


class KernelParams(Params):
    """Common to all ops: the kernel under test."""

    kernel: str = "torch"
    fence: Literal["none", "before", "after", "exact"] = Field(
        default="none",
        description=(
            "inputs begin (before) or end (after, exact) at memory without access; after leaves up"
            " to 15 bytes, exact none"
        ),
    )
    predecessor: Literal["none", "slow"] = Field(
        default="none",
        description=(
            "slow: the kernel in front starts the next one at once, and writes its inputs late"
        ),
    )
    streams: Literal["none", "delayed"] = Field(
        default="none",
        description=(
            "delayed: another stream writes the inputs late; host memory changes after a call"
        ),
    )
    influence: Literal["none", "each"] = Field(
        default="none",
        description="each: one row or entry of each input changes, and the outputs must follow",
    )
    corrupt: str = Field(
        default="",
        description=(
            "what is wrong with an argument, or `all` in turn; see docs/reject-or-correct.md"
        ),
    )
    SUSCEPTIBLE: ClassVar[Mapping[str, Any]] = {}
    """The parameters of the cases of `susceptibility` that are no defaults."""
    SUSCEPTIBLE_TOKENS: ClassVar[Mapping[int, tuple[int, ...]]] = {1: ()}
    """Query tokens of a request in `susceptibility` -> the lengths of its requests. Empty: the
    lengths of SUSCEPTIBLE.
    """

    @property
    def has_plan(self) -> bool:
        """Whether the kernel gets a plan, as a parameter `planned` says."""
        return bool(self._of("planned", False))

    @property
    def num_launches(self) -> int:
        """Launches on the same inputs, as a parameter `launches` says."""
        return int(self._of("launches", 1))

    def gives(self) -> frozenset[str]:
        # One launch is captured, and no batches of an engine.
        given = super().gives() - {"batches"}
        given |= {"repeats"} if self.num_launches > 1 else set()
        return given | ({"influence"} if self.influence == "each" else set())

    @property
    def dtype(self) -> str:
        """The type of queries, keys and latents: float32 beside a float32 cache, else bfloat16."""
        return "fp32" if self.cache_type == "fp32" else "bf16"
