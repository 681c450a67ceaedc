"""`benchmarks/padded_first_drafts.py`: the placeholders that vLLM counts as refused drafts, release
by release.
"""

from __future__ import annotations

import pytest

from adapters.vllm.tests.host.test_serving_poison import ROOT, told_by

COUNTED = "request 1 after 0 tokens: 0 of 3"
NONE = "every counted draft is accepted"


@pytest.mark.parametrize(("release", "code", "says"), [("0.31.0", 0, NONE), ("0.33.0", 1, COUNTED)])
def test_placeholders_are_counted_since_a_prompt_can_be_cached_to_its_last_token(
    release: str, code: int, says: str
) -> None:
    script = f"""
import contextlib, io, json, runpy
lines, code = io.StringIO(), None
with contextlib.redirect_stdout(lines):
    try:
        runpy.run_path({str(ROOT / "benchmarks" / "padded_first_drafts.py")!r}, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
print(json.dumps({{"code": code, "lines": lines.getvalue().splitlines()}}))
"""
    told = told_by(release, "-c", script)
    wanted = [f"asynchronous scheduling {is_async}: {says}" for is_async in (False, True)]
    assert told == {"code": code, "lines": [f"vLLM {release}", *wanted]}
