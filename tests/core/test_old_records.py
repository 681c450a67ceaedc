"""Records of earlier versions are read, without the fields that they lack."""

from __future__ import annotations

from harness.core.finding_words import kind_of
from harness.core.findings import Finding
from harness.core.records import CaseResult, FirstNan


def test_a_result_without_causes_is_read_and_its_findings_are_kept_apart_by_oracle_site_and_tensor() -> (  # noqa: E501
    None
):
    old = {
        "oracle": "finite",
        "site": "kv.tail",
        "tensor": "out 3",
        "where": "",
        "bits": None,
        "message": "NaN",
    }
    stored = {
        "key": "a",
        "id": "a",
        "scenario": "a",
        "verdict": "fail",
        "reason": "NaN",
        "findings": [old],
    }
    result = CaseResult.model_validate(stored)
    assert result.has_failed
    (finding,) = result.findings
    assert kind_of(finding) == kind_of(Finding(oracle="finite", site="kv.tail", tensor="out 5"))


def test_the_old_name_of_a_missing_report_is_read() -> None:
    assert FirstNan.model_validate({"untold": "rank 1 ended"}).statement == "rank 1 ended"
    assert FirstNan(missing_report="rank 1 ended").model_dump()["missing_report"] == "rank 1 ended"
