"""A small package of row-wise kernels, as somebody else might have written it.

One of them has a bug, on purpose.
"""

from rowkernels.pad import pad_rows, unpad_rows
from rowkernels.segments import segment_mean, segment_mean_out, segment_sum

__all__ = ["pad_rows", "segment_mean", "segment_mean_out", "segment_sum", "unpad_rows"]
