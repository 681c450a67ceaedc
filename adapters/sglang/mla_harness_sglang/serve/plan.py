"""What the harness does in SGLang's scheduler processes, and what they report. No torch here.

SGLang starts its schedulers as processes of their own. Each gets the plan as an argument, installs
it before SGLang builds anything, and writes its state to a file, so that a case in which nothing
was installed is no pass.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.api import HarnessError, InputError, Record, Refused, write_atomic
from mla_harness_adapters import serving

FREED = (*serving.FREED, "router.ids", "router.weights")
PAGES = ("kv.new", "kv.tail", "kv.free", "kv.null")
"""Sites inside the KV pool. Padding slot 0 is `kv.null`: padded rows write and read it."""
TABLES = ("block_table.pad", "graph.pad_rows")
"""Indices: entries of `req_to_token` past a request, and a graph's input rows past the batch."""
SITES = (*FREED, *PAGES, *TABLES)

SWEEPS = "sweeps"
STATE = "state-rank{rank}.json"
REFUSED_PLAN = "refused-plan.txt"
REFUSED_OPTIONS = "refused-options.txt"
"""Files of a scheduler process in the plan's folder."""
METHOD = "mla_harness_state"
"""The method of SGLang's scheduler that writes the state."""

COUNTS: Counter[str] = Counter()
"""What the poison of this process has filled so far: steps, sweeps, and slots or rows by site."""


class Plan(Record):
    """The sites to fill, the fault to inject, and whether to record the first NaN, in each
    scheduler process.
    """

    folder: str
    sites: tuple[str, ...] = ()
    pattern: str = "nan"
    fault: str = ""
    records: bool = False

    @property
    def sweeps(self) -> bool:
        """Whether free memory is filled before each step."""
        return any(site in FREED for site in self.sites)


def states(plan: Plan) -> list[dict[str, Any]]:
    files = sorted(Path(plan.folder).glob(STATE.format(rank="*")))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def check(plan: Plan, num_ranks: int = 1) -> list[dict[str, Any]]:
    """The states of the schedulers.

    Raises HarnessError if one lacks the fault or the poison, and proves nothing.
    """
    if len(found := states(plan)) < num_ranks:
        raise HarnessError(
            f"{len(found)} of {num_ranks} schedulers of SGLang reported what is installed in them"
        )
    for one in found:
        who = f"the scheduler of rank {one['rank']} (process {one['process']})"
        counts = Counter(one["counts"])
        if one["fault"] != plan.fault:
            raise HarnessError(
                f"{who} runs with {one['fault'] or 'no fault'}, not with {plan.fault or 'none'}"
            )
        if not counts["steps"]:
            raise HarnessError(f"{who} ran no step through the harness's hook")
        wanted = [site for site in plan.sites if site not in FREED] + (
            [SWEEPS] if plan.sweeps else []
        )
        missing = [name for name in wanted if not counts[name]]
        # A recorded run asks too few questions to reach every site.
        if missing and not plan.records:
            raise HarnessError(f"{who} filled nothing of {', '.join(missing)}: {dict(counts)}")
    return found


def note_refusal(plan: Plan, file: str, error: Exception) -> None:
    """Write the message of a refusal to the plan's folder:

    SGLang kills the process that could report it.
    """
    write_atomic(Path(plan.folder) / file, " ".join(str(error).split()) or type(error).__name__)


@contextlib.contextmanager
def starting(plan: Plan) -> Iterator[None]:
    """Note the error if SGLang refuses its options inside the block.

    Whatever else goes wrong at the start is a crash.

    SGLang checks options with these errors, in its main process and in its scheduler; `ServerArgs`
    is a dataclass.
    """
    try:
        yield
    except (NotImplementedError, ValueError, AssertionError, TypeError) as error:
        if not isinstance(error, TypeError) or "ServerArgs.__init__" in str(error):
            note_refusal(plan, REFUSED_OPTIONS, error)
        raise


def raise_refusal(plan: Plan) -> None:
    """Raise InputError if a scheduler process refused the plan, and Refused if SGLang refused its
    options.
    """
    of_options = (REFUSED_OPTIONS, Refused, "SGLang refuses these options: ")
    for name, refusal, words in ((REFUSED_PLAN, InputError, ""), of_options):
        file = Path(plan.folder) / name
        if file.is_file():
            raise refusal(words + file.read_text(encoding="utf-8")[:500])
