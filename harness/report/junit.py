"""`junit.xml`: what CI servers read.

A finding is a failure; a dead worker and errors of the harness are errors.

A known failure counts as skipped, with its issue in the message. What a kernel refused is skipped
too, with a type.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import groupby

from harness.core.records import AccuracyRecord, Blame, CaseResult, FaultResult, Verdict
from harness.report.run_view import RunView
from harness.report.wording import (
    blamed,
    expected_of,
    interval_text,
    model_sentence,
    one_line,
    printable,
)

FAULT_SUITE = "injected faults"
COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}
"""Attribute of a suite -> the element of the tests that it counts."""


def render(view: RunView) -> str:
    """The run as JUnit XML: one suite for each scenario, and one for faults when there are any."""
    root = ET.Element("testsuites", {"name": "mla-harness"})
    for scenario, group in groupby(view.results, key=lambda result: result.scenario):
        suite = _add_suite(root, scenario, [_of_case(result, view) for result in group])
        suite.set("timestamp", view.plan.started)
    if view.faults:
        _add_suite(root, FAULT_SUITE, list(map(_of_fault, view.faults)))
    for attribute in ("tests", *COUNTED):
        root.set(attribute, str(sum(int(suite.get(attribute, "0")) for suite in root)))
    root.set("time", f"{view.plan.seconds:.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_suite(root: ET.Element, name: str, tests: list[ET.Element]) -> ET.Element:
    counts = {
        words: sum(test.find(tag) is not None for test in tests) for words, tag in COUNTED.items()
    }
    numbers = {words: str(count) for words, count in {"tests": len(tests), **counts}.items()}
    seconds = sum(float(test.get("time", "0")) for test in tests)
    suite = ET.SubElement(
        root, "testsuite", {"name": printable(name), **numbers, "time": f"{seconds:.3f}"}
    )
    suite.extend(tests)
    return suite


def _test(result: CaseResult | FaultResult, name: str) -> ET.Element:
    attributes = {
        "classname": printable(result.scenario),
        "name": printable(name),
        "time": f"{result.seconds:.3f}",
    }
    element = ET.Element("testcase", attributes)
    if result.accuracy is not None:
        _add_properties(element, result.accuracy)
    return element


def _of_case(result: CaseResult, view: RunView) -> ET.Element:
    element = _test(result, result.id)
    if result.verdict in (Verdict.SKIP, Verdict.KNOWN):
        whose = {"type": "kernel-refused"} if result.is_refused else {}
        ET.SubElement(element, "skipped", {**whose, "message": one_line(result.reason)})
    elif result.verdict is not Verdict.PASS:
        oracles = " ".join(dict.fromkeys(finding.oracle for finding in result.findings))
        kinds = {Verdict.FAIL: ("failure", oracles), Verdict.CRASH: ("error", "crash")}
        kind, what = kinds.get(result.verdict, ("error", "harness-error"))
        first = result.findings[0].message if result.findings else result.reason
        problem = ET.SubElement(element, kind, {"type": what, "message": one_line(first)})
        problem.text = printable(
            _details(result, view.blames.get(result.key), view.command(result))
        )
        if result.log:
            ET.SubElement(element, "system-err").text = printable(result.log)
    return element


def _of_fault(fault: FaultResult) -> ET.Element:
    element = _test(fault, f"{fault.fault} on {fault.case}")
    if not fault.caught:
        problem = ET.SubElement(
            element, "failure", {"type": fault.outcome, "message": one_line(fault.reason)}
        )
        problem.text = printable(
            f"expected: {expected_of(fault)}\nfound: {', '.join(fault.by) or 'nothing'} blaming"
            f" {', '.join(fault.blamed) or 'no site'}"
        )
    return element


def _add_properties(element: ET.Element, record: AccuracyRecord) -> None:
    """The accuracy as properties, which CI servers show beside a test."""
    values = {
        "task": record.task,
        "model": record.model,
        "engine": record.engine,
        "dtype": record.dtype,
    }
    if sentence := model_sentence(record):
        values["model-note"] = sentence
    if record.baseline:
        values["baseline"] = f"{record.baseline.accuracy:.4f}"
    for epoch in record.epochs:
        if epoch.num_questions:
            values[f"epoch-{epoch.epoch}-accuracy"] = f"{epoch.accuracy:.4f}"
            values[f"epoch-{epoch.epoch}-interval"] = interval_text(epoch.interval)
    values["statement"] = record.judgement.statement
    properties = ET.SubElement(element, "properties")
    for name, value in values.items():
        ET.SubElement(
            properties, "property", {"name": f"accuracy.{name}", "value": one_line(value, 1000)}
        )


def _details(result: CaseResult, blame: Blame | None, command: str) -> str:
    lines = [result.reason] if result.reason else []
    for finding in result.findings:
        facts = (finding.oracle, finding.tensor, finding.where, finding.bits, finding.site)
        lines.append(" | ".join(fact for fact in facts if fact) + f": {finding.message}")
        lines += [f"  at {finding.at}"] if finding.at else []
    if blame:
        lines.append(f"blame: {blamed(blame)}")
    return "\n".join([*lines, f"reproduce: {command}"])
