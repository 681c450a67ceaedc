"""What an op promises, as code: shapes, dtypes, and the memory that belongs to no one.

No torch here.

The contract of an op is a class in `harness/ops/<op>/contract.py`. Its attributes are the arguments
and the outputs, in the order in which a kernel gets and returns them:

    class MergeAttnStates(Op):
        prefix_out = Arg("T H V", ACTIVATION, unowned={"context.output": "tokens without context"})
        num_tokens_with_context = Keyword("int | None", "None: all tokens")
        out = Out("T H V", ACTIVATION, site="output")

The signature that a plug-in must have, the check of what a kernel returns, the sites that a case
may poison, and the page `docs/ops.md` all follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

Tokens = Literal["batch", "decode", "prefill"]
"""The tokens of an engine's step that have rows in a call: all of them, those of its decodes, which
stand first, or those of its prompts.
"""
Watched = Literal["input", "beside"]
"""A scan in the report of the first-NaN recorder: of an input that the op reads, or of memory
beside one, which the op must not read.
"""

ACTIVATION = "activation"
"""The type of the model's activations: float32 beside a float32 cache, else bfloat16, or the only
type that a kernel's `shapes` declares.
"""
KV = "cache"
"""The type of the cache: float32, bfloat16, float8_e4m3fn, or uint8 for records."""

LETTERS: Mapping[str, str] = {
    "B": "requests",
    "S": "query tokens of a request",
    "T": "tokens",
    "H": "heads",
    "N": "pages of the cache",
    "P": "slots of a page, 64",
    "M": "columns of the block table",
    "R": "`kv_lora_rank`",
    "E": "`qk_rope_head_dim`",
    "D": "R + E, the elements of a latent",
    "V": "`v_head_dim`",
    "E'": "`qk_head_dim`",
    "C": "context tokens of a chunk",
    "K": "columns, or chosen positions of a token",
    "L": "M * P, the positions of a request",
    "I": "`index_head_dim`",
    "X": "experts",
    "k": "experts of a token",
    "W": "elements that a record holds",
    "Y": "bytes of a record, or of a row of codes",
    "G": "scales of a row",
    "Z": "rows of scales, rounded up to whole tiles",
    "Q": "entries of aligned experts, padding included",
    "A": "blocks of aligned experts",
}
"""The letters of shapes.

A dimension that is a number stands for itself, and `n + 1` for one more.
"""


@dataclass(frozen=True, slots=True)
class Arg:
    """A tensor that a kernel gets by position.

    `shape` has a letter of LETTERS for each dimension; empty if the argument is no tensor. `dtype`
    is a name of torch, ACTIVATION or KV. `unowned` are the parts that may hold anything: the site
    of each, and what the part is. A kernel must not let them influence a live result.
    """

    shape: str
    dtype: str
    note: str = ""
    """What shape and dtype do not say."""
    unowned: Mapping[str, str] = field(default_factory=dict)
    must_be_finite: bool = False
    """Whether its live elements are finite in a sound run, so that a NaN in the output is the
    op's own.
    """
    is_written: bool = False
    """Whether the op stores its result here. No other argument may change."""
    is_unwatched: bool = False
    """Whether the op reads it and the first-NaN recorder does not scan it: elements that were
    never written lie between those that count. The recorder's report says that it was not watched.
    """


@dataclass(frozen=True, slots=True)
class Keyword:
    """An argument by keyword.

    A kernel need not have one that `is_optional`: it is then called without it.
    """

    type: str
    note: str = ""
    is_optional: bool = False
    planned_by: str = ""
    """The op whose kernel makes it, from the lengths of the same call: a plan."""


@dataclass(frozen=True, slots=True)
class Out:
    """A tensor that a kernel returns.

    `site` is the kind of memory of the elements that it does not write.
    """

    shape: str
    dtype: str
    site: str
    note: str = ""
    ids_of: str = ""
    """The letter of what its elements name: each is at least 0 and less than that size."""
    is_partly_undefined: bool = False
    """Whether rows of live tokens hold elements that the op leaves undefined. The first-NaN
    recorder does not scan such an output.
    """
    name: str = ""
    """The name of the attribute of the contract."""


@dataclass(frozen=True, slots=True)
class WatchedRows:
    """What the first-NaN recorder scans of a call besides its arguments, on a CPU.

    `code` is a part of the op, such as "watched:cache_rows": a function of the arguments by
    position and by keyword, which returns a tensor of floats [B, L, D] for each of `tensors`, with
    zeros where it does not look. `tensors` are their names in a report, and what they are.
    """

    code: str
    tensors: Mapping[str, Watched]


class Op:
    """The base of all contracts. The docstring of a contract says what the op computes."""

    name: ClassVar[str] = ""
    """The name of the op, and of its folder."""
    sizes: ClassVar[tuple[str, ...]] = ()
    """The sizes that a kernel can declare, see :class:`harness.ops.shapes.Shapes`."""
    scratch: ClassVar[tuple[str, ...]] = ("workspace",)
    """Further sites of memory that a kernel of the op could read before it is written."""
    letters: ClassVar[Mapping[str, str]] = {}
    """Letters that mean something else here than in LETTERS."""
    reads_latents: ClassVar[bool] = True
    """Whether the cache that it reads holds latents. If so, the type of an engine's cache is a type
    that its kernel must read.
    """
    tokens: ClassVar[Tokens] = "batch"
    """The tokens that have rows in a call in an engine's step."""
    written_tokens: ClassVar[str] = ""
    """A part of the op that says which tokens have rows that the op writes: a function of the
    arguments by position and the number of tokens T, which returns bool [T] on the CPU. Empty: the
    op writes the rows of all tokens.
    """
    watched_rows: ClassVar[WatchedRows | None] = None
    """What the first-NaN recorder scans besides the arguments that must be finite."""

    arguments: ClassVar[dict[str, Arg]]
    keyword_arguments: ClassVar[dict[str, Keyword]]
    outputs: ClassVar[tuple[Out, ...]]

    def __init_subclass__(cls) -> None:
        """Collect the arguments and outputs of the class, in their order.

        Raises ValueError for an unknown letter.
        """

        # The order of a class body is the order of its attributes, so it is also the order in which
        # a kernel gets its arguments.
        def of_kind(kind: type[Any]) -> dict[str, Any]:
            return {name: value for name, value in vars(cls).items() if isinstance(value, kind)}

        cls.arguments = of_kind(Arg)
        cls.keyword_arguments = of_kind(Keyword)
        cls.outputs = tuple(replace(out, name=name) for name, out in of_kind(Out).items())
        # A wrong letter would be a wrong sentence in docs/ops.md and a check that never looks, so
        # the import ends here.
        known = {**LETTERS, **cls.letters}
        shapes = {name: argument.shape for name, argument in cls.arguments.items()}
        shapes |= {output.name: output.shape for output in cls.outputs}
        for name, shape in shapes.items():
            unknown = [
                letter
                for letter in dimensions(shape)
                if not letter.isdigit() and letter not in known
            ]
            if unknown:
                raise ValueError(
                    f"{cls.__name__}.{name}: shape {shape!r} has the unknown letter {unknown[0]}"
                )

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join((type(self).__doc__ or "").partition("\n\n")[0].split())

    @property
    def description(self) -> str:
        """The docstring, a line for each paragraph."""
        paragraphs = (type(self).__doc__ or "").strip().split("\n\n")
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    @property
    def gives_lse(self) -> bool:
        """Whether a kernel of the op returns a log-sum-exp beside its output."""
        return any(output.name == "lse" for output in self.outputs)

    @property
    def positional(self) -> tuple[str, ...]:
        """The names of the arguments by position."""
        return tuple(self.arguments)

    @property
    def keywords(self) -> tuple[str, ...]:
        """The names of the keyword arguments that every kernel has."""
        return tuple(name for name, word in self.keyword_arguments.items() if not word.is_optional)

    @property
    def optional(self) -> tuple[str, ...]:
        """The names of the keyword arguments that a kernel need not have."""
        return tuple(name for name, word in self.keyword_arguments.items() if word.is_optional)

    @property
    def activations(self) -> tuple[str, ...]:
        """The arguments of the model's dtype. The first output has it too."""
        return tuple(
            name for name, argument in self.arguments.items() if argument.dtype == ACTIVATION
        )

    @property
    def finite(self) -> tuple[str, ...]:
        """The arguments that must be finite.

        If they are, the op itself caused a NaN in its output.
        """
        return tuple(name for name, argument in self.arguments.items() if argument.must_be_finite)

    @property
    def unwatched(self) -> tuple[str, ...]:
        """The arguments that the op reads and the first-NaN recorder does not scan."""
        return tuple(name for name, argument in self.arguments.items() if argument.is_unwatched)

    @property
    def planned_keyword(self) -> tuple[str, str] | None:
        """The keyword argument that is a plan, and the op that makes it; None for an op without
        plans.
        """
        return next(
            (
                (name, word.planned_by)
                for name, word in self.keyword_arguments.items()
                if word.planned_by
            ),
            None,
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The sites of uninitialised memory that a kernel could read."""
        outputs = [output.site for output in self.outputs]
        inputs = [site for argument in self.arguments.values() for site in argument.unowned]
        return tuple(dict.fromkeys((*outputs, *self.scratch, *inputs)))

    @property
    def signature(self) -> str:
        """How a kernel of the op is called:

        `write_kv(kv_c, k_pe, kv_cache, slot_mapping, *, kv_scale)`.
        """
        by_keyword = ("*", *self.keywords) if self.keywords else ()
        return f"{self.name}({', '.join((*self.positional, *by_keyword))})"


def dimensions(shape: str) -> tuple[str, ...]:
    """The dimensions of a shape in letters:

    `"B S H D"` has four, `"B+1"` one, and an empty text none.

    Of `B+1` the letter alone is given.
    """
    return tuple(part.partition("+")[0] for part in shape.split())
