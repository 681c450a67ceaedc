"""Differences between releases as data: ranges of versions, names that moved, and cases that some
releases do not serve.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.core.errors import Refused
from mla_harness_adapters import releases
from mla_harness_adapters.releases import Has, HasText, NotServed, Releases, Renamed
from tests.transcripts import Approved


@pytest.mark.parametrize(
    ("version", "is_in"),
    [
        ("0.21.9", False),
        ("0.22", True),
        ("0.22.1rc1", True),
        ("0.23.0", False),
        ("a fork", False),
    ],
)
def test_a_range_has_its_first_release_and_not_its_last(version: str, is_in: bool) -> None:
    assert (version in Releases("0.22", "0.23")) is is_in


def test_an_end_that_is_left_out_is_open() -> None:
    assert "99" in Releases("0.22") and "0.1" in Releases(last="0.22")
    # A version that states no number counts as the oldest.
    assert "unknown" in Releases(last="0.22") and "unknown" not in Releases("0.22")


def test_the_value_of_a_table_is_that_of_the_version() -> None:
    table = {Releases(last="0.5.14"): "old", Releases("0.5.14"): "new"}
    assert releases.of_release("0.5.13", table) == "old"
    assert releases.of_release("0.5.14", table) == "new"
    with pytest.raises(KeyError):
        releases.of_release("0.1", {Releases("0.5"): "new"})


def test_a_case_is_refused_by_its_parameters_and_its_release_together(approved: Approved) -> None:
    limits = (NotServed(lambda params: params == "full", "has no graphs", Releases(last="0.22")),)
    why = NotServed.why_not(limits, "Engine", "0.21.0", "full")
    approved(str(why))
    assert NotServed.why_not(limits, "Engine", "0.22.0", "full") is None
    assert NotServed.why_not(limits, "Engine", "0.21.0", "none") is None


def test_a_name_that_moved_is_found_under_the_newest_that_is_there(approved: Approved) -> None:
    renamed = Renamed(("new", "old"), lacks="engine has no such thing")
    assert renamed.of(SimpleNamespace(new=1, old=2)) == 1
    assert renamed.of(SimpleNamespace(old=2)) == 2
    with approved.raises(Refused):
        renamed.of(SimpleNamespace())
    assert renamed.value(SimpleNamespace(new=None, old=2)) == 2
    assert renamed.value(SimpleNamespace(), "nothing") == "nothing"


def test_an_argument_that_was_renamed_is_given_by_the_name_that_the_function_has(
    approved: Approved,
) -> None:
    def older(*, is_insert: bool) -> None: ...

    renamed = Renamed(("checkpoint", "is_insert"))
    assert renamed.argument_of(older) == "is_insert"
    with approved.raises(Refused):
        renamed.argument_of(lambda: None)


def test_a_module_is_the_first_that_is_there_and_its_own_errors_are_no_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "older_place.py").write_text("HERE = 1\n")
    assert Renamed(("newer_place.inside", "older_place")).module().HERE == 1
    with approved.raises(Refused):
        Renamed(("newer_place",)).module()
    (tmp_path / "newer_place.py").write_text("import a_package_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        Renamed(("newer_place", "older_place")).module()
    assert caught.value.name == "a_package_that_is_missing"
    sys.modules.pop("older_place")


def test_what_a_release_has_is_told_by_a_name_a_parameter_a_module_or_a_text() -> None:
    assert Has("real", "").of(3) and Has("real", "").value(3) == 3
    assert not Has("unreal", "").of(3) and Has("unreal", "").value(3, 7) == 7
    assert Has("version", "").is_argument(releases.release_of)
    assert not Has("release", "").is_argument(releases.release_of)
    assert Has("json.decoder", "").is_module() and not Has("no_such.package", "").is_module()
    assert HasText("Three numbers of a version", "").of(releases.release_of)
    assert not HasText("four numbers", "").of(releases.release_of)
