"""Run tests of libraries with `__torch_function__` or `__torch_dispatch__` plain, under zeros and
under nan.

    python benchmarks/poison_libraries.py FOLDER > table.md

FOLDER holds the source tree of each library that is to be tried, named as in `LIBRARIES`. The
libraries themselves are importable, without a torch of their own. Prints a row of the table in
docs/data/poison-suites.md for each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIBRARIES = {
    "linear_operator-0.6.1": (
        "test/functions test/operators/test_{dense,diag,identity}_linear_operator.py test/utils"
    ),
    "gpytorch-1.15.2": "test/distributions test/kernels/test_rbf_kernel.py test/lazy",
    "pytorch_geometric-2.8.0": (
        "test/test_index.py test/test_edge_index.py test/test_hash_tensor.py"
    ),
    "tensordict-0.14.0": "test/tensordict/test_errors.py test/tensordict/test_nontensor.py",
    "torchao": "test/test_utils.py",
    "kornia": (
        "tests/core/test_tensor_wrapper.py tests/geometry/test_boxes.py"
        " tests/geometry/test_keypoints.py"
    ),
}
"""The tests of each source tree, as arguments of a shell."""

RUNS = {"without": "", "zeros": "--poison zeros", "nan": "--poison nan"}


def outcome(tree: Path, tests: str, option: str) -> str:
    """The counts of pytest's last line, and what the plug-in found."""
    command = f"{sys.executable} -m pytest -q --color=no -p no:cacheprovider {option} {tests}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tree, capture_output=True, text=True, check=False
    )
    counts = re.findall(r"(\d+ (?:passed|failed|skipped|error))", done.stdout.splitlines()[-1])
    found = re.search(r"(\d+) found on uninitialised memory", done.stdout)
    return ", ".join(counts) + (f"; {found[1]} found" if found else "")


def main() -> None:
    for name, tests in LIBRARIES.items():
        tree = Path(sys.argv[1], name)
        if tree.is_dir():
            cells = [name, tests, *(outcome(tree, tests, option) for option in RUNS.values())]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
