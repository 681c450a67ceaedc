"""The text of a script for a failing case: its scene, its numbers, and the line of its bug."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment as Templates

from harness.core.cases import Case
from harness.core.catalog import ENGINES, FAULTS, KERNELS
from harness.core.cause_codes import WhyNot
from harness.core.errors import InputError
from harness.core.kernels import KernelSpec
from harness.core.literals import PythonCode
from harness.core.registry import attribute_at
from harness.core.shapes import sizes_of
from harness.diagnose.script.code import (
    DROPPED,
    MARKER,
    WIDTH,
    Inlined,
    comment,
    identifier,
    inline,
    kernel_in,
    templates,
    tidy,
    without_dead_code,
)
from harness.diagnose.script.recipes import OP_SCENES, RECIPES, Recipe, Scene
from harness.report.wording import ref_url
from harness.scenario.load import load_scenarios

MAX_LINES = 119
"""The most lines of a script, apart from the lines that call an engine."""
KV_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp8_e4m3": "torch.float8_e4m3fn"}
_POISONS = {
    "nan": ("NaN", 'fill_(float("nan")', "-1"),
    "inf": ("infinity", 'fill_(float("inf")', "-1"),
    "max": ("the largest number", "fill_(torch.finfo(memory.dtype).max", "-1"),
    "random": (
        "numbers of the wrong size",
        "copy_(torch.randn(memory.shape) * 100",
        "torch.tensor(-1)",
    ),
}
"""Pattern -> its words, the call that fills floats, and the value of integers."""


@dataclass(frozen=True, slots=True)
class Story:
    """The content of a script's first lines."""

    title: str
    refs: tuple[str, ...] = ()
    why: str = ""
    finding: str = ""
    case: str = ""
    versions: str = ""
    steps: int = 0
    """Steps that made the case smaller."""


@dataclass(frozen=True, slots=True)
class Export:
    """A failing case with its bug: the injected `fault`, or a bug of the kernel under test."""

    case: Case
    fault: str | None
    story: Story
    device: str = "cpu"
    is_pytest: bool = False


def render(export: Export) -> str:
    """The script.

    Raises InputError if such a case has none, or if it has more than MAX_LINES lines.
    """
    if reason := why_not(export.case, export.fault):
        raise InputError(f"{export.case.id}: {reason}")
    # Shrinking gives a case the plain layout, so this is no reason to refuse it before.
    if export.case.params.cache_layout != "contiguous":
        raise InputError(
            f"{export.case.id}: the cache of a script is contiguous; allow more --shrink-seconds"
        )
    if path := export.case.kind.plain_script:
        return "\n".join(_header(export)) + "\n" + str(attribute_at(path)(export.case, MARKER))
    recipe = RECIPES.get(export.fault or "")
    scene = OP_SCENES[export.case.op] if export.case.op else RECIPES[export.fault or ""].engine
    template = _templates(recipe).get_template(f"{scene.template}.py.j2")
    context = _context(export, recipe, scene)
    # A dropped hook is no Python, so it goes before the tree is read. Code that is taken out leaves
    # blank lines, so the text is tidied again.
    text = tidy(without_dead_code(tidy(template.render(context))))
    num_lines = text.count("\n")
    width = max(map(len, text.splitlines()))
    # The source of someone else's kernel is as long as it is.
    most = MAX_LINES + (
        context["inlined"].code.count("\n") if context["spec"].origin != "built in" else 0
    )
    if num_lines > most or width > WIDTH:
        raise InputError(
            f"{export.case.id}: its script has {num_lines} lines of up to {width} characters,"
            f" {most} of {WIDTH} are allowed; allow more --shrink-seconds, or"
            f" {_instead(export.case, export.fault)}"
        )
    return text


def why_not(case: Case, fault: str | None) -> WhyNot | None:
    """Why a case can have no script, in a sentence; None if it can."""
    if case.kind.plain_script and fault is None:
        return None
    if not case.kind.shows_launches:
        instead = (
            f"; {_instead(case, fault)}"
            if fault
            else "; export one of the systems kernel and engine"
        )
        return WhyNot(f"a case of system {case.system} is not exported{instead}")
    if fault is not None and fault not in RECIPES:
        able = f"{', '.join(RECIPES)}, of kernels of your own and of served cases"
        return WhyNot(
            f"there is no script of {fault}; scripts are made of {able}; {_instead(case, fault)}"
        )
    if case.op and case.op not in OP_SCENES:
        return WhyNot(f"there are no scripts for op {case.op}; {_instead(case, fault)}")
    if not case.op and fault is None:
        return WhyNot(
            "the whole engine does not fit into a script; export a kernel case, or name a known bug"
            " with --fault"
        )
    return None


def _instead(case: Case, fault: str | None) -> str:
    command = shlex.join(["mla-harness", "shrink", case.id, *(("--fault", fault) if fault else ())])
    smaller = f"make the case small with `{command}`"
    if fault is None:
        return smaller
    seen = f"see the bug with `mla-harness repro {FAULTS.get(fault).ref}`"
    return f"{seen}, or {smaller}" if case.kind.shows_launches else seen


def why_of(scenario: str, fault: str | None) -> str:
    """The `why` of a scenario; empty without a fault, or if the scenario is about several bugs."""
    known = {known.name: known for known in load_scenarios(None)}.get(scenario)
    if (
        known is None
        or fault is None
        or len({FAULTS.get(use.name).ref for use in known.faults}) > 1
    ):
        return ""
    return known.why


def _context(export: Export, recipe: Recipe | None, scene: Scene) -> dict[str, Any]:
    """All variables of the templates.

    They print text only through a filter of :mod:`harness.diagnose.script.code`.
    """
    case = export.case
    numbers = scene.numbers(export.case)
    spec = _kernel_of(case, scene)
    code = _code_under_test(export, recipe, spec)
    is_kernel = recipe is None
    pattern = next((p for p in case.poison.patterns if p in _POISONS), "nan")
    words, filled, integer = _POISONS[pattern]
    kv = numbers.get("kv", "fp32")
    q_dtype = numbers.get("q_dtype", "float32")
    # Such a kernel multiplies what it masks by 0. The owner of the cache keeps it finite, so the
    # script does too.
    keeps = spec.needs_finite_tail and not case.poison.ignore_contracts
    keeps_finite = keeps and pattern in ("nan", "inf") and bool(case.op)
    sites = set(case.poison.sites) - ({"kv.tail"} if keeps and not case.op else set())
    return {
        **numbers,
        "header": [PythonCode(line) for line in _header(export)],
        "function": (
            PythonCode(f"test_{identifier(case.scenario)}")
            if export.is_pytest
            else PythonCode("check")
        ),
        "is_pytest": export.is_pytest,
        "seed": case.seed,
        "sites": sites,
        "fills_all": {"kv.tail", "kv.free", "kv.null"} <= sites,
        "pattern_words": PythonCode(f"{words} (-1 in integers)"),
        "poison_line": PythonCode(
            f"return memory.{filled} if memory.is_floating_point() else {integer})"
        ),
        "kv_poison": PythonCode("finite" if keeps_finite else "poison"),
        "on_cuda": export.device == "cuda",
        "spec": spec,
        "plain": lambda op: PythonCode(f"plain_{op}" if is_kernel else op),
        "callee": PythonCode("kernel" if is_kernel else spec.op),
        "is_kernel_under_test": is_kernel,
        "inlined": code,
        "marker": PythonCode(MARKER),
        "extra_arguments": PythonCode(_extra_arguments(code.code, numbers) if is_kernel else ""),
        "keeps_finite": keeps_finite,
        "with_reference": not scene.template.startswith("scenes/replay"),
        "planned_by_pages": scene.template.startswith("scenes/replay"),
        "only_with_context": recipe is not None and recipe.hook == "merge.count",
        "empty_lse": (
            numbers.get("empty_lse")
            or (spec.empty_lse if spec.empty_lse != "undefined" else "-inf")
        ),
        "kv_dtype": PythonCode(KV_DTYPES[kv]),
        "q_dtype": PythonCode(f"torch.{q_dtype}"),
        "is_fp8": kv == "fp8_e4m3",
        "tolerance": 1e-4 if q_dtype == "float32" else 2e-2,
        "store_tolerance": {"fp32": 1e-6, "bf16": 1e-2, "fp8_e4m3": 0.07}[kv],
    }


def _extra_arguments(code: str, numbers: dict[str, Any]) -> str:
    """The optional keywords of a decode kernel that its source names, as text of a call."""
    scale = ", kv_scale=KV_SCALE" if numbers.get("kv") == "fp8_e4m3" else ""
    return scale + (", kv_lora_rank=RANK" if "kv_lora_rank=" in code else "")


def _kernel_of(case: Case, scene: Scene) -> KernelSpec:
    """The kernel that a script shows: the kernel under test, or the engine's kernel for the scene's
    op.
    """
    op = case.op or scene.op
    return KERNELS.get(
        next(name for name in case.kernels().values() if name.partition("/")[0] == op)
    )


def _code_under_test(export: Export, recipe: Recipe | None, spec: KernelSpec) -> Inlined:
    """The kernel's source, from a plug-in's file too; none for a recipe."""
    if recipe is not None:
        return Inlined()
    if spec.origin not in ("built in", *ENGINES.names()):
        return inline(kernel_in(spec.origin, spec.op, spec.short_name))
    if not isinstance(spec.impl, str) or not spec.impl:
        raise InputError(f"{spec.name}: its source is not known here")
    code = inline(spec.impl)
    # A kernel can have its rank as a constant of its module, which is inlined with it.
    rank = re.search(r"^RANK = (\d+)$", code.code, re.MULTILINE)
    if rank and int(rank[1]) != sizes_of(spec.op, export.case.params).get("kv_lora_rank"):
        raise InputError(f"{export.case.id}: {spec.name} is made for kv_lora_rank {rank[1]} only")
    return code


def _header(export: Export) -> list[str]:
    story = export.story
    lines = comment(story.title)
    if story.refs:
        lines += comment("See " + ", ".join(map(ref_url, story.refs)))
    if story.why:
        lines += ["#", *comment(story.why)]
    made = f", made smaller in {story.steps} steps" if story.steps else ""
    lines += [
        "#",
        *comment(f"Found by mla-harness as {story.case}{made}{':' if story.finding else '.'}"),
    ]
    if story.finding:
        lines += comment(story.finding)
    lines += comment(f"Seen with {story.versions}.")
    ends = "fails" if export.is_pytest else "ends in an error"
    return [*lines, *comment(f"It {ends}; without the line marked BUG it passes.")]


def _templates(recipe: Recipe | None) -> Templates:
    def bug(hook: str) -> PythonCode:
        return PythonCode(
            recipe.line + MARKER if recipe is not None and recipe.hook == hook else DROPPED
        )

    found = templates()
    found.globals["bug"] = bug
    return found
