"""Each bug that is put back, held to the text of every release that has a folder: no vLLM is
imported for it.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import griffe
import pytest

from adapters.vllm.tests.fits.release import Release
from harness.core.cause_codes import Code
from mla_harness_adapters.patches import edited_text
from mla_harness_adapters.releases import release_of
from mla_harness_vllm.faults import PATCHES

ROOT = Path(os.environ.get("MLA_HARNESS_VLLM_SITES") or "no such folder")
RELEASES = sorted(
    path.name.removeprefix("vllm-") for path in ROOT.glob("vllm-*") if (path / "vllm").is_dir()
)


def text_of(site: Path, target: str) -> str:
    """The source of the function at "module:Class.function", as its file has it."""
    found = Release([site]).find(target)
    assert isinstance(found, griffe.Function), target
    return found.source


@pytest.mark.parametrize("fault", PATCHES)
@pytest.mark.parametrize("release", RELEASES or [None])
def test_a_patch_finds_its_text_in_each_release_of_its_range_and_what_it_makes_of_it_is_python(
    release: str | None, fault: str
) -> None:
    if release is None:
        pytest.skip(
            "MLA_HARNESS_VLLM_SITES names no folder with a release: adapters.shared.tests.download"
        )
    patch = PATCHES.find(fault, release)
    if reason := patch.why_not(release):
        # Older code may lack what the bug is in.
        is_older = release_of(release) < release_of(PATCHES[fault][0].first)
        assert reason.cause == Code.AS_RELEASED or is_older
        return
    for target in {edit.target for edit in patch.edits}:
        before = text_of(ROOT / f"vllm-{release}", target)
        after = before
        for edit in patch.edits:
            if edit.target == target:
                after = edited_text(after, edit)
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
