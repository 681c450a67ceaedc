"""The process that starts `vllm serve` and takes scripts of requests to it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from harness.accuracy.script_check import ScriptCheck, check_script
from harness.core.errors import HarnessError
from harness.core.extras import httpx
from harness.core.params import Record
from harness.engines.serving import NEVER_READY
from harness.run.protocol import answer_once
from harness.run.scripts import load_script

SERVER = "vllm.entrypoints.cli.main"
END_SECONDS = 30.0
NOISE = 0.05


class ScriptsRequest(Record):
    """The words after `vllm`, the second a checkpoint, and the scripts for the server."""

    words: tuple[str, ...]
    scripts: tuple[str, ...]
    timeout: float = 120.0


def take_scripts(request: ScriptsRequest) -> dict[str, Any]:
    """Start the server, and a second one with other weights for script `reload`. Returns a result for each script."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(_served(request.words))
        for name in request.scripts:
            started, more = time.monotonic(), {}
            if name == "reload":
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                serve, model, *options = request.words
                more["weights"] = _other_weights(Path(model), Path(folder) / Path(model).name)
                more["against"] = stack.enter_context(_served((serve, more["weights"], *options)))
            check = ScriptCheck(url=url, script=load_script(name), timeout=request.timeout, **more)
            judged = check_script(check)
            seconds = round(time.monotonic() - started, 1)
            result = judged.result().model_dump(mode="json")
            found[name] = {"found": judged.as_dict() | {"seconds": seconds}, "result": result}
    return found


@contextlib.contextmanager
def _served(words: tuple[str, ...]) -> Iterator[str]:
    """The address of a server, which ends with the block. Its output goes to the log of this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", SERVER, *words, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        while True:
            if process.poll() is not None:
                raise HarnessError(f"vllm {NEVER_READY}, it ended with exit code {process.returncode}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5.0).status_code == 200:
                    break
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}/v1"
        if process.poll() is not None:
            raise HarnessError(f"vllm serve ended with exit code {process.returncode} while it was asked")
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _other_weights(model: Path, folder: Path) -> str:
    """Write a checkpoint like `model` with noise on every weight. Returns its folder."""
    shutil.copytree(model, folder)
    generator = torch.Generator().manual_seed(0)
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std(unbiased=False) * NOISE
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
        save_file(tensors, file, metadata={"format": "pt"})
    return str(folder)


if __name__ == "__main__":
    answer_once(ScriptsRequest, take_scripts)
