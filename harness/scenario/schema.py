"""The format of a scenario file: typed fields with descriptions, and pydantic's errors in plain
words.

An unknown key is an error. Each error is one clause that says what is wrong and how to mend it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from harness.core.cases import KnownFailure
from harness.core.catalog import BROKEN, ENGINES, FAULTS, ORACLES, SITES, SYSTEMS
from harness.core.engine_params import EpochsParams
from harness.core.engine_tables import missing_system
from harness.core.ops import OPS
from harness.core.params import ILLEGAL, Count, Params, Record
from harness.core.registry import Registry, nearest
from harness.core.systems import SystemSpec

Pattern = Literal["nan", "zeros", "max", "inf", "random"]
"""The fill patterns of :mod:`torch_poison.patterns`. That module needs torch."""
PATTERNS: tuple[str, ...] = get_args(Pattern)

REF = r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+#[0-9]+$"
NAME = r"^[a-z0-9][a-z0-9-]*$"
TAG = r"^[a-z][a-z0-9_-]*$"
AXIS = r"^[a-z][a-z0-9_]*$"
LABEL = r"^[A-Za-z0-9_.+-]+$"
Location = tuple[str | int, ...]

SCHEMA = "mla-harness schema"
"""The command that shows all keys of a scenario file."""


def _known(registry: Registry[Any]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry:
            raise _refusal(f"unknown {registry.kind} {name!r}; {nearest(name, registry.names())}")
        return name

    return check


def _specifier(text: str) -> str:
    if re.fullmatch(r"((^|,)([<>]=?|[!=]=)[0-9]+(\.[0-9]+)*)+", text):
        return text
    # Imported for unusual ones only: a list is instant.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise _refusal(
            f"{text!r} names no versions; write them as pip does, such as '>=0.21,<0.23'"
        ) from None
    return text


def _refusal(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("unknown_name", "{sentence}", {"sentence": sentence})


def _enum(names: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": names})


OracleName = Annotated[str, AfterValidator(_known(ORACLES)), _enum(ORACLES.names())]
SiteName = Annotated[str, AfterValidator(_known(SITES)), _enum(SITES.names())]
FaultName = Annotated[str, AfterValidator(_known(FAULTS)), _enum(FAULTS.names())]


def _listed(value: Any) -> Any:
    """One name, or a list of names, as a tuple."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, tuple):
        return value
    raise _refusal(f"expected the name of an oracle, or a list of names, not {_show(value)}")


_one_oracle = {"type": "string", "enum": ORACLES.names()}
OneOracleOrMore = Annotated[
    tuple[OracleName, ...],
    Field(min_length=1),
    BeforeValidator(_listed),
    WithJsonSchema(
        {"anyOf": [_one_oracle, {"type": "array", "items": _one_oracle, "minItems": 1}]}
    ),
]
IN_SCENARIOS: Registry[SystemSpec] = Registry(
    "system",
    tuple(spec for spec in SYSTEMS if spec.in_scenarios),
    lambda name: missing_system(name, BROKEN),
)
SystemName = Annotated[str, AfterValidator(_known(IN_SCENARIOS)), _enum(IN_SCENARIOS.names())]
OpName = Annotated[
    str, AfterValidator(_known(OPS)), _enum([op for spec in IN_SCENARIOS for op in spec.ops()])
]
Given = dict[str, JsonValue]
"""Parameters as a file gives them, before their model has checked them."""
TaskName = Literal["gsm_symbolic", "aime_shaped"]
"""The tasks that the canaries were trained on."""
Axis = Annotated[str, StringConstraints(pattern=AXIS)]
DEFAULT_ORACLES = tuple(oracle.name for oracle in ORACLES if oracle.by_default)
_scalar = {"type": ["string", "integer", "boolean"]}
_labels = {"type": "object", "minProperties": 1, "propertyNames": {"pattern": LABEL}}
# scenario.matrix checks unions, as its messages name the axis. Messages of pydantic name every
# branch.
Values = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "array", "items": _scalar, "minItems": 1}, _labels]})
]
Point = dict[
    Axis, Annotated[Any, WithJsonSchema({"anyOf": [_scalar, {"type": "array", "items": _scalar}]})]
]


class PoisonSettings(Record):
    """The sites that are filled, and the fill patterns."""

    patterns: tuple[Pattern, ...] = Field(
        default=("nan", "zeros"),
        min_length=1,
        description="fill patterns, the main one first; one run of the case for each",
    )
    sites: tuple[SiteName, ...] | None = Field(
        default=None, description="sites to poison; every site when left out"
    )
    strict: bool = Field(
        default=False, description="indices out of range instead of valid but wrong ones"
    )


class FaultUse(Record):
    """A fault that the scenario must catch, with the oracle that catches it and the memory to
    blame.
    """

    name: FaultName
    caught_by: OneOracleOrMore = Field(
        description="the oracle that must fire; of a list, one of them"
    )
    blames: tuple[SiteName, ...] = Field(
        default=(), description="sites that the diagnosis must name"
    )
    may_blame: tuple[SiteName, ...] = Field(
        default=(),
        description=(
            "sites that it may name besides, any or none: for a bug that reads whatever memory"
            " holds"
        ),
    )
    on: Point = Field(
        default={},
        description=(
            "the point of the matrix to try it on, or `accuracy: TASK`; the first case when"
            " left out"
        ),
    )

    @model_validator(mode="after")
    def _names_each_site_once(self) -> FaultUse:
        if both := sorted({*self.blames} & {*self.may_blame}):
            raise _refusal(f"{both[0]} is in blames and in may_blame; name it in one of them")
        return self

    def allows_blame(self, sites: Collection[str]) -> bool:
        """Whether a diagnosis may blame just these sites."""
        return {*self.blames} <= {*sites} <= {*self.blames, *self.may_blame}


class KnownUse(KnownFailure):
    """A known failure of an engine's releases, or of a kernel, and the cases that show it."""

    issue: Annotated[str, StringConstraints(pattern=REF)] = Field(
        description="the upstream issue or pull request"
    )
    engine: Annotated[str, AfterValidator(_known(ENGINES)), _enum(ENGINES.names())] = Field(
        default="", description="which engine"
    )
    versions: Annotated[str, AfterValidator(_specifier)] = Field(
        default="", description="its releases, such as '>=0.21,<0.23'"
    )
    kernel: str = Field(
        default="", description="in place of engine and versions: the kernel that fails"
    )
    on: Point = Field(default={}, description="the points of the matrix; all cases when left out")
    run: Literal["always", "never"] = Field(
        default="always",
        description="never: the case is not launched, for example because it takes the GPU down",
    )

    @model_validator(mode="after")
    def _names_one(self) -> KnownUse:
        if not (self.kernel or (self.engine and self.versions)) or (
            self.kernel and (self.engine or self.versions)
        ):
            raise _refusal("name the engine and its versions, or a kernel alone")
        return self


class NightlyAccuracy(Record):
    """The settings of the nightly measurement, which asks every question of a task."""

    epochs: Annotated[int, Field(ge=1, le=100)] = 3
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] | None = None
    max_num_seqs: Count | None = None
    capture_sizes: tuple[Count, ...] | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 7200


class AccuracySettings(EpochsParams):
    """Accuracy by epoch, measured with a canary.

    Each task gives a small case and a nightly case.
    """

    tasks: tuple[TaskName, ...] = Field(
        default=("gsm_symbolic",), description="tasks that the canaries know"
    )
    limit: Count = Field(default=16, description="questions of each task that a plain run asks")
    nightly: NightlyAccuracy = Field(
        default=NightlyAccuracy(),
        description="all questions: cases tagged `nightly`, which a plain run leaves out",
    )


class FuzzSettings(Record):
    """The settings of a scenario with drawn cases instead of a matrix."""

    examples: Annotated[int, Field(ge=1, le=10_000)] = 200
    draws: Literal["all", "sequences", "states"] = Field(
        default="all",
        description=(
            "all: any op and the engine; sequences: requests of the engine in tight pools; states:"
            " such requests that share states of linear attention"
        ),
    )


class Scenario(Record):
    """One scenario: its cases, their poison, their oracles, and the faults that it must catch."""

    name: Annotated[str, StringConstraints(pattern=NAME)] = Field(
        description="its name, with which case ids begin"
    )
    summary: Annotated[str, StringConstraints(min_length=1, max_length=120)] = Field(
        description="one line for lists"
    )
    why: str = Field(default="", description="what went wrong once, for a reader new to it")
    refs: tuple[Annotated[str, StringConstraints(pattern=REF)], ...] = Field(
        default=(), description="upstream references such as flashinfer-ai/flashinfer#941"
    )
    tags: tuple[Annotated[str, StringConstraints(pattern=TAG)], ...] = Field(
        default=(), description="words for `-m`"
    )
    system: SystemName | None = Field(
        default=None,
        description=(
            "what runs: one op's kernel, the reference engine, or a real engine; left out with"
            " `fuzz`"
        ),
    )
    device: Literal["any", "cuda"] = Field(
        default="any",
        description=(
            "cuda: planned whole only where there is a GPU; elsewhere the first case stands for"
            " all, skipped"
        ),
    )
    op: OpName | None = Field(default=None, description="the op to judge, for `system: kernel`")
    params: Given = Field(default={}, description="parameters common to all cases")
    matrix: dict[Axis, Values] = Field(
        default={},
        description=(
            "axes, each a list of values or a mapping from label to value; an axis that is no"
            " parameter maps each label to several parameters; the axes `pattern` and `site` are"
            " the poison's: each label is a fill pattern, compared with zeros, or the only site"
            " that is filled; `kernel: [all]` stands for every kernel of the op that is installed,"
            " each where its promises fit"
        ),
    )
    cover: Literal["all", "pairs", "triples"] = Field(
        default="all",
        description=(
            "pairs, triples: few points that hold each pair, or each three, of the matrix's labels"
        ),
    )
    exclude: tuple[Point, ...] = Field(
        default=(), alias="except", description="points of the matrix to leave out"
    )
    long: tuple[Point, ...] = Field(
        default=(),
        description=(
            "points that a run without a selector leaves out, because others show as much, or"
            " `accuracy: TASK`: tag `long`"
        ),
    )
    poison: PoisonSettings = Field(default=PoisonSettings(), description="what fills which memory")
    oracles: tuple[OracleName, ...] = Field(
        default=DEFAULT_ORACLES,
        min_length=1,
        description="what judges a case, where it applies",
    )
    accuracy: AccuracySettings | None = Field(
        default=None,
        description="measure accuracy by epoch as well, in memory that nothing is filled in",
    )
    faults: tuple[FaultUse, ...] = Field(
        default=(), description="bugs that the scenario must catch"
    )
    known: tuple[KnownUse, ...] = Field(
        default=(),
        description=(
            "failures that releases have themselves: reported, and no failure of the run while they"
            " last"
        ),
    )
    fuzz: FuzzSettings | None = Field(
        default=None, description="cases that are drawn, instead of a matrix"
    )

    def __hash__(self) -> int:
        # For caches of points. The dictionaries of a scenario cannot be hashed, and equality
        # compares all.
        return hash(self.name)

    @property
    def kind(self) -> SystemSpec:
        """The row of its system. Raises UnknownNameError for a scenario with drawn cases."""
        return SYSTEMS.get(self.system or "")

    @property
    def has_all_kernels(self) -> bool:
        """Whether its axis of kernels stands for all that are installed."""
        return self.matrix.get("kernel") == ["all"]

    @property
    def model(self) -> type[Params]:
        return self.kind.model(self.op)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem at one place of a document: of the key there if `at_key`, else of its value."""

    location: Location
    message: str
    at_key: bool = False
    kind: str = ""
    """The type of pydantic's error, if it comes from one."""


_TYPES = {
    "int_type": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}

_BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}


def explain_problems(
    error: ValidationError, model: type[BaseModel], at: Location = ()
) -> list[Problem]:
    """The problems of a failed validation of `model`, located under `at`."""
    return [_problem(item, model, at) for item in error.errors(include_url=False)]


def _problem(item: Any, model: type[BaseModel], at: Location) -> Problem:
    # pydantic marks a problem of a key, and not of its value, so.
    location = at + tuple(part for part in item["loc"] if part != "[key]")
    kind = item["type"]
    given = item.get("input")
    context = item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys_beside(model, item["loc"])
        name = str(item["loc"][-1])
        return Problem(
            location, f"unknown key {name!r}; {nearest(name, known, see=SCHEMA)}", at_key=True
        )
    if kind == "missing":
        name = item["loc"][-1]
        what = f"value {name + 1} of this list" if isinstance(name, int) else repr(name)
        return Problem(
            location[:-1], f"{what} is missing; add it", at_key=not isinstance(name, int)
        )
    return Problem(
        location, _sentence(kind, given, context, item["msg"]), "[key]" in item["loc"], kind
    )


def _sentence(kind: str, given: Any, context: dict[str, Any], message: str) -> str:
    if kind in ("unknown_name", ILLEGAL):
        return message
    if kind in _TYPES:
        return f"expected {_TYPES[kind]}, not {_show(given)}"
    if kind == "literal_error":
        return f"unknown value {given!r}; expected {context['expected']}"
    if kind == "string_pattern_mismatch":
        return (
            f"{given!r} has the wrong form;"
            f" {_FORMS.get(context['pattern'], 'it must match ' + context['pattern'])}"
        )
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return f"expected {word} {context[key]}, not {given}"
    if kind in ("too_short", "string_too_short"):
        return (
            f"expected {'some text' if kind.startswith('string') else 'at least one value'}, not"
            " none; add it"
        )
    if kind == "string_too_long":
        return (
            f"the text has {len(given)} characters; at most {context['max_length']} fit in a table"
        )
    return f"{message[:1].lower()}{message[1:]}, not {_show(given)}"


_FORMS = {
    REF: "write owner/repository#number, such as flashinfer-ai/flashinfer#941",
    NAME: "use small letters, digits and hyphens",
    TAG: "use small letters, digits, hyphens and underscores",
    AXIS: "an axis is named like a parameter: small letters, digits and underscores",
}


def _show(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", tuple: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or (
        str(value).lower() if isinstance(value, bool) else repr(value)
    )


def _keys_beside(model: type[BaseModel], location: Location) -> list[str]:
    """The names that are allowed at the place of an unknown key."""
    # Walks down the models. An unknown key is in the model of the mapping around it.
    current: Any = model
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = next(
            (f for name, f in current.model_fields.items() if (f.alias or name) == part), None
        )
        current = _model_within(field.annotation) if field is not None else None
        if current is None:
            return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_within(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_within(argument)
        if found is not None:
            return found
    return None
