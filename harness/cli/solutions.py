"""Solutions of flashinfer-ai/flashinfer-bench, as kernels to judge.

A Solution is a JSON file with the sources of a kernel, and the name of the Definition that it
solves. Source: `flashinfer_bench/data/solution.py` of that project.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from harness.core.errors import InputError
from harness.core.params import Record

DEFINITION = re.compile(r"mla_paged_(decode|prefill_causal)_h(\d+)_ckv512_kpe64_ps(1|64)")
"""The Definitions that `mla_decode` can express: heads, and slots of a page."""
LANGUAGES = ("python", "triton")

_PLUGIN = '''"""Written by `mla-harness judge` of the solution {name}."""

import importlib.util
import os
import sys

import torch

from harness import kernel

ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), {entry!r})
sys.path.insert(0, os.path.dirname(ENTRY))
spec = importlib.util.spec_from_file_location("solution_entry", ENTRY)
module = importlib.util.module_from_spec(spec)
sys.modules["solution_entry"] = module
spec.loader.exec_module(module)
run = getattr(module, {function!r})


@kernel(op="mla_decode", name={kernel!r}, style={style!r}, kv=("bf16",), shapes={shapes!r})
def solution(*inputs):
    if not {writes_outputs!r}:
        found = run(*inputs)
        return (found["output"], found["lse"]) if isinstance(found, dict) else found
    output = torch.empty_like(inputs[0])
    lse = torch.empty(inputs[0].shape[:2], dtype=torch.float32, device=output.device)
    run(*inputs, output, lse)
    return output, lse
'''


class Source(Record):
    path: str
    content: str


class BuildSpec(Record):
    language: str
    entry_point: str
    destination_passing_style: bool = True


class Solution(Record):
    """The part of a Solution that is read."""

    name: str
    definition: str
    spec: BuildSpec
    sources: tuple[Source, ...] = Field(min_length=1)


def plugin_of(file: Path, folder: Path) -> Path:
    """Write the sources of a Solution below `folder`, and a plug-in beside them. Returns its path.

    Raises InputError for a file that is no Solution, or one that no op can express.
    """
    solution = _read(file)
    found = DEFINITION.fullmatch(solution.definition)
    if found is None:
        raise InputError(
            f"{file}: definition {solution.definition!r}; judged are mla_paged_decode_* and"
            " mla_paged_prefill_causal_* with ckv512_kpe64 and ps1 or ps64"
        )
    if solution.spec.language not in LANGUAGES:
        raise InputError(
            f"{file}: language {solution.spec.language!r}; judged are {' and '.join(LANGUAGES)};"
            " build it, and write a plug-in that calls it"
        )
    own = folder / f"solution-{re.sub(r'[^A-Za-z0-9_.-]', '-', solution.name)}"
    for source in solution.sources:
        _write(file, own, source)
    kind, heads, slots = found.groups()
    entry, _, function = solution.spec.entry_point.partition("::")
    shapes: dict[str, Any] = {"like": "deepseek", "num_heads": int(heads)}
    if kind == "decode":
        shapes["query_len"] = 1
    plugin = own / "judged_solution.py"
    plugin.write_text(
        _PLUGIN.format(
            name=solution.name,
            entry=entry,
            function=function,
            kernel=re.sub(r"[^A-Za-z0-9_.-]", "-", solution.name).strip("-_.") or "solution",
            style=f"trace_{kind.partition('_')[0]}_ps{slots}",
            shapes=shapes,
            writes_outputs=solution.spec.destination_passing_style,
        ),
        encoding="utf-8",
    )
    return plugin


def _read(file: Path) -> Solution:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: no JSON: {error}") from error
    if isinstance(content, dict) and "sources" not in content and "reference" in content:
        raise InputError(f"{file}: a Definition; give the Solution, which has the sources")
    names = {"name", "definition", "spec", "sources"}
    try:
        read = {key: value for key, value in content.items() if key in names}
        spec = {key: read["spec"][key] for key in BuildSpec.model_fields if key in read["spec"]}
        return Solution.model_validate({**read, "spec": spec})
    except (AttributeError, KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"{file}: no Solution of FlashInfer-Bench; it needs name, definition, spec and sources"
        ) from error


def _write(file: Path, folder: Path, source: Source) -> None:
    path = Path(source.path)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{file}: source {source.path!r} leads out of its folder")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source.content, encoding="utf-8")
