"""Files and folders of scenarios as they are read from disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.scenario import load
from harness.scenario.load import (
    MAX_BYTES,
    MAX_VALUES,
    default_directory,
    load_scenario,
    load_scenarios,
    read_document,
    shipped_directory,
)
from tests.transcripts import Approved

GOOD = "name: {name}\nsummary: a scenario\nsystem: kernel\nop: merge_attn_states\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_scenarios_come_in_the_order_of_their_file_names(tmp_path: Path) -> None:
    write(tmp_path, "b", GOOD.format(name="first"))
    write(tmp_path, "a", GOOD.format(name="second"))
    assert [scenario.name for scenario in load_scenarios(tmp_path)] == ["second", "first"]


def test_two_files_with_one_name_are_refused_and_both_are_named(
    tmp_path: Path, approved: Approved
) -> None:
    write(tmp_path, "a", GOOD.format(name="x"))
    write(tmp_path, "b", "# a comment\n" + GOOD.format(name="x"))
    with pytest.raises(InputError) as caught:
        load_scenarios(tmp_path)
    approved(str(caught.value))


def test_a_file_is_checked_once_unless_it_changes_or_a_kernel_is_registered(tmp_path: Path) -> None:
    path = write(tmp_path, "x", GOOD.format(name="x"))
    first = load_scenario(path)
    assert load_scenario(path) is first
    with KERNELS.scoped(replace(KERNELS.get("merge_attn_states/torch"), short_name="mine")):
        assert load_scenario(path) is not first
    write(tmp_path, "x", GOOD.format(name="y"))
    assert load_scenario(path).name == "y"


def test_folder_that_does_not_exist_is_refused(tmp_path: Path, approved: Approved) -> None:
    with approved.raises(InputError):
        load_scenarios(tmp_path / "nowhere")


def test_folder_without_scenarios_is_refused(tmp_path: Path, approved: Approved) -> None:
    with approved.raises(InputError):
        load_scenarios(tmp_path)


def test_folder_in_the_place_of_a_file_is_refused(tmp_path: Path, approved: Approved) -> None:
    (tmp_path / "x.yaml").mkdir()
    with approved.raises(InputError):
        load_scenarios(tmp_path / "x.yaml")


def test_folders_in_a_folder_are_read_and_the_order_is_that_of_file_names(tmp_path: Path) -> None:
    for folder in ("z", "m/deep"):
        (tmp_path / folder).mkdir(parents=True)
    write(tmp_path, "b", GOOD.format(name="flat"))
    write(tmp_path / "z", "a", GOOD.format(name="nested"))
    write(tmp_path / "m" / "deep", "deep", GOOD.format(name="deep"))
    assert [s.name for s in load_scenarios(tmp_path)] == ["nested", "flat", "deep"]
    assert [s.name for s in load_scenarios(tmp_path, only="deep")] == ["deep"]


def test_a_name_is_unique_over_all_folders(tmp_path: Path, approved: Approved) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "same", GOOD.format(name="x"))
    with approved.raises(InputError):
        load_scenarios(tmp_path)


def test_hidden_folders_hold_no_scenarios(tmp_path: Path) -> None:
    (tmp_path / ".github").mkdir()
    write(tmp_path / ".github", "workflow", "jobs: {}\n")
    write(tmp_path, "x", GOOD.format(name="x"))
    assert [s.name for s in load_scenarios(tmp_path)] == ["x"]


def test_linked_folders_are_read_once_and_a_loop_of_links_ends(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    write(theirs, "x", GOOD.format(name="x"))
    for name in ("one", "two"):
        (mine / name).symlink_to(theirs)
    (theirs / "again").symlink_to(mine)
    assert [s.name for s in load_scenarios(mine)] == ["x"]


def test_a_folder_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    (tmp_path / "closed").mkdir()
    write(tmp_path, "x", GOOD.format(name="x"))
    listed = os.scandir

    def scandir(place: str) -> Any:
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with approved.raises(InputError):
        load_scenarios(tmp_path)


def test_file_larger_than_any_scenario_is_refused_before_it_is_parsed(
    tmp_path: Path, approved: Approved
) -> None:
    path = write(tmp_path, "x", "#" * (MAX_BYTES + 1))
    with approved.raises(InputError):
        load_scenario(path)


def test_file_with_more_values_than_any_scenario_is_refused(
    tmp_path: Path, approved: Approved
) -> None:
    path = write(tmp_path, "x", GOOD.format(name="x") + "tags: [" + "a, " * MAX_VALUES + "a]\n")
    with approved.raises(InputError):
        load_scenario(path)


def test_python_objects_are_neither_built_nor_called(tmp_path: Path) -> None:
    path = write(tmp_path, "x", f"name: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n")
    with pytest.raises(InputError, match="is not allowed"):
        load_scenario(path)
    assert not (tmp_path / "made").exists()


def test_on_off_yes_no_and_dates_are_words(tmp_path: Path) -> None:
    path = write(tmp_path, "x", "on: off\nyes: 2026-01-01\nno: 1:30\ntrue: 0x10\n")
    assert read_document(path.read_bytes()).data == {
        "on": "off",
        "yes": "2026-01-01",
        "no": "1:30",
        "true": "0x10",
    }


def test_numbers_booleans_and_nothing_are_what_they_look_like() -> None:
    found = read_document(b"a: 12\nb: -3\nc: true\nd: ~\ne: 1.5\nf: '12'\ng: +inf\n")
    assert found.data == {"a": 12, "b": -3, "c": True, "d": None, "e": 1.5, "f": "12", "g": "+inf"}


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.format(name="x").replace("\n", "\r\n").encode())
    assert load_scenario(path).name == "x"


def test_first_problem_of_the_file_is_the_one_reported(tmp_path: Path, approved: Approved) -> None:
    path = write(tmp_path, "x", GOOD.format(name="X Y") + "matrx: {}\n")
    with approved.raises(InputError):
        load_scenario(path)


def test_own_folder_of_scenarios_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_directory() == shipped_directory()
    os.mkdir("scenarios")
    assert default_directory() == Path("scenarios")


def test_one_scenario_is_read_alone_and_a_file_of_another_name_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, inside in (("one", "one"), ("two", "two"), ("other", "third")):
        text = f"name: {inside}\nsummary: x\nsystem: kernel\nop: write_kv\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    read: list[str] = []
    whole = load.load_record

    def load_record(path: Path, model: Any) -> Any:
        read.append(path.stem)
        return whole(path, model)

    monkeypatch.setattr(load, "load_record", load_record)
    assert [s.name for s in load_scenarios(tmp_path, only="two")] == ["two"] and read == ["two"]
    for name in ("other", "absent", ""):
        assert [s.name for s in load_scenarios(tmp_path, only=name)] == ["one", "third", "two"]


def test_parameters_are_left_unchecked_in_shipped_scenarios_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    write(tmp_path, "x", GOOD.format(name="x") + "params: {num_head: 2}\n")
    with approved.raises(InputError):
        load_scenarios(tmp_path, whole=lambda name: False)
    monkeypatch.setattr(load, "shipped_directory", lambda: tmp_path)
    assert [scenario.name for scenario in load_scenarios(tmp_path, whole=lambda name: False)] == [
        "x"
    ]
