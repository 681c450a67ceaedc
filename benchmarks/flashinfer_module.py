"""Compile one module of FlashInfer for Hopper, on a machine without a GPU.

    export CUDA_HOME=TOOLKIT PYTHONPATH=SITE
    python benchmarks/flashinfer_module.py topk WORK
    cp WORK/topk.so SITE_ON_THE_GPU_MACHINE/flashinfer/data/aot/topk/

FlashInfer compiles a module when it is first called, on the machine with the GPU: `topk`, which
`select_topk/vllm-flashinfer` needs, for more than 400 s. From `data/aot` it loads it at once. SITE
has FlashInfer and what it imports. TOOLKIT has nvcc: pip packages nvidia-cuda-nvcc, nvidia-nvvm,
nvidia-cuda-crt, nvidia-cuda-cccl, nvidia-cuda-runtime and nvidia-curand in one folder, with lib64
beside lib.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser(description="compile one module of FlashInfer for Hopper")
    parser.add_argument("module", help="such as topk: flashinfer.jit.MODULE has gen_MODULE_module")
    parser.add_argument("work", type=Path, help="folder of the build")
    args = parser.parse_args()
    if "CUDA_HOME" not in os.environ:
        parser.error("CUDA_HOME names no toolkit: export CUDA_HOME=FOLDER, which has bin/nvcc")
    work = args.work.resolve()
    stub_driver(Path(os.environ["CUDA_HOME"]) / "lib64" / "stubs")
    os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(work)}
    # A torch for CPUs names no CUDA, and FlashInfer asks which one it was built with.
    torch.version.cuda = torch.version.cuda or "13.0"
    started = time.monotonic()
    jit = importlib.import_module(f"flashinfer.jit.{args.module}")
    getattr(jit, f"gen_{args.module}_module")().build(verbose=True)
    (built,) = work.rglob(f"cached_ops/{args.module}/{args.module}.so")
    shutil.copy(built, work)
    print(
        f"{work / built.name}: {built.stat().st_size:,} bytes, {time.monotonic() - started:.0f} s"
    )


def stub_driver(folder: Path) -> None:
    """Make a libcuda that has nothing, to link with. The machine with the GPU has the real one."""
    library = folder / "libcuda.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = ["cc", "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1"]
        subprocess.run([*words, "-o", str(library)], check=True)


if __name__ == "__main__":
    main()
