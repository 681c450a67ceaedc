"""The process that starts `vllm serve` and takes scripts of requests to it, one at a time."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import torch

from harness.accuracy.script_check import TOLERANCE, ScriptCheck, check_script
from harness.core.errors import HarnessError
from harness.core.extras import httpx, safetensors
from harness.core.params import Record
from harness.engines.serving import NEVER_READY, STARTED
from harness.run.protocol import Parent, Reply, reply_to_error, run_child
from harness.run.scripts import load_script

SERVER = "vllm.entrypoints.cli.main"
END_SECONDS = 30.0
NOISE = 0.05


class ScriptRequest(Record):
    """A script for a server, which the first request starts. The second word after `vllm` is a checkpoint."""

    words: tuple[str, ...]
    script: str
    reloads: bool = False
    """Start the second server, with other weights, beside the first: a later script is `reload`."""
    timeout: float = 120.0
    tolerance: float = TOLERANCE


def take_scripts(parent: Parent) -> None:
    """Answer each request with the result of its script. Ends after an error: the server may be gone."""
    with contextlib.ExitStack() as stack:
        own: _Server | None = None
        other: _Server | None = None
        for request in parent.requests(ScriptRequest):
            own = own or stack.enter_context(_Server(request.words))
            if other is None and (request.reloads or request.script == "reload"):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                serve, model, *options = request.words
                weights = _other_weights(Path(model), folder / Path(model).name)
                other = stack.enter_context(_Server((serve, weights, *options)))
            try:
                parent.reply(Reply(result=_taken(request, own, other)))
            except Exception as error:
                parent.reply(reply_to_error(own.death() or error))
                return


def _taken(request: ScriptRequest, own: _Server, other: _Server | None) -> dict[str, Any]:
    """The result of a script. Raises HarnessError if a server ends."""
    more: dict[str, Any] = {"url": own.url(), "timeout": request.timeout, "tolerance": request.tolerance}
    if request.script == "reload" and other:
        more |= {"weights": other.words[1], "against": other.url()}
    started = time.monotonic()
    judged = check_script(ScriptCheck(script=load_script(request.script), **more))
    if error := own.death():
        raise error
    seconds = round(time.monotonic() - started, 1)
    return {"found": judged.as_dict() | {"seconds": seconds}, "result": judged.result().model_dump(mode="json")}


class _Server:
    """A server, which ends with the block. Its output goes to the log of this process."""

    def __init__(self, words: tuple[str, ...]) -> None:
        """Start it, and do not wait."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.words, self._is_ready = words, False
        command = [sys.executable, "-m", SERVER, *words, "--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen(command)

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
            with contextlib.suppress(httpx.TransportError):
                self._is_ready = httpx.get(f"http://127.0.0.1:{self._port}/health", timeout=5.0).status_code == 200
                print(f"{STARTED} {time.monotonic() - began:.1f} s", flush=True)
            time.sleep(0.3)
        return f"http://127.0.0.1:{self._port}/v1"

    def death(self) -> HarnessError | None:
        """Why the server is gone, or None. Its connections close a moment before it ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.3)
            ended = f"ended with exit code {code}"
            while_asked = f"vllm serve {ended} while it was asked"
            return HarnessError(while_asked if self._is_ready else f"vllm {NEVER_READY}, it {ended}")
        return None


def _other_weights(model: Path, folder: Path) -> str:
    """Write a checkpoint like `model` with noise on every weight. Returns its folder."""
    shutil.copytree(model, folder)
    generator = torch.Generator().manual_seed(0)
    for file in folder.glob("*.safetensors"):
        tensors = safetensors.load_file(file)
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std(unbiased=False) * NOISE
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
        safetensors.save_file(tensors, file, metadata={"format": "pt"})
    return str(folder)


if __name__ == "__main__":
    run_child(take_scripts)
