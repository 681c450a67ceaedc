"""The index checks of the poison, as findings of a case.

`torch_poison` raises an error of its own. A case that ends by it is a finding, so it becomes an
:class:`IllegalAddress` here, where the engine and the kernels of the harness call the checks.
"""

from __future__ import annotations

from torch import Tensor
from torch_poison import bounds, errors

from harness.core.errors import IllegalAddress


def check_indices(indices: Tensor, size: int, what: str) -> Tensor:
    """`indices` (any int dtype and shape) as int64, each of them in [0, size).

    Raises IllegalAddress for the first bad index; `what` is the name of the indices. On CUDA the
    verdict comes later, see :func:`torch_poison.bounds.check_indices`.
    """
    try:
        return bounds.check_indices(indices, size, what)
    except errors.IllegalAddress as error:
        raise finding_of(error) from None


def raise_bad_indices() -> None:
    """Raise IllegalAddress for the first check on CUDA that failed since the last call.

    Call it when the device has finished, for example after a read of logits.
    """
    if error := bad_index():
        raise error


def bad_index() -> IllegalAddress | None:
    """The error of the first check on CUDA that failed since the last call, also if the device is
    lost.
    """
    error = bounds.bad_index()
    return finding_of(error) if error else None


def finding_of(error: errors.IllegalAddress) -> IllegalAddress:
    """The same error as a finding of the case."""
    return IllegalAddress(str(error), tensor=error.tensor)
