"""What LMDeploy's `bitonic_topk` chooses in Triton's interpreter, from the folder of a release.

Run by test_interpreted_topk.py.

python adapters/lmdeploy/tests/interpreted_topk.py FOLDER SCORE...
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from harness.memory.triton_interpreter import prepare

assert prepare(), "set TRITON_INTERPRET=1"

import torch  # noqa: E402

KERNELS = "lmdeploy.pytorch.kernels.cuda"
K = 64


def load(folder: str) -> ModuleType:
    """The file of the kernel, and nothing else of LMDeploy."""
    parts = KERNELS.split(".")
    for count in range(1, len(parts) + 1):
        package = ModuleType(".".join(parts[:count]))
        package.__path__ = [str(Path(folder, *parts[:count]))]
        sys.modules[package.__name__] = package
    devices = ModuleType(f"{KERNELS}.utils")
    devices.get_device_props = lambda device: {"multi_processor_count": 1}  # type: ignore[attr-defined]
    sys.modules[devices.__name__] = devices
    return importlib.import_module(f"{KERNELS}.bitonic_topk")


def main(folder: str, *scores: str) -> None:
    row = torch.full((1, K), 9.0)
    row[0, : len(scores)] = torch.tensor([float(score) for score in scores])
    one = torch.ones(1, dtype=torch.int32)
    length = one * len(scores)
    found = load(folder).bitonic_topk(row, one, length, K, fill=-1, descending=True)
    print(*(position for position in found[0].tolist() if position >= 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
