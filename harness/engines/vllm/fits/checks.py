"""What of the harness is held to a release, part by part, and what each part misses there.

Nothing here lists what the harness uses: types are those of `harness.engines.vllm.objects`, calls are read off the
adapters, options and environment are those that the target hands over, and patches are the faults' own.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from harness.core.catalog import ENGINES, KERNELS
from harness.core.fixtures import FIXTURES
from harness.core.kernel_spec import KernelSpec
from harness.engines.vllm.faults import PATCHES, patch_for
from harness.engines.vllm.fits.calls import calls_of
from harness.engines.vllm.fits.release import Found, Release, definitions, targets
from harness.engines.vllm.fits.signatures import Call, parameters, unlike, unsuited
from harness.engines.vllm.objects import RELIED, Relied
from harness.engines.vllm.params import VllmParams
from harness.engines.vllm.patches import Patch, PatchRefused, edited_text, numbers
from harness.engines.vllm.target import NAMED_IN, llm_options

ROOT = Path(__file__).resolve().parents[4]
OURS = ("harness/engines/vllm", "harness/engines/vllm/serve")
"""Where a string that names a variable of vLLM's is one that we set or read."""
BESIDE = "(FlashInfer that was looked into)"
REGISTER = "harness.engines.vllm.serve.routing:register"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether one part fits: how many names were looked at, what is missing, or why there was nothing to look at."""

    part: str
    num_names: int = 0
    missing: tuple[str, ...] = ()
    skipped: str = ""


def fits(release: Release) -> list[Fit]:
    """Every part, in the order of the table."""
    beside = release.version_of("flashinfer_python")
    found = [Fit(BESIDE, skipped=beside or "none")]
    found += [_relied(release, part) for part in dict.fromkeys(one.part for one in RELIED)]
    found += [_called(release, "routing simulator", calls_of(REGISTER))]
    found += [_options(release), _environment(release), _checkpoints(release), _plug_in(release)]
    found += [_kernel(release, spec) for spec in KERNELS if spec.origin in ENGINES]
    return found + [_fault(release, fault) for fault in PATCHES]


def _relied(release: Release, part: str) -> Fit:
    """Classes and functions of vLLM as our types declare them, those for this release alone."""
    num_names, missing = 0, []
    for relied in RELIED:
        if relied.part != part or not _is_for(relied, release.version):
            continue
        own = list(vars(relied.shape).get("__annotations__", {}))
        own += [name for name, value in vars(relied.shape).items() if callable(value) and _is_ours(name, relied.shape)]
        num_names += 1 + len(own)
        found = release.find(relied.path)
        if found is None or found.node is None:
            missing.append(f"`{relied.path}`")
            continue
        missing += [f"`{relied.path}` {what}" for name in own for what in _differs(release, found, relied.shape, name)]
        if relied.derived:
            left = release.left_to_others(found) - set(own)
            missing += [f"`{relied.path}` leaves `{name}` to who derives from it" for name in sorted(left)]
    return Fit(part, num_names, tuple(missing))


def _is_for(relied: Relied, version: str) -> bool:
    after_first = not relied.first or numbers(version) >= numbers(relied.first)
    return after_first and (not relied.last or numbers(version) < numbers(relied.last))


def _is_ours(name: str, shape: type) -> bool:
    """Whether a protocol's function was written by us: `__init__` and `__call__` may be the protocol's own."""
    function = vars(shape)[name]
    return getattr(function, "__module__", "") == shape.__module__ and (
        not name.startswith("__") or name in ("__init__", "__call__")
    )


def _differs(release: Release, found: Found, shape: type, name: str) -> list[str]:
    ours = vars(shape).get(name)
    if not callable(ours):
        return [] if name in release.attributes(found) else [f"has no `{name}`"]
    theirs = found if name in ("__init__", "__call__") else release.member(found, name)
    if theirs is None:
        return [f"has no `{name}`"]
    taken = parameters(release, theirs)
    where = "" if theirs is found else f"`.{name}` "
    return [] if taken is None else [where + what for what in unlike(ours, taken)]


def _called(release: Release, part: str, calls: list[Call]) -> Fit:
    """What is called, with the arguments that it is called with."""
    missing = []
    for call in calls:
        found = release.find(call.path)
        if found is None:
            missing.append(f"`{call.path}`")
            continue
        taken = parameters(release, found)
        missing += [f"`{call.path}` {what}" for what in (unsuited(call, taken) if taken else [])]
    return Fit(part, sum(1 + call.num_positional + len(call.names) for call in calls), tuple(missing))


def _kernel(release: Release, spec: KernelSpec) -> Fit:
    calls = calls_of(str(spec.impl))
    part = f"kernel `{spec.name}`"
    absent = [package for package in {call.path.partition(".")[0] for call in calls} if not release.has(package)]
    return Fit(part, skipped=f"no {absent[0]} in the folders") if absent else _called(release, part, calls)


def _options(release: Release) -> Fit:
    """Arguments of `LLM` that any case hands over, and the choices among those that vLLM lists."""
    missing, seen = [], _values_of_options()
    arguments = _names(release, "vllm.engine.arg_utils:EngineArgs") | _taken(release, "vllm:LLM")
    compilation = _names(release, "vllm.config.compilation:CompilationConfig")
    for option, values in seen.items():
        owner, _, inner = option.rpartition(".")
        if inner not in (compilation if owner else arguments):
            missing.append(f"option `{option}`")
        elif option in NAMED_IN:
            known = _choices(release, NAMED_IN[option])
            missing += [f"`{option}={value}`" for value in sorted(values - known)]
    return Fit("options of `LLM`", sum(1 + len(seen[option]) * (option in NAMED_IN) for option in seen), tuple(missing))


@functools.cache
def _values_of_options() -> dict[str, set[str]]:
    """By option, `compilation_config`'s own after a dot: every value that is a word."""
    seen: dict[str, set[str]] = {}
    fields = ("canary", "runner", "graph", "kv", "backend", "quantization")
    choices = [get_args(VllmParams.model_fields[name].annotation) for name in fields]
    for values in itertools.product(*choices, (1, 2)):
        params = VllmParams(**dict(zip(fields, values[:-1], strict=True)), tensor_parallel=values[-1])
        given = {"model": "", "max_num_seqs": 1, **llm_options(params, params.graph)}
        for option, value in _flat(given):
            words = seen.setdefault(option, set())
            if isinstance(value, str):
                words.add(value)
    return seen


def _flat(given: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for option, value in given.items():
        yield prefix + option, value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{option}.")


def _environment(release: Release) -> Fit:
    """Variables of vLLM's own that our code sets or reads."""
    envs = release.module("vllm.envs")
    known = _keys(envs.tree) if envs else set()
    names = _named_by_us()
    return Fit("environment", len(names), tuple(f"`{name}`" for name in sorted(names - known)))


@functools.cache
def _named_by_us() -> set[str]:
    """Every string in our code that is the name of such a variable."""
    found = set()
    for folder in OURS:
        for file in sorted((ROOT / folder).glob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and re.fullmatch(r"VLLM_[A-Z0-9_]+", str(node.value)):
                    found.add(str(node.value))
    return found


def _checkpoints(release: Release) -> Fit:
    """Architectures of the canaries among the models that vLLM knows."""
    wanted: set[str] = set()
    for config in sorted(FIXTURES.glob("canary-*/config.json")):
        wanted |= set(json.loads(config.read_text(encoding="utf-8"))["architectures"])
    registry = release.module("vllm.model_executor.models.registry")
    known = _keys(registry.tree) if registry else set()
    return Fit("models of the canaries", len(wanted), tuple(f"`{name}`" for name in sorted(wanted - known)))


def _plug_in(release: Release) -> Fit:
    """Groups of entry points that we are listed in, of those that are vLLM's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {group for group in project["entry-points"] if group.startswith("vllm.")}
    plugins = release.module("vllm.plugins")
    known = {node.value for node in ast.walk(plugins.tree) if isinstance(node, ast.Constant)} if plugins else set()
    return Fit("entry points", len(groups), tuple(f"`{group}`" for group in sorted(groups - known)))


def _fault(release: Release, fault: str) -> Fit:
    """Whether the text that a patch expects is there, in a release that it is for."""
    part = f"bug `{fault}`"
    patch = patch_for(fault, release.version)
    if reason := patch.why_not(release.version):
        return Fit(part, skipped="has it as released" if "as released" in reason else reason)
    return Fit(part, len(patch.edits), tuple(_refused(release, patch)))


def _refused(release: Release, patch: Patch) -> Iterator[str]:
    texts: dict[str, str] = {}
    for edit in patch.edits:
        found = release.find(edit.target)
        if found is None or not isinstance(found.node, ast.FunctionDef):
            yield f"`{edit.target}`"
            continue
        try:
            texts[edit.target] = edited_text(texts.get(edit.target) or textwrap.dedent(found.text), edit)
        except PatchRefused as refusal:
            yield str(refusal)


def _names(release: Release, path: str) -> set[str]:
    found = release.find(path)
    return release.attributes(found) if found else set()


def _taken(release: Release, path: str) -> set[str]:
    found = release.find(path)
    taken = parameters(release, found) if found else None
    return {*taken.positional, *taken.by_name_only} if taken else set()


def _choices(release: Release, path: str) -> set[str]:
    """Members of an enum, or words of a `Literal`, that "module:Name" stands for."""
    found = release.find(path)
    if found is None or found.node is None:
        return set()
    if isinstance(found.node, ast.ClassDef):
        members = (target for node in definitions(found.node.body) for target in targets(node))
        return {member.id for member in members if isinstance(member, ast.Name)}
    return {str(node.value) for node in ast.walk(found.node) if isinstance(node, ast.Constant)}


def _keys(tree: ast.AST) -> set[str]:
    """Keys of all dictionaries of a file that are written out."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    return {str(key.value) for node in nodes for key in node.keys if isinstance(key, ast.Constant)}
