"""The susceptibility matrix of a run: kernel x site x pattern, as Markdown, CSV and HTML."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from harness.core.cases import Case
from harness.core.catalog import KERNELS
from harness.core.extras import pandas as pd
from harness.core.files import write_atomic
from harness.core.op_params import KernelParams, MlaDecodeParams
from harness.core.records import CaseResult, Verdict
from harness.report.page import judged, other_page
from harness.report.wording import num, one_line, printable
from harness.scenario.susceptibility import PATTERNS, declared
from harness.store.run_folder import RunStore

FILES = ("susceptibility.md", "susceptibility.csv", "susceptibility.html")
LEGEND = (
    "clean: live rows bitwise equal to those over zeros, finite, and right; NaN: NaN or Inf in live rows; "
    "wrong: finite but other numbers; off: outside the reference's tolerance, whatever the memory holds; crash: the "
    "kernel raised or died; *: the kernel declares that it needs this memory friendly, and the engine must ensure that."
)
LETTERS = {"clean": "·", "NaN": "N", "wrong": "W", "off": "O", "crash": "C", "error": "E", "skipped": "-"}


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcome of a kernel under one pattern on one site, and the case that reproduces it."""

    kernel: str
    kv: str
    site: str
    pattern: str
    outcome: str
    is_declared: bool
    case: str
    why: str


def outcome_of(result: CaseResult) -> str:
    """clean, NaN, wrong, off (whatever the poison is), crash, skipped or error."""
    if result.verdict is Verdict.FAIL:
        oracles = {finding.oracle for finding in result.findings}
        if oracles & {"finite", "sentinel"}:
            return "NaN"
        return "wrong" if "non_interference" in oracles else "off"
    words = {Verdict.PASS: "clean", Verdict.CRASH: "crash", Verdict.SKIP: "skipped"}
    return words.get(result.verdict, "error")


def cells(store: RunStore) -> list[Cell]:
    jobs = store.jobs_by_key()
    return [cell_of(result, jobs[result.key].case) for result in store.results()]


def cell_of(result: CaseResult, case: Case) -> Cell:
    """The cell of one result. A probe with several query tokens is a row of its own."""
    params = case.params_as(KernelParams)
    spec = KERNELS.get(f"{case.op}/{params.kernel}")
    site, pattern = case.poison.sites[0], case.poison.patterns[0]
    tokens = params.query_len if isinstance(params, MlaDecodeParams) else 1
    name = spec.name if tokens == 1 else f"{spec.name}, {tokens} tokens"
    why = "" if result.verdict is Verdict.PASS else result.reason
    kv, is_declared = str(getattr(params, "kv", "")), declared(spec, site)
    return Cell(name, kv, site, pattern, outcome_of(result), is_declared, case.id, printable(why))


def write(store: RunStore) -> list[Path]:
    """Write the three files into the run's directory; returns their paths."""
    found = cells(store)
    texts = (to_markdown(found), to_csv(found), to_html(store, found))
    paths = [store.path / name for name in FILES]
    for path, text in zip(paths, texts, strict=True):
        write_atomic(path, text)
    return paths


def to_markdown(found: list[Cell]) -> str:
    """A table of kernel and site by pattern, then the cells that are not clean with their cases."""
    lines = ["# Susceptibility", "", LEGEND, "", f"| kernel | KV | site | {' | '.join(PATTERNS)} |", "|---" * 7 + "|"]
    for (kernel, kv, site), row in _rows(found).items():
        if all(cell.outcome == "skipped" for cell in row.values()):
            continue
        outcomes = [row[pattern].outcome if pattern in row else "" for pattern in PATTERNS]
        texts = [text if text in ("clean", "skipped", "") else f"**{text}**" for text in outcomes]
        mark = " *" if any(cell.is_declared for cell in row.values()) else ""
        lines.append(f"| {kernel} | {kv} | {site}{mark} | {' | '.join(texts)} |")
    skipped = {cell.kernel: cell.why for cell in found if cell.outcome == "skipped"}
    if skipped:
        lines += ["", "## Skipped", ""] + [f"- {kernel}: {why}" for kernel, why in skipped.items()]
    bad: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in found:
        if cell.outcome not in ("clean", "skipped"):
            # One cause fills many cells. Their reasons differ only in the pattern.
            bad.setdefault((cell.kernel, cell.outcome, cell.why.partition(" (pattern")[0]), []).append(cell)
    if bad:
        lines += ["", "## Not clean", "", "Each case again: `mla-harness run 'CASE'`."]
    for (kernel, outcome, why), group in bad.items():
        lines += ["", f"{kernel}, {outcome}: {one_line(why, 200)}", ""] + [f"- `{cell.case}`" for cell in group]
    return "\n".join(lines) + "\n"


def to_csv(found: list[Cell]) -> str:
    table = pd.DataFrame(found, columns=[field.name for field in fields(Cell)])
    table["is_declared"] = table["is_declared"].map({True: "yes", False: "no"})
    text: str = table.rename(columns={"is_declared": "declared"}).to_csv(index=False, lineterminator="\n")
    return text


def to_html(store: RunStore, found: list[Cell]) -> str:
    """A heat map in the style of the report: kernels by site and pattern. A cell leads to its case in `report.html`."""
    rows: dict[tuple[str, str], dict[tuple[str, str], Cell]] = {}
    for cell in found:
        rows.setdefault((cell.kernel, cell.kv), {})[cell.site, cell.pattern] = cell
    bad = sum(cell.outcome not in ("clean", "skipped") for cell in found)
    title = f"{bad} of {num(len(found), 'cell')} are not clean" if bad else f"All {len(found)} cells are clean"
    seen = {cell.outcome for cell in found}
    values = {
        "rows": rows,
        "sites": list(dict.fromkeys(cell.site for cell in found)),
        "patterns": PATTERNS,
        "letters": {outcome: letter for outcome, letter in LETTERS.items() if outcome in seen},
        "legend": LEGEND,
        "judged": judged(store),
    }
    return other_page("susceptibility.html", title, "fail" if bad else "pass", store.plan.run_id, **values)


def _rows(found: list[Cell]) -> dict[tuple[str, str, str], dict[str, Cell]]:
    rows: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for cell in found:
        rows.setdefault((cell.kernel, cell.kv, cell.site), {})[cell.pattern] = cell
    return rows
