"""What a call of an op shows of its result: rows beside the reference, and choices of experts.

The judge turns them into its evidence. An op knows no judge.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

SLACK_OF_ELEMENT = 4.1
SLACK_OF_ROW = 1.25
"""How many slacks an element, and the root mean square of a row, may be off.

A slack is made of the largest roundings, 1.7 standard deviations of each. So one element in 4e11 is
beyond it.
"""


@dataclass(slots=True)
class Rows:
    """An output to judge. Dim 0 counts rows. Only rows with `live[row]` promise anything.

    `tensor` has any shape and dtype, `live` is bool [rows]. `expected` is float64 of the shape of
    `tensor`, or None without a reference. `bound` names a row of the op's `tolerances.yaml`.
    `describe` is the word for a row, such as "request". `site` is the memory to name for a value
    without a site in its bits. `slack` is what the bound allows an element at least, float64 of the
    same shape: roundings that the case makes large.
    """

    name: str
    tensor: Tensor
    live: Tensor
    expected: Tensor | None = None
    bound: str = ""
    describe: str = "row"
    site: str | None = None
    slack: Tensor | None = None


@dataclass(slots=True)
class Chosen:
    """The experts [tokens, k] int that were chosen for each token, out of `num_experts`."""

    name: str
    ids: Tensor
    num_experts: int
