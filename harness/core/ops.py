"""The table of ops: the contract of a kernel under test.

Letters are those of `ops.yaml`. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.core.files import rows_beside, with_tuples
from harness.core.registry import Registry

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""


SCALED_BLOCK = 128
"""Elements of a row with one scale, as DeepSeek's fp8 activations have them."""


def aligned_sizes(num_choices: int, num_experts: int, block_size: int) -> tuple[int, int]:
    """The entries and blocks that `align_experts` returns: enough for the worst distribution of the
    choices.
    """
    size = min(num_choices * block_size, num_choices + num_experts * (block_size - 1))
    return size, -(-size // block_size)


def latent_rank(head_dim: int) -> int:
    """R of a latent of D = R + E elements: the largest power of two below D (512 of 576).

    A kernel knows only D.
    """
    return 1 << ((head_dim - 1).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that an op returns: its name, its shape in letters, and the site of its unwritten
    elements.
    """

    name: str
    shape: str
    site: str


@dataclass(frozen=True, slots=True)
class Op:
    """The signature and contract of one op."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    outputs: tuple[Output, ...]
    summary: str
    optional: tuple[str, ...] = ()
    """Keywords that a kernel need not have. It is then called without them."""
    activations: tuple[str, ...] = ()
    """The positional arguments of the model's dtype. The first output has it too."""
    finite: tuple[str, ...] = ()
    """Float inputs that must be finite. If they are, the op itself caused a NaN in its output."""
    sizes: tuple[str, ...] = ()
    """The sizes that a kernel can declare, see :class:`harness.core.shapes.Shapes`."""
    reads: tuple[str, ...] = ()
    """The sites of uninitialised memory that a kernel could read."""
    arguments: str = ""
    """The shapes and types of the arguments, and the types of the outputs, in words."""

    @property
    def gives_lse(self) -> bool:
        """Whether a kernel of the op returns a log-sum-exp beside its output."""
        return any(output.name == "lse" for output in self.outputs)

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.positional)}, *, {', '.join(self.keywords)})"


def _op(name: str, row: dict[str, Any]) -> Op:
    """The op of a row. Lists are tuples here, and folded texts have no last line break."""
    outputs = tuple(Output(**output) for output in row.pop("outputs"))
    texts = {field: text.strip() for field, text in row.items() if isinstance(text, str)}
    return Op(name=name, outputs=outputs, **(with_tuples(row) | texts))


OPS: Registry[Op] = Registry(
    "op", tuple(_op(name, row) for name, row in rows_beside(__file__).items())
)
"""The entries of `ops.yaml`, in its order."""
