"""The plan of a served vLLM as settings in the environment, where its workers find them.

People who serve with the plug-in write the same settings by hand. No torch here: a serving process
reads them first.
"""

from __future__ import annotations

from harness.api import InputError, nearest
from mla_harness_adapters import serving
from mla_harness_adapters.plan import Plan, ServedMemory, ServePoison

VARIABLE = "MLA_HARNESS_POISON"
"""What to fill, as `parse_poison` reads it; nothing if unset or empty."""
FIRST_NAN_VARIABLE = "MLA_HARNESS_FIRST_NAN"
"""1, or the folder for the reports of the workers' recorders."""
FAULT_VARIABLE = "MLA_HARNESS_FAULT"
"""A fault of `mla_harness_vllm.faults` to inject into every process of a server."""
STREAMS_VARIABLE = "MLA_HARNESS_STREAMS"
"""A seed: copies from pinned memory are delayed and watched, see `copies`."""
ROUTING_VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
"""A variable of vLLM. The plug-in registers STRATEGY if it has this value."""
STRATEGY = "mla_harness_topk"

FREED = (*serving.FREED, "graph.pad_rows")
CONTEXT = ("context.output", "context.lse")
"""Rows of tokens without context, which a kernel need not write.

They are also filled within a step.
"""
BLOCKS = ("kv.new", "kv.tail", "kv.null")
"""Sites inside vLLM's KV pages."""
TOPK = "sparse.topk"
"""The places that an indexer chose in the step before, in a buffer that all layers share."""
PATTERNS = ("nan", "max", "finite")
"""`finite` has the size of a latent: for kernels that need finite pages."""
MEMORY = ServedMemory(
    counts={"sweeps": FREED, "blocks": BLOCKS, "topk_buffers": (TOPK,), "context_rows": CONTEXT}
)
"""The counts are those of `writes.Filled`."""
SITES = MEMORY.sites


def variables(plan: Plan) -> dict[str, str]:
    """The settings that carry a plan to every process. They also undo what this process inherited:
    without poison and fault both are empty.
    """
    settings = {
        VARIABLE: plan.poison.text() if plan.poison else "",
        FAULT_VARIABLE: plan.fault,
    }
    if plan.routing:
        settings[ROUTING_VARIABLE] = plan.routing
    if plan.streams:
        settings[STREAMS_VARIABLE] = plan.streams
    if plan.records:
        settings[FIRST_NAN_VARIABLE] = plan.folder
    return settings


def parse_poison(text: str) -> ServePoison:
    """Read `SITE,SITE[:PATTERN][@RANK]`; `all` stands for all sites.

    Raises InputError for anything else.
    """
    what, at, rank = text.strip().partition("@")
    if at and not (rank.isascii() and rank.isdigit()):
        raise InputError(
            f"{VARIABLE}={text!r}: {rank!r} is no rank; write a number, for example output:nan@1"
        )
    names, _, pattern = what.partition(":")
    pattern = pattern or "nan"
    if pattern not in PATTERNS:
        raise InputError(
            f"{VARIABLE}={text!r}: unknown pattern {pattern!r}; {nearest(pattern, list(PATTERNS))}"
        )
    sites = tuple(name.strip() for name in names.split(",") if name.strip())
    if sites == ("all",):
        sites = SITES
    for site in sites:
        if site not in SITES:
            raise InputError(
                f"{VARIABLE}={text!r}: unknown site {site!r}; {nearest(site, list(SITES))}"
            )
    if not sites:
        raise InputError(f"{VARIABLE}={text!r}: names no site; write for example kv.new,output:nan")
    return ServePoison(sites, pattern, int(rank) if at else None)
