"""Padding to a multiple, as kernels want it.

Padded rows are undefined by contract: nobody may read them.
"""

import torch


def pad_rows(values: torch.Tensor, multiple: int) -> torch.Tensor:
    """Rows of `values` [N, D] in a buffer whose length is a multiple; the rows past N are
    undefined.
    """
    padded = torch.empty(
        -(-len(values) // multiple) * multiple, values.shape[1], dtype=values.dtype
    )
    padded[: len(values)] = values
    return padded


def unpad_rows(padded: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The rows that are defined: padded [M, D] -> [num_rows, D]."""
    return padded[:num_rows].clone()
