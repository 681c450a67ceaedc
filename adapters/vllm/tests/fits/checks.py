"""Checks each part of the harness against a release of vLLM, and lists the names that the release
lacks.

No list of names is kept for this. Types come from `mla_harness_vllm.objects`, calls from the
text of the adapters, options and variables from the target, and patches from
`mla_harness_vllm.faults`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, get_args

import griffe

from adapters.vllm.tests.fits.calls import Call, calls_of, declared, mismatches, parameters
from adapters.vllm.tests.fits.release import Release
from harness.core.catalog import ENGINES, KERNELS
from harness.core.cause_codes import Code
from harness.core.files import FIXTURES
from harness.core.kernels import KernelSpec
from mla_harness_adapters.patches import Patch, PatchRefused, edited_text
from mla_harness_adapters.releases import Releases, release_of
from mla_harness_adapters.served_params import TASKS
from mla_harness_vllm import objects
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.objects import RELIED, Relied
from mla_harness_vllm.options import llm_options
from mla_harness_vllm.params import VllmParams

FOLDER = Path(objects.__file__).parent
OUR_TEXT = Release([FOLDER.parent])
"""Our types are also read by their text, which has no members that `Protocol` adds."""
FLASHINFER = "(FlashInfer that was looked into)"
NAMED_IN = {
    "attention_backend": "vllm.v1.attention.backends.registry:AttentionBackendEnum",
    "compilation_config.cudagraph_mode": "vllm.config.compilation:CUDAGraphMode",
    "kv_cache_dtype": "vllm.config.cache:CacheDType",
    "moe_backend": "vllm.config.kernel:MoEBackend",
    "quantization": "vllm.model_executor.layers.quantization:QuantizationMethods",
}
"""Where vLLM lists the values of options of `llm_options`."""
REGISTER = "mla_harness_vllm.serve.routing:register"
ORIGINS = ("vllm", "flashinfer")
"""The engines of the kernels that are checked: vLLM, and FlashInfer beside it."""
OF_ENGINES = [spec for spec in KERNELS if spec.origin in ORIGINS and spec.devices != ("cpu",)]
"""Their kernels. Those of vLLM's CPU build are C++ ops that no text of a release declares; they are
run on the build itself.
"""


@dataclass(frozen=True, slots=True)
class Fit:
    """One part: the number of checked names, the missing ones, or why nothing was checked."""

    part: str
    num_names: int = 0
    missing: tuple[str, ...] = ()
    skipped: str = ""


def fits(release: Release) -> list[Fit]:
    """Every part of the harness, in the order of the table."""
    beside = release.version_of("flashinfer_python")
    found = [Fit(FLASHINFER, skipped=beside or "none")]
    found += [_relied(release, part) for part in dict.fromkeys(one.part for one in RELIED)]
    found += [_called(release, "routing simulator", calls_of(REGISTER))]
    found += [_options(release), _environment(release), _checkpoints(release), _plug_in(release)]
    found += [_kernel(release, spec) for spec in OF_ENGINES]
    return found + [_fault(release, fault) for fault in PATCHES]


def _relied(release: Release, part: str) -> Fit:
    """Classes and functions of vLLM, against our types for this release."""
    num_names, missing = 0, []
    for relied in RELIED:
        if relied.part != part or not _is_for(relied, release.version):
            continue
        ours = OUR_TEXT.find(f"{relied.shape.__module__}:{relied.shape.__name__}")
        assert isinstance(ours, griffe.Class)
        num_names += 1 + len(ours.members)
        theirs = release.find(relied.path)
        if not isinstance(theirs, griffe.Class | griffe.Function):
            missing.append(f"`{relied.path}`")
            continue
        missing += [
            f"`{relied.path}` {what}"
            for one in ours.members.values()
            for what in _differences(one, theirs)
        ]
        if relied.derived and isinstance(theirs, griffe.Class):
            abstract = {
                name for name, one in theirs.all_members.items() if one.has_labels("abstractmethod")
            }
            left = sorted(abstract - set(ours.members))
            missing += [
                f"`{relied.path}` has an abstract method `{name}`, which ours lacks"
                for name in left
            ]
    return Fit(part, num_names, tuple(missing))


def _is_for(relied: Relied, version: str) -> bool:
    return version in Releases(relied.first, relied.last)


def _differences(ours: griffe.Object | griffe.Alias, theirs: griffe.Object) -> list[str]:
    """How a class or function of vLLM differs from ours in one member."""
    is_itself = ours.name in ("__init__", "__call__")
    found = theirs if is_itself else theirs.all_members.get(ours.name)
    if found is None:
        return [f"has no `{ours.name}`"]
    where = "" if is_itself else f"`.{ours.name}` "
    return (
        [where + what for what in mismatches(declared(ours), parameters(found))]
        if ours.is_function
        else []
    )


def _called(release: Release, part: str, calls: list[Call]) -> Fit:
    missing = []
    for call in calls:
        found = release.find(call.path)
        wrong = [f" {what}" for what in mismatches(call, parameters(found))] if found else [""]
        missing += [f"`{call.path}`{what}" for what in wrong]
    return Fit(
        part, sum(1 + len(call.positions) + len(call.names) for call in calls), tuple(missing)
    )


def _kernel(release: Release, spec: KernelSpec) -> Fit:
    calls = calls_of(str(spec.impl))
    part = f"kernel `{spec.name}`"
    absent = [
        package
        for package in {call.path.partition(".")[0] for call in calls}
        if not release.has(package)
    ]
    if absent:
        return Fit(part, skipped=f"no {absent[0]} in the folders")
    # The module of a kernel names the first release that has it.
    oldest = getattr(importlib.import_module(str(spec.impl).partition(":")[0]), "OLDEST", "0")
    engine = ENGINES.get(spec.origin)
    found = release.version_of(engine.distribution.replace("-", "_"))
    is_older = found and release_of(found) < release_of(oldest)
    return (
        Fit(part, skipped=f"since {engine.title} {oldest}")
        if is_older
        else _called(release, part, calls)
    )


def _options(release: Release) -> Fit:
    """Arguments of `LLM` in any case, and their values if vLLM lists the choices."""
    missing, seen = [], _values_of_options()
    llm = release.find("vllm:LLM")
    arguments = _members(release, "vllm.engine.arg_utils:EngineArgs")
    arguments |= {one.name for one in parameters(llm) or []} if llm else set()
    compilation = _members(release, "vllm.config.compilation:CompilationConfig")
    for option, values in seen.items():
        owner, _, inner = option.rpartition(".")
        if inner not in (compilation if owner else arguments):
            missing.append(f"option `{option}`")
        elif option in NAMED_IN:
            known = _choices(release, NAMED_IN[option])
            missing += [f"`{option}={value}`" for value in sorted(values - known)]
    return Fit(
        "options of `LLM`",
        sum(1 + len(seen[option]) * (option in NAMED_IN) for option in seen),
        tuple(missing),
    )


@functools.cache
def _values_of_options() -> dict[str, set[str]]:
    """The string values of each option.

    An option inside `compilation_config` is "compilation_config.NAME".
    """
    seen: dict[str, set[str]] = {}
    fields = ("canary", "runner", "graph", "kv", "backend", "quantization")
    choices = [get_args(VllmParams.model_fields[name].annotation) for name in fields]
    for values in itertools.product(*choices, (1, 2)):
        chosen = dict(zip(fields, values[:-1], strict=True))
        if (chosen["canary"] == "dsa") != ("SPARSE" in chosen["backend"]):
            continue  # No parameters: a sparse backend serves canary-dsa alone.
        task = TASKS.get(chosen["canary"], ("gsm_symbolic",))[0]
        params = VllmParams(**chosen, task=task, tensor_parallel=values[-1])
        given = {"model": "", "max_num_seqs": 1, **llm_options(params, params.graph)}
        for option, value in _flat(given):
            words = seen.setdefault(option, set())
            if isinstance(value, str):
                words.add(value)
    return seen


def _flat(given: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for option, value in given.items():
        yield prefix + option, value
        if isinstance(value, dict) and option != "hf_overrides":  # whose names are those of a model
            yield from _flat(value, f"{prefix}{option}.")


def _members(release: Release, path: str) -> set[str]:
    found = release.find(path)
    return set(found.all_members) if isinstance(found, griffe.Class) else set()


def _choices(release: Release, path: str) -> set[str]:
    """Members of the enum, or values of the `Literal`, at "module:Name"."""
    found = release.find(path)
    if isinstance(found, griffe.Class):
        return {name for name, one in found.members.items() if one.has_labels("class-attribute")}
    return _strings(str(found.value)) if isinstance(found, griffe.Attribute) else set()


def _environment(release: Release) -> Fit:
    return _listed("environment", _named_by_us(), _keys(release.text("vllm.envs")))


@functools.cache
def _named_by_us() -> set[str]:
    """Every string in our code that has the form of a variable of vLLM."""
    texts = (file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.py"))
    return {
        word for text in texts for word in _strings(text) if re.fullmatch(r"VLLM_[A-Z0-9_]+", word)
    }


def _checkpoints(release: Release) -> Fit:
    configs = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in FIXTURES.glob("canary-*/config.json")
    ]
    wanted = {name for config in configs for name in config["architectures"]}
    return _listed(
        "models of the canaries", wanted, _keys(release.text("vllm.model_executor.models.registry"))
    )


def _plug_in(release: Release) -> Fit:
    """Groups of vLLM's entry points in our package."""
    groups = {
        one.group
        for one in distribution("mla-harness").entry_points
        if one.group.startswith("vllm.")
    }
    return _listed("entry points", groups, _strings(release.text("vllm.plugins")))


def _listed(part: str, wanted: set[str], known: set[str]) -> Fit:
    return Fit(part, len(wanted), tuple(f"`{name}`" for name in sorted(wanted - known)))


def _strings(text: str) -> set[str]:
    return {str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}


def _keys(text: str) -> set[str]:
    """Keys of all dictionary displays in Python text."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Dict))
    return {str(key.value) for node in nodes for key in node.keys if isinstance(key, ast.Constant)}


def _fault(release: Release, fault: str) -> Fit:
    """Whether a release has the text that the fault's patch replaces."""
    part = f"bug `{fault}`"
    patch = PATCHES.find(fault, release.version)
    if reason := patch.why_not(release.version):
        return Fit(
            part,
            skipped="has it as released" if reason.cause == Code.AS_RELEASED else reason.sentence,
        )
    return Fit(part, len(patch.edits), tuple(_refused(release, patch)))


def _refused(release: Release, patch: Patch) -> Iterator[str]:
    texts: dict[str, str] = {}
    for edit in patch.edits:
        found = release.find(edit.target)
        if not isinstance(found, griffe.Function):
            yield f"`{edit.target}`"
            continue
        try:
            texts[edit.target] = edited_text(texts.get(edit.target) or found.source, edit)
        except PatchRefused as refusal:
            yield str(refusal)
