"""torch's own table of operators, tested in the style of torch's own tests: a suite that must not
alarm.

`python3 -m pytest examples/torch_ops --poison nan` (needs the package expecttest). Every third
operator is called on torch's own samples; results are compared with those of non-contiguous copies,
and with a call that writes to `out=`.
"""

import pytest
import torch

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_map_only

RANDOM = (
    "dropout",
    "rand",
    "bernoulli",
    "multinomial",
    "normal",
    "uniform",
    "cauchy",
    "exponential",
    "geometric",
    "log_",
)
UNWRITTEN = ("empty", "resize_", "resize_as_")
"""Operators whose results are uninitialised memory by their own definition."""
OTHERS = (
    "linalg",
    "svd",
    "eig",
    "qr",
    "geqrf",
    "to_sparse",
    "as_strided",
    "nonzero",
    "view_as",
    "allclose",
    "equal",
)
"""Results that are not unique, not dense or no tensors, so that a comparison needs more than these
tests have.
"""
CHOSEN = [op for op in op_db if not any(word in op.name for word in RANDOM + UNWRITTEN + OTHERS)][
    ::3
]


class TestOperators(TestCase):
    @ops(CHOSEN, allowed_dtypes=(torch.float32,))
    def test_strides_do_not_matter(self, device, dtype, op):
        for sample in list(op.sample_inputs(device, dtype))[:4]:
            scattered = sample.noncontiguous()
            expected = op(sample.input, *sample.args, **sample.kwargs)
            got = op(scattered.input, *scattered.args, **scattered.kwargs)
            self.assertEqual(got, expected, exact_device=True)

    @ops([op for op in CHOSEN if op.supports_out], allowed_dtypes=(torch.float32,))
    def test_results_go_into_buffers(self, device, dtype, op):
        for sample in list(op.sample_inputs(device, dtype))[:2]:
            expected = op(sample.input, *sample.args, **sample.kwargs)
            buffers = tree_map_only(torch.Tensor, torch.empty_like, expected)
            if isinstance(buffers, tuple):
                buffers = tuple(buffers)
            op(sample.input, *sample.args, **sample.kwargs, out=buffers)
            self.assertEqual(buffers, expected)


instantiate_device_type_tests(TestOperators, globals(), only_for=("cpu", "cuda"))
