"""A case with changed values. Its id alone reproduces it.

`mixed-context[kv=bf16]@requests=[[5,1],[70,2]],sites=[context.output]` is the case
`mixed-context[kv=bf16]` with these parameters and sites. The seed of the case before the `@` still
draws the inputs.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from pydantic import ValidationError

from harness.core.cases import MARK, Case, PoisonPlan
from harness.core.catalog import SITES
from harness.core.errors import InputError
from harness.core.params import Params
from harness.core.registry import LIST, nearest
from harness.scenario.known_names import unknown_names
from harness.scenario.point_case import usable
from harness.scenario.schema import PATTERNS, SCHEMA, Given

POISON_KEYS = ("patterns", "sites", "strict")
"""Keys that may be changed besides the parameters."""

# Not at the commas within a list of values: only a key is followed by an equals sign.
_NEXT_KEY = re.compile(r",(?=[a-z_]+=)")


def split(identity: str) -> tuple[str, str]:
    """The case id before the `@` and the changes after it; no changes: empty."""
    base, _, changes = identity.partition(MARK)
    return base, changes


def changed(case: Case, changes: str) -> Case:
    """`case` with the `changes` of an id: other parameters, `patterns`, `sites` or `strict`.

    Raises InputError for a key or value that such a case cannot have.
    """
    values = _parsed(f"{case.id}{MARK}{changes}", changes)
    name = f"{case.id}{MARK}{_written(values)}"
    given = {key: value for key, value in values.items() if key not in POISON_KEYS}
    return vary(case, _params(case, given, name), _poison(case.poison, values, name))


def vary(base: Case, params: Params, poison: PoisonPlan) -> Case:
    """The case `base` with these parameters and this poison. Its id has all differences."""
    ours, theirs = (one.varied().model_dump(mode="json") for one in (params, base.params))
    differing = {key: value for key, value in ours.items() if theirs.get(key) != value}
    for key in POISON_KEYS:
        if getattr(poison, key) != getattr(base.poison, key):
            differing[key] = getattr(poison, key)
    root, earlier = split(base.id)
    if earlier:
        # The id of a variant of a variant has all differences from the scenario's case.
        merged = {**_parsed(base.id, earlier), **differing}
        differing = {key: merged[key] for key in (*ours, *POISON_KEYS) if key in merged}
    identity = f"{root}{MARK}{_written(differing)}" if differing else root
    oracles = usable(base.oracles, poison.patterns, params)
    params = params if params == base.params else params.varied()
    return base.but(id=identity, params=params, poison=poison, oracles=oracles)


def shown(value: Any) -> str:
    """A value as an id writes it: ``[[5,1],[70,2]]``, ``true``, ``bf16``."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(shown(item) for item in value)}]"
    return str(value)


def _written(values: Given) -> str:
    return ",".join(f"{key}={shown(value)}" for key, value in values.items())


def _parsed(name: str, changes: str) -> Given:
    values: Given = {}
    for part in _NEXT_KEY.split(changes):
        key, equals, text = part.partition("=")
        if not equals or not key:
            raise InputError(
                f"{name}: {part!r} is no change; write key=value, with commas between them"
            )
        if key in values:
            raise InputError(f"{name}: {key!r} is given twice; remove one of them")
        try:
            values[key] = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError):
            raise InputError(
                f"{name}: {key}={text} cannot be read; write a value such as 3, bf16 or [1,64]"
            ) from None
    return values


def _params(case: Case, given: Given, name: str) -> Params:
    model = type(case.params)
    known = sorted(model.model_fields)
    for key in given:
        if key not in known:
            hint = nearest(key, [*known, *POISON_KEYS], see="mla-harness show CASE")
            raise InputError(f"{name}: {key!r} is no parameter of this case; {hint}")
    for key, message in unknown_names(case.kind.kernels_of(case.op), case.op, given):
        raise InputError(f"{name}: {key}: {message}")
    try:
        return model.model_validate(case.params.model_dump() | given)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        raise InputError(
            f"{name}: {where}: {first['msg']}" if where else f"{name}: {first['msg']}"
        ) from None


def _poison(plan: PoisonPlan, values: Given, name: str) -> PoisonPlan:
    for key, known in (("patterns", PATTERNS), ("sites", tuple(SITES.names()))):
        if key not in values:
            continue
        chosen = values[key]
        if not isinstance(chosen, list) or (key == "patterns" and not chosen):
            raise InputError(f"{name}: {key} is a list, such as [{known[0]}]")
        for item in chosen:
            if item not in known:
                hint = nearest(str(item), list(known), see=LIST if key == "sites" else SCHEMA)
                raise InputError(f"{name}: unknown {key.removesuffix('s')} {item!r}; {hint}")
        plan = plan.but(**{key: tuple(chosen)})
    if "strict" in values:
        if not isinstance(values["strict"], bool):
            raise InputError(f"{name}: strict is true or false")
        plan = plan.but(strict=values["strict"])
    return plan
