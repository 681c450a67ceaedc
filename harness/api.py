"""All that plug-ins and adapters of engines may import of the harness.

The promise: a name of this module keeps its meaning from release to release. Changes of meaning are
in CHANGELOG.md. What stands in other modules of the harness may change at any time.

Importing this module is instant and loads no torch. A name loads its own module when it is first
asked for. So a module that must not load torch, such as the tables of an engine, may import names
whose modules load none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from harness.accuracy.acceptance import Drafts as Drafts
    from harness.accuracy.backends import Answer as Answer
    from harness.accuracy.backends import Identity as Identity
    from harness.accuracy.questions import Questions as Questions
    from harness.core.cases import Case as Case
    from harness.core.cause_codes import Code as Code
    from harness.core.cause_codes import WhyNot as WhyNot
    from harness.core.engine_tables import rows_of_engine as rows_of_engine
    from harness.core.errors import HarnessError as HarnessError
    from harness.core.errors import InputError as InputError
    from harness.core.errors import KernelError as KernelError
    from harness.core.errors import Refused as Refused
    from harness.core.errors import explained_writes as explained_writes
    from harness.core.extras import MissingPackage as MissingPackage
    from harness.core.extras import why_not as why_packages_missing
    from harness.core.faults import FaultSpec as FaultSpec
    from harness.core.files import FIXTURES as FIXTURES
    from harness.core.files import read_rows as read_rows
    from harness.core.files import write_atomic as write_atomic
    from harness.core.findings import Finding as Finding
    from harness.core.kernels import KernelSpec as KernelSpec
    from harness.core.oracles import OracleSpec as OracleSpec
    from harness.core.params import Params as Params
    from harness.core.params import Record as Record
    from harness.core.records import FirstNan as FirstNan
    from harness.core.registry import nearest as nearest
    from harness.core.seams import seam as seam
    from harness.core.sites import Site as Site
    from harness.core.systems import EngineSpec as EngineSpec
    from harness.core.systems import ModelSpec as ModelSpec
    from harness.core.systems import SystemSpec as SystemSpec
    from harness.diagnose.script.code import render_script as render_script
    from harness.evidence.addresses import Binding as Binding
    from harness.evidence.answers import Answered as Answered
    from harness.evidence.counts import Count as Count
    from harness.evidence.facts import Allocated as Allocated
    from harness.evidence.moves import Moved as Moved
    from harness.evidence.observed import Observed as Observed
    from harness.evidence.records import Run as Run
    from harness.evidence.replay import ReplayedStep as ReplayedStep
    from harness.evidence.scripts import PlayedScript as PlayedScript
    from harness.evidence.sentinel import Guard as Guard
    from harness.judge.target import Target as Target
    from harness.judge.targets.moves import in_orders as in_orders
    from harness.judge.targets.shown_call import PreparedCall as PreparedCall
    from harness.kernels.plugins import kernel as kernel
    from harness.kernels.plugins import kernel_function as kernel_function
    from harness.memory.first_nan.recorder import first_nan as first_nan
    from harness.memory.first_nan.steps import StepRecorder as StepRecorder
    from harness.memory.moves.checks import Landed as Landed
    from harness.memory.moves.owners import owner_records as owner_records
    from harness.memory.moves.owners import unsent as unsent
    from harness.memory.moves.streams import Streams as Streams
    from harness.memory.triton_interpreter import prepare as prepare_interpreter
    from harness.run.child import Child as Child
    from harness.run.child import ChildDied as ChildDied
    from harness.run.fork_server import Forks as Forks
    from harness.run.launch import die_with_parent as die_with_parent
    from harness.run.protocol import answer_requests as answer_requests
    from harness.run.scripts import play_script as play_script


class _Name(NamedTuple):
    """A name of this module."""

    place: str
    """ "module:attribute"."""
    purpose: str
    """What it is for."""


_NAMES = {
    # What a plug-in of a user needs.
    "kernel": _Name(
        "harness.kernels.plugins:kernel",
        "registers a function as a kernel of an op",
    ),
    "Refused": _Name(
        "harness.core.errors:Refused",
        "raised by a kernel or an engine that does not take a call",
    ),
    "Finding": _Name(
        "harness.core.findings:Finding",
        "what an oracle found",
    ),
    "first_nan": _Name(
        "harness.memory.first_nan.recorder:first_nan",
        "records which module of a model first returns a NaN",
    ),
    "seam": _Name(
        "harness.core.seams:seam",
        "marks a function that a fault may replace",
    ),
    # The tables of an engine.
    "EngineSpec": _Name(
        "harness.core.systems:EngineSpec",
        "an engine: its name, its package, its version",
    ),
    "SystemSpec": _Name(
        "harness.core.systems:SystemSpec",
        "a kind of case: its parameters and its target",
    ),
    "ModelSpec": _Name(
        "harness.core.systems:ModelSpec",
        "a kind of model for `epochs --model`",
    ),
    "KernelSpec": _Name(
        "harness.core.kernels:KernelSpec",
        "a kernel of an op, with its promises",
    ),
    "FaultSpec": _Name(
        "harness.core.faults:FaultSpec",
        "a known bug that can be injected",
    ),
    "Site": _Name(
        "harness.core.sites:Site",
        "a kind of memory that can be poisoned",
    ),
    "OracleSpec": _Name(
        "harness.core.oracles:OracleSpec",
        "a check of evidence",
    ),
    "rows_of_engine": _Name(
        "harness.core.engine_tables:rows_of_engine",
        "reads these tables from the YAML beside a module",
    ),
    # A case and what runs it.
    "Case": _Name(
        "harness.core.cases:Case",
        "one case: its system and its parameters",
    ),
    "Params": _Name(
        "harness.core.params:Params",
        "the base of the parameters of a system",
    ),
    "Record": _Name(
        "harness.core.params:Record",
        "the base of messages between processes",
    ),
    "Target": _Name(
        "harness.judge.target:Target",
        "the base of what runs the cases of a system",
    ),
    "Run": _Name(
        "harness.evidence.records:Run",
        "what one run of a case gave: its evidence, its log, its error",
    ),
    # Errors, and why a case cannot run.
    "HarnessError": _Name(
        "harness.core.errors:HarnessError",
        "an error of the harness, told in one line",
    ),
    "InputError": _Name(
        "harness.core.errors:InputError",
        "input that cannot be used",
    ),
    "KernelError": _Name(
        "harness.core.errors:KernelError",
        "what is judged raised or died",
    ),
    "MissingPackage": _Name(
        "harness.core.extras:MissingPackage",
        "a package is not installed, so the case is skipped",
    ),
    "Code": _Name(
        "harness.core.cause_codes:Code",
        "the cause of a result, for programs",
    ),
    "WhyNot": _Name(
        "harness.core.cause_codes:WhyNot",
        "why a case cannot run: a sentence with its code",
    ),
    "why_packages_missing": _Name(
        "harness.core.extras:why_not",
        "which of some optional packages are missing",
    ),
    "explained_writes": _Name(
        "harness.core.errors:explained_writes",
        "tells a full disk as such within a block",
    ),
    "nearest": _Name(
        "harness.core.registry:nearest",
        "the hint of an error about an unknown name",
    ),
    # Evidence, for the oracles.
    "Observed": _Name(
        "harness.evidence.observed:Observed",
        "a tensor, its live rows, and what it should be",
    ),
    "Guard": _Name(
        "harness.evidence.sentinel:Guard",
        "memory that may not change",
    ),
    "Count": _Name(
        "harness.evidence.counts:Count",
        "a number that must be kept",
    ),
    "Binding": _Name(
        "harness.evidence.addresses:Binding",
        "the address of a captured buffer",
    ),
    "Allocated": _Name(
        "harness.evidence.facts:Allocated",
        "the lines that allocated memory and left some unwritten",
    ),
    "ReplayedStep": _Name(
        "harness.evidence.replay:ReplayedStep",
        "a replayed step beside the same step without a graph",
    ),
    "Answered": _Name(
        "harness.evidence.answers:Answered",
        "the answers to a task's questions",
    ),
    "PlayedScript": _Name(
        "harness.evidence.scripts:PlayedScript",
        "what a script of requests found",
    ),
    "Moved": _Name(
        "harness.evidence.moves:Moved",
        "what one schedule of moves of a cache showed",
    ),
    "FirstNan": _Name(
        "harness.core.records:FirstNan",
        "the report of a first-NaN recorder",
    ),
    # Processes.
    "Child": _Name(
        "harness.run.child:Child",
        "a child process, as its parent handles it",
    ),
    "ChildDied": _Name(
        "harness.run.child:ChildDied",
        "a child died, hung, or wrote garbage",
    ),
    "Forks": _Name(
        "harness.run.fork_server:Forks",
        "children that are forks of a process with slow imports",
    ),
    "answer_requests": _Name(
        "harness.run.protocol:answer_requests",
        "runs this process as a child that answers requests",
    ),
    "die_with_parent": _Name(
        "harness.run.launch:die_with_parent",
        "ends this process when its parent dies",
    ),
    # Models that answer questions.
    "Answer": _Name(
        "harness.accuracy.backends:Answer",
        "the answer to one prompt",
    ),
    "Identity": _Name(
        "harness.accuracy.backends:Identity",
        "a model as reports name it",
    ),
    "Drafts": _Name(
        "harness.accuracy.acceptance:Drafts",
        "how many tokens were drafted and accepted",
    ),
    "Questions": _Name(
        "harness.accuracy.questions:Questions",
        "a task's questions, and the loop over epochs",
    ),
    "play_script": _Name(
        "harness.run.scripts:play_script",
        "runs a script of requests against a server",
    ),
    "render_script": _Name(
        "harness.diagnose.script.code:render_script",
        "makes a script for upstream of a template",
    ),
    # Code that an engine's parts are run with.
    "kernel_function": _Name(
        "harness.kernels.plugins:kernel_function",
        "the function of a kernel, by its op and its name",
    ),
    "PreparedCall": _Name(
        "harness.judge.targets.shown_call:PreparedCall",
        "the poisoned inputs of a call, and its evidence",
    ),
    "prepare_interpreter": _Name(
        "harness.memory.triton_interpreter:prepare",
        "repairs Triton's interpreter before kernels are defined",
    ),
    "StepRecorder": _Name(
        "harness.memory.first_nan.steps:StepRecorder",
        "the first-NaN recorder of a process that runs steps",
    ),
    "Streams": _Name(
        "harness.memory.moves.streams:Streams",
        "simulated streams with the order of all accesses",
    ),
    "Landed": _Name(
        "harness.memory.moves.checks:Landed",
        "compares moved bytes with their owners",
    ),
    "owner_records": _Name(
        "harness.memory.moves.owners:owner_records",
        "the bytes that name the owner of a token",
    ),
    "unsent": _Name(
        "harness.memory.moves.owners:unsent",
        "the bytes of memory that nothing was moved to",
    ),
    "in_orders": _Name(
        "harness.judge.targets.moves:in_orders",
        "runs a schedule in several orders",
    ),
    # Files.
    "FIXTURES": _Name(
        "harness.core.files:FIXTURES",
        "the folder of canaries and tasks",
    ),
    "read_rows": _Name(
        "harness.core.files:read_rows",
        "the rows of a table in YAML",
    ),
    "write_atomic": _Name(
        "harness.core.files:write_atomic",
        "replaces a file at once",
    ),
}

__all__ = [  # noqa: RUF022 - in the order of the table above
    "kernel",
    "Refused",
    "Finding",
    "first_nan",
    "seam",
    "EngineSpec",
    "SystemSpec",
    "ModelSpec",
    "KernelSpec",
    "FaultSpec",
    "Site",
    "OracleSpec",
    "rows_of_engine",
    "Case",
    "Params",
    "Record",
    "Target",
    "Run",
    "HarnessError",
    "InputError",
    "KernelError",
    "MissingPackage",
    "Code",
    "WhyNot",
    "why_packages_missing",
    "explained_writes",
    "nearest",
    "Observed",
    "Guard",
    "Count",
    "Binding",
    "Allocated",
    "ReplayedStep",
    "Answered",
    "PlayedScript",
    "Moved",
    "FirstNan",
    "Child",
    "ChildDied",
    "Forks",
    "answer_requests",
    "die_with_parent",
    "Answer",
    "Identity",
    "Drafts",
    "Questions",
    "play_script",
    "render_script",
    "kernel_function",
    "PreparedCall",
    "prepare_interpreter",
    "StepRecorder",
    "Streams",
    "Landed",
    "owner_records",
    "unsent",
    "in_orders",
    "FIXTURES",
    "read_rows",
    "write_atomic",
]


def __getattr__(name: str) -> Any:
    """The object of a name, whose module is loaded now."""
    if name not in _NAMES:
        raise AttributeError(f"module 'harness.api' has no attribute {name!r}")
    module, _, attribute = _NAMES[name].place.partition(":")
    found = globals()[name] = getattr(importlib.import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return sorted(_NAMES)
