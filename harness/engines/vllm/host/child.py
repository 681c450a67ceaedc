"""The process that imports vLLM: reads orders from standard input, a JSON line each, and answers with files of Runs.

Started by the vllm-host target alone, with no GPU to be seen and Triton's interpreter on; both must be decided before
torch and Triton are imported. A fault is put back for one order, so that one import of vLLM serves all.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from harness.core.errors import InputError


def main() -> None:
    """Answer orders until standard input ends. `ok` names the file of a Run; `refused` is one sentence."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # vLLM logs to standard output, which is the parent's.
    os.dup2(2, 1)
    is_ready = False
    for line in sys.stdin:
        try:
            if not is_ready:
                _prepare()
                is_ready = True
            answer = {"ok": _carry_out(json.loads(line))}
        except InputError as error:
            answer = {"refused": str(error)}
        except ModuleNotFoundError as error:
            traceback.print_exc()
            answer = _lacking(error)
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _lacking(error: ModuleNotFoundError) -> dict[str, str]:
    """A package that is not installed is refused with the line that installs it; a module of vLLM's own that is not
    there is other code than the harness calls."""
    if not error.name or error.name.partition(".")[0] == "vllm":
        return {"failed": f"{type(error).__name__}: {error}"}
    return {"refused": f"vLLM's Python needs {error.name} (pip install mla-harness[vllm-host])"}


def _prepare() -> None:
    """Repair Triton's interpreter before vLLM defines kernels with it."""
    import torch

    from harness.memory.triton_interpreter import prepare

    torch.set_num_threads(1)
    prepare()


def _carry_out(order: dict[str, Any]) -> str:
    import torch

    from harness.engines.vllm.host.parts import part
    from harness.engines.vllm.params import VllmHostParams
    from harness.memory.poison.patterns import Poison

    params = VllmHostParams.model_validate(order["params"])
    poison = Poison(order["pattern"], frozenset(order["sites"]), strict=order["strict"], seed=order["seed"])
    torch.manual_seed(order["seed"])
    judged = part(params.part)
    with _put_back(order["fault"]):
        torch.save(judged.run(poison, params), order["file"])
    return str(order["file"])


@contextlib.contextmanager
def _put_back(fault: str | None) -> Iterator[None]:
    """One of vLLM's bugs put back for one order. Raises PatchRefused where its code is not what the patch expects."""
    if fault is None:
        yield
        return
    from harness.engines.vllm.faults import patch_for
    from harness.engines.vllm.patches import find_owner

    version = importlib.import_module("vllm").__version__
    patch = patch_for(fault, version)
    edited = {edit.target for edit in patch.edits}
    originals = [(owner, name, owner.__dict__[name]) for owner, name in map(find_owner, edited)]
    try:
        patch.apply(version)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


if __name__ == "__main__":
    main()
