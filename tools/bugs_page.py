"""docs/data/bugs.md from a run of `mla-harness selftest`: each injected bug, and the oracle that caught
it.
"""

from __future__ import annotations

from collections import Counter

from harness.core.catalog import FAULTS
from harness.core.records import FaultResult, Verdict
from harness.report.markdown import table
from harness.report.wording import ref_url
from harness.store.run_folder import RunStore

RARE = 2
"""An oracle that caught no more bugs has no row of its own."""


def document(store: RunStore) -> str:
    """The page of one run. The row of a bug that was not caught has the reason."""
    faults = sorted(store.faults(), key=lambda fault: (fault.fault, fault.scenario, fault.case))
    verdicts = [result.verdict for result in store.results()]
    not_clean = sum(verdict not in (Verdict.PASS, Verdict.SKIP) for verdict in verdicts)
    machine = store.plan.environment
    rows = []
    for fault in faults:
        spec = FAULTS.get(fault.fault)
        ref = f"[{spec.ref}]({ref_url(spec.ref)})"
        oracle = " or ".join(fault.expected_by) if fault.caught else f"NOT CAUGHT: {fault.reason}"
        blamed = ", ".join(fault.blamed) or "no memory"
        rows.append(
            (
                spec.summary,
                ref,
                f"`{spec.name}`",
                fault.scenario,
                oracle,
                blamed,
                f"{fault.seconds:.1f}",
            )
        )
    return f"""# Bugs the harness knows

A record, for whoever looks up a known bug. Written by `python tools/pages.py bugs RUN` from a run of `mla-harness selftest`. [vllm-fits.md](vllm-fits.md) has those of vLLM itself, [sglang.md](../sglang.md#its-bugs) those of SGLang.

{len({fault.fault for fault in faults})} bugs, injected {len(faults)} times: {sum(f.caught for f in faults)} caught by the declared oracle with the declared blame. Clean cases: {verdicts.count(Verdict.PASS)} pass, {not_clean} do not, {verdicts.count(Verdict.SKIP)} skipped. The run took {store.plan.seconds:.0f} s on {machine.get("num_cores", "?")} cores ({machine.get("cpu", "a CPU")}), torch {machine.get("torch", "?")}, no GPU; the seconds of a row cover its case and the trials that found the memory to blame.

{table(("caught by", "times"), _by_oracle(faults))}

[What goes wrong](../what-goes-wrong.md) has the same bugs by kind.

{table(("bug", "upstream", "fault", "scenario", "oracle", "blamed", "seconds"), rows)}"""


def _by_oracle(faults: list[FaultResult]) -> list[tuple[str, int]]:
    """How often each oracle caught a bug, most often first; the rare ones are one row."""
    caught = Counter(" or ".join(fault.expected_by) for fault in faults if fault.caught)
    rows = [(f"`{oracle}`", times) for oracle, times in caught.most_common() if times > RARE]
    others = [times for times in caught.values() if times <= RARE]
    return [*rows, (f"{len(others)} others", sum(others))]
