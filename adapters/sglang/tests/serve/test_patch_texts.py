"""Each bug that is injected into SGLang, held to the text of every release that has a folder: none
is imported.
"""

from __future__ import annotations

import ast
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.core.catalog import FAULTS
from harness.core.cause_codes import Code
from harness.scenario.expand import expand
from harness.scenario.load import load_scenario, shipped_directory
from mla_harness_adapters.patches import edited_text
from mla_harness_adapters.releases import Renamed
from mla_harness_sglang import releases
from mla_harness_sglang.faults import PATCHES
from mla_harness_sglang.options import engine_options
from mla_harness_sglang.params import SglangParams

ROOT = Path(os.environ.get("MLA_HARNESS_SGLANG_SITES") or "no such folder")
RELEASES = sorted(
    path.name.removeprefix("sglang-")
    for path in ROOT.glob("sglang-*")
    if (path / "sglang").is_dir()
)


def text_of(site: Path, target: str) -> str:
    """The source of the function at "module:Class.function", as its file has it."""
    module, _, path = target.partition(":")
    file = site.joinpath(*module.split(".")).with_suffix(".py")
    source = file.read_text(encoding="utf-8")
    place: ast.AST = ast.parse(source)
    for name in path.split("."):
        nodes = (
            node
            for node in ast.iter_child_nodes(place)
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        )
        place = next(node for node in nodes if node.name == name)
    assert isinstance(place, ast.FunctionDef) and place.end_lineno
    return textwrap.dedent("\n".join(source.splitlines()[place.lineno - 1 : place.end_lineno]))


def test_each_fault_of_the_table_has_a_patch_and_a_release_out_of_range_is_refused() -> None:
    assert set(PATCHES) == {spec.name for spec in FAULTS if spec.name.startswith("sglang.")}
    # 0.5.18 has the code of each; 0.5.19 frees copies, which ends one of them.
    assert all(PATCHES.why_not(fault, "0.5.18") is None for fault in PATCHES)
    newer = [PATCHES.why_not(fault, "0.5.99") for fault in PATCHES]
    assert all(why is not None and why.cause == Code.NO_PATCH for why in newer)


@pytest.mark.parametrize("fault", PATCHES)
@pytest.mark.parametrize("release", RELEASES or [None])
def test_a_patch_finds_its_text_and_what_it_makes_of_it_is_python(
    release: str | None, fault: str
) -> None:
    if release is None:
        pytest.skip("MLA_HARNESS_SGLANG_SITES names no folder with a release")
    patch = PATCHES.find(fault, release)
    if patch.why_not(release):
        return
    for target in {edit.target for edit in patch.edits}:
        after = before = text_of(ROOT / f"sglang-{release}", target)
        for edit in patch.edits:
            if edit.target == target:
                after = edited_text(after, edit)
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


@pytest.mark.parametrize("release", RELEASES or [None])
def test_a_release_has_each_argument_that_it_is_started_with(
    release: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release is None:
        pytest.skip("MLA_HARNESS_SGLANG_SITES names no folder with a release")
    folder = ROOT / f"sglang-{release}/sglang/srt"
    # Since 0.5.20 the fields are put together from several files.
    files = [folder / "server_args.py", *folder.glob("arg_groups/fields/*.py")]
    nodes = [
        node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]
    fields = {
        n.target.id
        for n in nodes
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    monkeypatch.setattr("mla_harness_adapters.base.installed_version", lambda _: release)
    for one in expand(load_scenario(shipped_directory() / "sglang" / "sglang-survey.yaml")):
        params = one.params_as(SglangParams)
        assert not set(engine_options(params, params.graph)) - fields


@pytest.mark.parametrize(
    "place",
    [releases.DECODE_ATTENTION, releases.MERGE_STATE, releases.FP8_KERNELS],
    ids=lambda place: place.names[0].rpartition(".")[2],
)
@pytest.mark.parametrize("release", RELEASES or [None])
def test_a_release_has_the_module_of_each_triton_kernel(
    release: str | None, place: Renamed
) -> None:
    if release is None:
        pytest.skip("MLA_HARNESS_SGLANG_SITES names no folder with a release")
    files = [
        (ROOT / f"sglang-{release}").joinpath(*name.split(".")).with_suffix(".py")
        for name in place.names
    ]
    assert [file for file in files if file.is_file()]


@pytest.mark.parametrize("release", RELEASES or [None])
def test_a_pool_with_the_fault_gives_the_padding_slot_away(release: str | None) -> None:
    if release is None:
        pytest.skip("MLA_HARNESS_SGLANG_SITES names no folder with a release")
    (edit,) = PATCHES.find("sglang.padding-slot-given", release).edits
    text = text_of(ROOT / f"sglang-{release}", edit.target)
    given = {}
    for how, source in (("released", text), ("with the fault", edited_text(text, edit))):
        scope: dict[str, Callable[[SimpleNamespace], None]] = {}
        exec(source, {"torch": torch}, scope)
        scope["clear"](pool := SimpleNamespace(size=4, device="cpu"))
        given[how] = pool.free_pages.tolist()
    assert given == {"released": [1, 2, 3, 4], "with the fault": [0, 1, 2, 3]}
