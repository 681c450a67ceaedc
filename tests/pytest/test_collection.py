"""Cases are items with their case ids as names."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scenario.expand import expand
from harness.scenario.load import load_scenario


def test_ids_of_items_are_case_ids_in_order(project: pytest.Pytester, merge: Path) -> None:
    done = project.runpytest_subprocess("--collect-only", "-q", "scenarios/")
    ids = [line.partition("::")[2] for line in done.outlines if "::" in line]
    assert ids == [case.id for case in expand(load_scenario(merge))]


def test_one_case_is_run_by_its_node_id(project: pytest.Pytester, merge: Path) -> None:
    project.runpytest_subprocess("scenarios/merge.yaml::merge[num_tokens=9]").assert_outcomes(passed=1)


def test_file_named_on_the_command_line_is_collected_wherever_it_is(project: pytest.Pytester, merge: Path) -> None:
    moved = merge.rename(project.path / "elsewhere.yml")
    done = project.runpytest_subprocess("--collect-only", "-q", str(moved))
    done.stdout.fnmatch_lines(["*merge?num_tokens=12?"])


@pytest.mark.parametrize("arguments", [(), (".",), ("tests",)])
def test_yaml_that_nobody_asked_for_is_left_alone(
    project: pytest.Pytester, merge: Path, arguments: tuple[str, ...]
) -> None:
    tests = project.mkdir("tests")
    (tests / "test_own.py").write_text("def test_own(): pass\n", encoding="utf-8")
    for folder in (project.path, tests):
        (folder / "compose.yaml").write_text("services: {}\n", encoding="utf-8")
    project.runpytest_subprocess(*arguments).assert_outcomes(passed=1)


@pytest.mark.nightly
def test_with_a_plug_in_an_accuracy_case_needs_its_tag_as_on_the_command_line(pytester: pytest.Pytester) -> None:
    shipped = Path(__file__).parents[2] / "scenarios" / "kv-cache-full.yaml"
    path = pytester.makepyfile(
        my_kernel="""
        from harness import kernel

        @kernel(op="mla_decode", name="mine", devices=("cpu",))
        def mine(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None): ...
    """
    )
    options = ("--collect-only", "-q", f"--mla-plugin={path}", str(shipped))
    plain = pytester.runpytest_subprocess(*options).stdout
    plain.fnmatch_lines(["*kv-cache-full[[]kernel=mine,*"])
    plain.no_fnmatch_line("*accuracy=*")
    tagged = pytester.runpytest_subprocess(*options, "-m", "accuracy").stdout
    tagged.fnmatch_lines(["*kv-cache-full[[]kernel=mine,*accuracy=*"])
