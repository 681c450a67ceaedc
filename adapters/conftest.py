"""The fixtures of the harness's own tests, for the tests of adapters."""

from tests.conftest import (
    _end_the_processes_that_import_torch,
    _forget_kernels_that_a_test_registers,
    _keep_the_process_that_imports_torch,
    cli,
    start_process,
    start_server,
)

__all__ = [
    "_end_the_processes_that_import_torch",
    "_forget_kernels_that_a_test_registers",
    "_keep_the_process_that_imports_torch",
    "cli",
    "start_process",
    "start_server",
]
