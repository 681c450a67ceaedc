"""The process that starts `vllm serve` and takes a script of requests to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import Field

from harness.api import HarnessError, Record, answer_requests, play_script
from mla_harness_adapters.serving import NEVER_READY, STARTED

LAUNCH = "mla_harness_vllm.serve.launch"
SERVER = "vllm.entrypoints.cli.main"
END_SECONDS = 60.0
"""How long a server that was told to end, or that answers no more, gets to be gone.

It only ends a hang.
"""
POLL_SECONDS = 0.3
NOISE = 0.05


class ScriptRequest(Record):
    """A script for a server. The second word after `vllm` is a checkpoint."""

    words: tuple[str, ...]
    script: str
    options: dict[str, float] = Field(default={})
    """Options of `play_script`."""


def take_script(request: ScriptRequest) -> dict[str, Any]:
    """Start the server, and for `reload` a second one with other weights.

    Returns the result of the script.

    Raises HarnessError if a server ends.
    """
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(_Server(request.words))
        others: dict[str, str] = {}
        try:
            if request.script == "reload":
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                serve, model, *options = request.words
                weights = _other_weights(Path(model), folder / Path(model).name)
                others = {
                    "weights": weights,
                    "against": stack.enter_context(_Server((serve, weights, *options))).url(),
                }
            played = play_script(request.script, own.url(), **request.options, **others)
        except Exception as error:
            raise own.death(0.0 if own.answers() else END_SECONDS) or error from None
        if death := own.death(POLL_SECONDS):
            raise death
        return played


class _Server:
    """A server, which ends with the block, and with this process.

    Its output goes to the log of this process.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._is_ready = False
        launch = [sys.executable, "-m", LAUNCH, str(os.getpid()), SERVER]
        self._process = subprocess.Popen(
            [*launch, *words, "--host", "127.0.0.1", "--port", str(self._port)]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def url(self) -> str:
        """The address, once it answers. Raises HarnessError if it ends before."""
        began = time.monotonic()
        while not self._is_ready:
            if error := self.death():
                raise error
            if self.answers():
                self._is_ready = True
                print(f"{STARTED} {time.monotonic() - began:.1f} s", flush=True)
            time.sleep(POLL_SECONDS)
        return f"http://127.0.0.1:{self._port}/v1"

    def answers(self) -> bool:
        """Whether the server says that it is well."""
        import httpx

        with contextlib.suppress(httpx.TransportError):
            return bool(
                httpx.get(f"http://127.0.0.1:{self._port}/health", timeout=END_SECONDS).status_code
                == 200
            )
        return False

    def death(self, seconds: float = 0.0) -> HarnessError | None:
        """Why the server is gone, or None if it is there after `seconds`.

        Its connections close before it ends.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            ended = f"ended with exit code {code}"
            while_asked = f"vllm serve {ended} while it was asked"
            return HarnessError(
                while_asked if self._is_ready else f"vllm {NEVER_READY}, it {ended}"
            )
        return None


def _other_weights(model: Path, folder: Path) -> str:
    """Write a checkpoint like `model` with noise on every weight. Returns its folder."""
    import safetensors.torch

    shutil.copytree(model, folder)
    generator = torch.Generator().manual_seed(0)
    for file in folder.glob("*.safetensors"):
        tensors = safetensors.torch.load_file(file)
        for name, tensor in tensors.items():
            noise = (
                torch.randn(tensor.shape, generator=generator)
                * tensor.float().std(unbiased=False)
                * NOISE
            )
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
        safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    return str(folder)


if __name__ == "__main__":
    answer_requests(ScriptRequest, take_script, once=True)
