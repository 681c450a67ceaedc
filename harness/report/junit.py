"""`junit.xml`: what CI servers read. A finding is a failure; a dead worker and errors of the harness are errors.

A known failure counts as skipped, with its issue in the message.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from harness.core.records import AccuracyRecord, Blame, CaseResult, FaultResult, Verdict
from harness.report.run_view import RunView
from harness.report.wording import blamed, model_sentence, one_line, printable

FAULT_SUITE = "injected faults"


def render(view: RunView) -> str:
    """The run as JUnit XML: one suite for each scenario, and one for faults when there are any."""
    root = ET.Element("testsuites", {"name": "mla-harness"})
    for scenario, group in groupby(view.results, key=lambda result: result.scenario):
        _add_suite(root, scenario, list(group), view)
    if view.faults:
        _add_fault_suite(root, view.faults)
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, "0")) for suite in root)))
    root.set("time", f"{view.plan.seconds:.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_suite(root: ET.Element, name: str, results: Sequence[CaseResult], view: RunView) -> None:
    counts = Counter(result.verdict for result in results)
    suite = _suite(
        root,
        name,
        results,
        failures=counts[Verdict.FAIL],
        errors=counts[Verdict.CRASH] + counts[Verdict.ERROR] + counts[Verdict.NOT_RUN],
        skipped=counts[Verdict.SKIP] + counts[Verdict.KNOWN],
    )
    suite.set("timestamp", view.plan.started)
    for result in results:
        _add_case(suite, result, view)


def _suite(root: ET.Element, name: str, results: Sequence[CaseResult | FaultResult], **counts: int) -> ET.Element:
    numbers = {name: str(count) for name, count in {"tests": len(results), **counts}.items()}
    seconds = sum(result.seconds for result in results)
    return ET.SubElement(root, "testsuite", {"name": printable(name), **numbers, "time": f"{seconds:.3f}"})


def _add_case(suite: ET.Element, result: CaseResult, view: RunView) -> None:
    attributes = {"classname": result.scenario, "name": result.id, "time": f"{result.seconds:.3f}"}
    element = ET.SubElement(suite, "testcase", {name: printable(value) for name, value in attributes.items()})
    if result.accuracy is not None:
        _add_properties(element, result.accuracy)
    if result.verdict in (Verdict.SKIP, Verdict.KNOWN):
        ET.SubElement(element, "skipped", {"message": one_line(result.reason)})
    elif result.verdict is not Verdict.PASS:
        kind = "failure" if result.verdict is Verdict.FAIL else "error"
        first = result.findings[0].message if result.findings else result.reason
        problem = ET.SubElement(element, kind, {"type": _type_of(result), "message": one_line(first)})
        problem.text = printable(_details(result, view.blames.get(result.key), view.command(result)))
        if result.log:
            ET.SubElement(element, "system-err").text = printable(result.log)


def _add_properties(element: ET.Element, record: AccuracyRecord) -> None:
    """The accuracy as properties, which CI servers show beside a test."""
    values = {"task": record.task, "model": record.model, "engine": record.engine, "dtype": record.dtype}
    if sentence := model_sentence(record):
        values["model-note"] = sentence
    if record.baseline:
        values["baseline"] = f"{record.baseline.accuracy:.4f}"
    for epoch in record.epochs:
        if epoch.num_questions:
            low, high = epoch.interval
            values[f"epoch-{epoch.epoch}-accuracy"] = f"{epoch.accuracy:.4f}"
            values[f"epoch-{epoch.epoch}-interval"] = f"{low:.4f} to {high:.4f}"
    values["statement"] = record.judgement.statement
    properties = ET.SubElement(element, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", {"name": f"accuracy.{name}", "value": one_line(value, 1000)})


def _type_of(result: CaseResult) -> str:
    if result.verdict is Verdict.FAIL:
        return " ".join(dict.fromkeys(finding.oracle for finding in result.findings))
    return "crash" if result.verdict is Verdict.CRASH else "harness-error"


def _details(result: CaseResult, blame: Blame | None, command: str) -> str:
    lines = [result.reason] if result.reason else []
    for finding in result.findings:
        facts = (finding.oracle, finding.tensor, finding.where, finding.bits, finding.site)
        lines.append(" | ".join(fact for fact in facts if fact) + f": {finding.message}")
        lines += [f"  at {finding.at}"] if finding.at else []
    if blame:
        lines.append(f"blame: {blamed(blame)}")
    return "\n".join([*lines, f"reproduce: {command}"])


def _add_fault_suite(root: ET.Element, faults: Sequence[FaultResult]) -> None:
    missed = sum(not fault.caught for fault in faults)
    suite = _suite(root, FAULT_SUITE, faults, failures=missed, errors=0, skipped=0)
    for fault in faults:
        name = f"{fault.fault} on {fault.case}"
        attributes = {"classname": fault.scenario, "name": printable(name), "time": f"{fault.seconds:.3f}"}
        element = ET.SubElement(suite, "testcase", attributes)
        if fault.accuracy is not None:
            _add_properties(element, fault.accuracy)
        if not fault.caught:
            problem = ET.SubElement(element, "failure", {"type": "not-caught", "message": one_line(fault.reason)})
            problem.text = printable(
                f"expected: {fault.expected_by} blaming {', '.join(fault.expected_blame) or 'no site'}\n"
                f"found: {', '.join(fault.by) or 'nothing'} blaming {', '.join(fault.blamed) or 'no site'}"
            )
