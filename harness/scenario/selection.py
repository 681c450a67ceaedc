"""Selectors -> cases. `-m` is a tag or its negation.

A selector is a scenario, a case id, or a reference (a number, `owner/name#number`, the address of a
PR or issue). In a name and in an id, `*` and `?` stand for any text. Part of an id selects the
cases that have these parts: `decode-kernel[kv=bf16]`, or of all scenarios `*[kv=bf16]`.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence

from harness.core.cases import MARK, Case
from harness.core.catalog import FAULTS, KERNELS, SYSTEMS
from harness.core.errors import InputError, UnknownNameError
from harness.core.registry import LIST, nearest
from harness.scenario import susceptibility as probe
from harness.scenario import variant
from harness.scenario.drawn import drawn_case
from harness.scenario.expand import GPU, LONG, MATRICES, NIGHTLY, expand
from harness.scenario.matrix import ACCURACY
from harness.scenario.override import KernelOverride
from harness.scenario.schema import Scenario

_NUMBER = re.compile(r"^#?(\d+)$")
_REF = re.compile(r"^[\w.-]+/[\w.-]+#\d+$")
_URL = re.compile(r"^https?://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)\b")


def select(
    scenarios: Sequence[Scenario],
    selectors: Iterable[str] = (),
    *,
    tags: Sequence[str] = (),
    seed: int = 0,
    override: KernelOverride | None = None,
    has_gpu: bool = False,
) -> list[Case]:
    """The cases of the selectors (all without selectors) that `tags` keep, each once, in file
    order.

    Without `has_gpu` a scenario for GPUs gives its first case only. So does one of the kernel
    matrix, unless a selector or its tag, such as `-m kernel-matrix`, names it. Nightly cases need
    their id or `-m nightly`. With `override`, measurements of accuracy need their id or
    `-m accuracy`, as a user's kernel may need hours for them.

    Raises InputError for a selector or tag that names nothing, and if no case is left.
    """
    wanted = [as_reference(selector) for selector in selectors]
    for selector in wanted:
        _check_brackets(selector)
    keep = _tag_filter(scenarios, tags)
    # A dictionary, so that a case that several selectors name runs once, where it came first.
    found: dict[str, Case] = {}
    matched: set[str] = set()
    for selector in wanted:
        cell = _variant(scenarios, selector, seed, override)
        # Ids of drawn cases and of single points stand in no scenario: they are their parameters.
        for case in [cell] if cell else probe.selected(selector, override, seed=seed):
            matched.add(selector)
            found[case.id] = case
    for scenario in scenarios:
        naming = [selector for selector in wanted if selects_scenario(selector, scenario)]
        hits = [
            one for one in wanted if one in naming or _is_like(one.partition("[")[0], scenario.name)
        ]
        if wanted and not hits:
            continue
        whole = not wanted or bool(naming)
        matched.update(naming)
        # On one GPU all cells of the matrix take more than an hour, so they are asked for by name.
        matrix = MATRICES.intersection(scenario.tags)
        cells = bool(wanted) or not matrix or not matrix.isdisjoint(tags)
        for case in _candidates(scenario, hits, whole, seed, override, has_gpu and cells):
            mine = [selector for selector in hits if selects_case(selector, case.id)]
            matched.update(mine)
            is_chosen = case.id in mine or (
                (whole or mine) and is_for_a_plain_run(case, tags, override)
            )
            if is_chosen and keep(case):
                found.setdefault(case.id, case)
    for selector in wanted:
        if selector not in matched:
            raise _unknown(selector, scenarios, seed, override)
    if not found:
        raise InputError(_nothing_left(tags, override))
    return list(found.values())


def with_each(
    kernels: Iterable[str], choose: Callable[[KernelOverride | None], list[Case]]
) -> list[Case]:
    """The cases that `choose` selects with each of `kernels`, or without an override if `kernels`
    is empty.

    A kernel without cases is left out. If no kernel has one, the InputError of the last is raised.
    """
    overrides: list[KernelOverride | None] = [KernelOverride.named(name) for name in kernels]
    found: dict[str, Case] = {}
    reason: InputError | None = None
    for override in overrides or [None]:
        try:
            for case in choose(override):
                found.setdefault(case.id, case)
        except InputError as error:
            reason = error
    if reason is not None and not found:
        raise reason
    return list(found.values())


def with_plugins(
    kernels: Sequence[str], choose: Callable[[KernelOverride | None], list[Case]]
) -> list[Case]:
    """As :func:`with_each`, but a scenario that names one of `kernels` itself is left as it is
    written.
    """
    written: list[Case] = []
    with contextlib.suppress(InputError):
        written = choose(None)
    own = {case.scenario for case in written if case.uses_kernel(kernels)}
    named = [case for case in written if case.scenario in own]
    try:
        return named + [case for case in with_each(kernels, choose) if case.scenario not in own]
    except InputError:
        if not named:
            raise
        return named


def select_scenarios(
    scenarios: Sequence[Scenario], selectors: Iterable[str] = (), *, tags: Sequence[str] = ()
) -> list[Scenario]:
    """The scenarios of the selectors; a case id selects its scenario. Raises InputError."""
    wanted = list(selectors)
    ids = {case.scenario for case in select(scenarios, wanted, tags=tags)}
    return [scenario for scenario in scenarios if scenario.name in ids]


def selects_scenario(selector: str, scenario: Scenario) -> bool:
    """Whether `selector` names the whole of `scenario`: its name, or one of its references."""
    number = _NUMBER.match(selector)
    if number:
        return any(ref.rpartition("#")[2] == number[1] for ref in scenario.refs)
    return selector in scenario.refs or ("[" not in selector and _is_like(selector, scenario.name))


def selects_case(selector: str, case_id: str) -> bool:
    """Whether `selector` is the id, or a name and parts that the id has.

    Both may hold `*` and `?`.
    """
    name, bracket, rest = selector.partition("[")
    if not bracket or selector == case_id:
        return selector == case_id
    wanted = rest.removesuffix("]").split(",")
    # The values of a drawn case are none of its parts.
    own, _, parts = variant.split(case_id)[0].removesuffix("]").partition("[")
    return _is_like(name, own) and all(
        any(_is_like(one, part) for part in parts.split(",")) for one in wanted
    )


def _is_like(pattern: str, text: str) -> bool:
    """As in a shell, without classes of characters: `[` begins the parts of an id."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def is_drawn(case_id: str) -> bool:
    """Whether a case was drawn, for a combination of conditions or at random: what fails in a plain
    case needs none.
    """
    name = case_id.partition("[")[0]
    return name.endswith("-conditions") or name == "fuzz"


def as_reference(selector: str) -> str:
    """`owner/name#number` for the address of a PR or an issue, else the selector."""
    return "#".join(found.groups()) if (found := _URL.match(selector)) else selector


def unknown_reference(reference: str, scenarios: Sequence[Scenario]) -> UnknownNameError:
    """The error for a reference that no scenario has.

    It suggests none, as near numbers are unrelated.
    """
    known = {ref for scenario in scenarios for ref in scenario.refs}
    is_one = _NUMBER.match(reference) or _REF.match(reference)
    hint = (
        f"see `{LIST}` for the {len(known)} known"
        if is_one
        else "write one as 36540 or OWNER/NAME#36540"
    )
    return UnknownNameError(f"no scenario has the reference {reference!r}; {hint}")


def _check_brackets(selector: str) -> None:
    """Raise InputError unless the parts of an id, if there are some, stand in one pair of brackets
    at its end.
    """
    base, _ = variant.split(selector)
    name, bracket, parts = base.partition("[")
    if bracket and "]" not in parts:
        known = parts.rstrip(",")
        mend = (
            f"write '{name}[{known}]', or '{name}[{known}*]' for any end of the last part"
            if known
            else "close it"
        )
        raise InputError(f"{selector!r}: no ']' closes its '['; {mend}")
    if bracket and not name:
        raise InputError(
            f"{selector!r}: no name before the '['; write '*{base}' for the cases of all scenarios"
        )
    if "]" in name or "[" in parts or parts.find("]", 0, -1) >= 0:
        raise InputError(f"{selector!r}: write a name and its parts as NAME[PART,PART]")


def _variant(
    scenarios: Sequence[Scenario], selector: str, seed: int, override: KernelOverride | None
) -> Case | None:
    """The case of the id of a draw, or of an id with changes after an `@`; None for any other
    selector.

    Raises InputError.
    """
    for scenario in scenarios:
        if drawn := drawn_case(scenario, selector, override):
            return drawn
    base, changes = variant.split(selector)
    if MARK not in selector:
        return None
    case = next(iter(select(scenarios, [base], seed=seed, override=override)))
    if case.id != base:
        raise InputError(
            f"{selector}: {base!r} is no case id; give one before the '@', such as {case.id!r}"
        )
    return variant.changed(case, changes)


def is_for_a_plain_run(case: Case, tags: Collection[str], override: KernelOverride | None) -> bool:
    """Whether a run includes `case` without its id: nightly cases and, with `override`, accuracy
    need their tag.
    """
    if NIGHTLY in case.tags:
        return NIGHTLY in tags
    return not case.kind.asks_canary or override is None or ACCURACY in tags


def _candidates(
    scenario: Scenario,
    selectors: list[str],
    whole: bool,
    seed: int,
    override: KernelOverride | None,
    has_gpu: bool,
) -> list[Case]:
    """The cases to choose from."""
    if scenario.fuzz is not None and not whole and all(map(_is_with_values, selectors)):
        # Draws take a moment, and such an id has made its case already.
        return []

    def keep(place: int, name: str) -> bool:
        # Where a scenario is not run whole, the first case stands for all. The others are made only
        # if their id is named.
        return not place or any(selects_case(selector, name) for selector in selectors)

    is_whole = has_gpu or scenario.device == "any"
    return expand(scenario, seed=seed, override=override, keep=None if is_whole else keep)


def _is_with_values(selector: str) -> bool:
    return MARK in selector


def _tag_filter(
    scenarios: Sequence[Scenario], expressions: Sequence[str]
) -> Callable[[Case], bool]:
    """Whether a case has one of the tags, if there are some, and none of the negated tags."""
    wanted: dict[bool, set[str]] = {False: set(), True: set()}
    known = _tags(scenarios)
    for expression in expressions:
        words = expression.split()
        negated = len(words) == 2 and words[0] == "not"
        if len(words) != 1 and not negated:
            raise InputError(f"-m {expression!r}: write one tag, or 'not' and one tag")
        if words[-1] not in known:
            is_scenario = any(scenario.name == words[-1] for scenario in scenarios)
            hint = "a scenario is named without -m" if is_scenario else nearest(words[-1], known)
            raise UnknownNameError(f"-m: unknown tag {words[-1]!r}; {hint}")
        wanted[negated].add(words[-1])
    return lambda case: (
        not wanted[True] & {*case.tags}
        and (not wanted[False] or bool(wanted[False] & {*case.tags}))
    )


def _unknown(
    selector: str, scenarios: Sequence[Scenario], seed: int, override: KernelOverride | None
) -> UnknownNameError:
    if _NUMBER.match(selector) or _REF.match(selector):
        return unknown_reference(selector, scenarios)
    if selector.endswith(".py"):
        command = shlex.join(["mla-harness", "judge", selector])
        return UnknownNameError(
            f"{selector}: the kernels of a Python file are judged by: {command}"
        )
    if os.path.exists(selector):
        return UnknownNameError(
            f"{selector}: no scenario; its file ends in .yaml, and a folder needs --scenarios"
        )
    names = [scenario.name for scenario in scenarios]
    base, bracket, parts = selector.partition("[")
    if base in names and bracket:
        cases = [
            c.id
            for s in scenarios
            if s.name == base
            for c in expand(s, seed=seed, override=override)
        ]
        # The scenario is right, so one of its cases was meant, however unlike it is.
        close = difflib.get_close_matches(selector, cases, n=1, cutoff=0.0)
        hint = f"did you mean {close[0]!r}?" if close else "it has no case that uses this kernel"
        return UnknownNameError(f"unknown case {selector!r}; {hint}")
    if any(_is_like(base, name) for name in names):
        return UnknownNameError(
            f"no case is like {selector!r}; no id has the parts {parts.rstrip(']')!r}"
        )
    hint = nearest(base.strip("*?"), names)
    if option := _option_for(base, scenarios):
        hint = f"{option}; {hint}" if hint.endswith("?") else option
    if "*" in base or "?" in base:
        return UnknownNameError(f"no scenario is like {base!r}; {hint}")
    return UnknownNameError(f"unknown scenario {base!r}; {hint}")


def _option_for(name: str, scenarios: Sequence[Scenario]) -> str:
    """What to write for a name that is no scenario's, but a tag's, a kernel's or a fault's; empty
    for another.
    """
    if name in _tags(scenarios):
        return f"it is a tag: -m {name}"
    if any(name in (spec.name, spec.short_name) for spec in KERNELS):
        return f"it is a kernel: --kernel {name}"
    return f"it is a fault: --fault {name}" if name in FAULTS else ""


def _tags(scenarios: Sequence[Scenario]) -> list[str]:
    """All tags that a case can have, in order."""
    own = {*SYSTEMS.names(), GPU, NIGHTLY, LONG}
    return sorted(own | {tag for s in scenarios for tag in (*s.tags, *filter(None, (s.op,)))})


def _nothing_left(tags: Sequence[str], override: KernelOverride | None) -> str:
    if override is not None:
        ops = ", ".join(sorted(override.ops))
        return (
            f"no selected case uses {ops}, which is what --kernel {override.short_name} implements;"
            " select others"
        )
    if not tags:
        return "the selected cases are nightly ones; add -m nightly, or name one by its whole id"
    return f"no selected case is left by -m {' -m '.join(map(repr, tags))}; select others"
