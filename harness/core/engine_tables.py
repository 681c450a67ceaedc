"""Engines come through a door: each entry point of the group GROUP names a module of tables.

The engines of this project are registered in its `pyproject.toml` in the same way. Tables that do
not load make a broken engine: `doctor` says why, and its cases are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from harness.core import checkout
from harness.core.errors import named
from harness.core.faults import FaultSpec
from harness.core.files import rows_beside, with_tuples
from harness.core.kernels import KernelSpec, kernel_of
from harness.core.systems import EngineSpec, ModelSpec, SystemSpec

DOORS = "mla_harness"
"""The groups of entry points through which other packages bring something begin so."""
GROUP = f"{DOORS}.engines"
KINDS = ("SYSTEMS", "MODELS", "SITES", "KERNELS", "ORACLES", "FAULTS")
"""The tables that an engine may have, beside its ENGINE."""

Tables = dict[str, tuple[Any, ...]]
"""Kind -> rows."""


def load_tables(builtin: Tables) -> tuple[Tables, dict[str, str]]:
    """The rows of each kind, ENGINES among them:

    `builtin`, then the engines'; and why an engine is broken, by name.
    """
    rows: Tables = {"ENGINES": (), **builtin}
    broken: dict[str, str] = {}
    for point in _entry_points():
        try:
            tables = point.load()
            added = {kind: tuple(getattr(tables, kind, ())) for kind in KINDS} | {
                "ENGINES": (tables.ENGINE,)
            }
            _check(point.name, added, rows)
        # Foreign code: whatever it raises must not end the harness for the other engines.
        except Exception as error:
            owner = point.dist.name if point.dist else point.value
            broken[point.name] = f"engine {point.name} of {owner} does not load: {named(error)}"
            continue
        rows = {kind: (*rows[kind], *added[kind]) for kind in rows}
    return rows, broken


def rows_of_engine(
    module: str, name: str
) -> tuple[
    EngineSpec,
    tuple[SystemSpec, ...],
    tuple[ModelSpec, ...],
    tuple[FaultSpec, ...],
    tuple[KernelSpec, ...],
]:
    """What the table in YAML beside an engine's module of tables says.

    `name` is the module's, in the engine's package.

    The rows name code in this package. The kernels run on a GPU. Faults of an engine have no code
    in a worker.
    """
    rows = rows_beside(module)
    package = name.rpartition(".")[0]
    engine = EngineSpec(**with_tuples(rows["engine"]))

    def placed(kind: str, *code: str) -> Iterator[dict[str, Any]]:
        for name, row in rows.get(kind, {}).items():
            yield (
                {"name": name}
                | with_tuples(row)
                | {key: f"{package}.{row[key]}" for key in code if key in row}
            )

    return (
        engine,
        tuple(
            SystemSpec(**row)
            for row in placed("systems", "params", "target", "serve_command", "plain_script")
        ),
        tuple(ModelSpec(**row) for row in placed("models", "open")),
        tuple(
            FaultSpec(row["name"], row["ref"], f"{engine.title} itself: {row['bug']}")
            for row in placed("faults")
        ),
        tuple(
            kernel_of(name, row, package, devices=("cuda",), origin=engine.name)
            for name, row in rows.get("kernels", {}).items()
        ),
    )


def _entry_points() -> Iterator[EntryPoint]:
    """Each entry point once.

    In a checkout its `pyproject.toml` files are read, as they may be newer than the installation.
    """
    checkout.find_adapters()
    listed = checkout.entry_points(GROUP)
    yield from (EntryPoint(name, module, GROUP) for name, module in listed.items())
    # An adapter that is installed alone stands beside its copy in the harness.
    installed = {(point.name, point.value): point for point in entry_points(group=GROUP)}
    yield from (point for point in installed.values() if point.name not in listed)


def _check(name: str, added: Tables, rows: Tables) -> None:
    """Raise ValueError for rows that cannot stand beside the others."""
    (engine,) = added["ENGINES"]
    if not isinstance(engine, EngineSpec) or engine.name != name:
        raise ValueError(
            f"ENGINE is no EngineSpec with the name {name!r}, which the entry point has"
        )
    for kind, new in added.items():
        # A sentinel carries the tag of its site, so two sites with one tag could not be told apart.
        names, tags = ({getattr(row, word, None) for row in rows[kind]} for word in ("name", "tag"))
        for row in new:
            if row.name in names or (kind == "SITES" and row.tag in tags):
                raise ValueError(f"{kind}: the name or the tag of {row.name!r} is taken")
            # Two rows of the new tables may not share a name either.
            names.add(row.name)


def missing_system(name: str, broken: dict[str, str]) -> tuple[SystemSpec, ...]:
    """The stand-in for a system of a broken engine, called as the engine, or `engine-part`."""
    reason = broken.get(name) or broken.get(name.partition("-")[0])
    params = "harness.core.params:UnreadParams"
    return (
        (SystemSpec(name, "its engine does not load", params, devices=("cpu",), unusable=reason),)
        if reason
        else ()
    )


def missing_kernel(name: str, broken: dict[str, str]) -> tuple[KernelSpec, ...]:
    """The stand-in for a kernel of a broken engine, called `op/engine` or `op/engine-variant`."""
    op, _, short = name.partition("/")
    reason = broken.get(short) or broken.get(short.partition("-")[0])
    return (
        (KernelSpec(op, short, "its engine does not load", impl="", unusable=reason),)
        if reason
        else ()
    )


def missing_fault(name: str, broken: dict[str, str]) -> tuple[FaultSpec, ...]:
    """The stand-in for a fault of a broken engine, called `engine.bug`."""
    return (
        (FaultSpec(name, "", broken[engine]),)
        if (engine := name.partition(".")[0]) in broken
        else ()
    )


def missing_engine(name: str, broken: dict[str, str]) -> tuple[EngineSpec, ...]:
    return (EngineSpec(name, name, name, package=name),) if name in broken else ()
