"""Stand-ins for what SGLang imports and a CPU cannot have: they import, and refuse to give a
value.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from mla_harness_sglang.host import stand_ins
from tests.transcripts import Approved


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-ins, for one test, under names that nothing else imports."""
    names = {"none_compiled": "", "none_pinned.parts": ""}
    monkeypatch.setattr(stand_ins, "STAND_INS", names)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    stand_ins.install()
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_that_derives_decorates_and_annotates_is_imported(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    (tmp_path / "uses_them.py").write_text(
        "import none_compiled.ops as ops\n"
        "from none_compiled import Base, register\n"
        "class Mine(Base.Inner, metaclass=type(Base)):\n"
        "    def ask(self): return ops.answer(1)\n"
        "@register\n"
        "def kept(x: Base | None) -> ops.Thing: return x\n"
        "made = ops.build('x')\n"
        "def test(): return bool(made)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("uses_them")
    assert module.kept(3) == 3, "a decorator gives back what it was given"
    with approved.raises(stand_ins.StandInUsed):
        importlib.import_module("none_compiled.ops").answer(1)
    kind = importlib.import_module("none_compiled").Kind
    assert kind.FIRST == kind.FIRST and kind.FIRST != kind.SECOND
    with pytest.raises(stand_ins.StandInUsed):
        bool(kind.FIRST == "first")
    with approved.raises(stand_ins.StandInUsed):
        module.test()


def test_a_field_of_a_stand_ins_type_accepts_no_value(installed: None) -> None:
    kind = importlib.import_module("none_compiled").Structure
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python({"a": 1})


def test_only_the_named_modules_are_stand_ins(installed: None) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("none_pinned")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("none_compiled_too")


def test_nothing_is_replaced_unless_it_is_installed() -> None:
    words = (
        "import mla_harness_sglang.host.stand_ins, sys; print([type(f).__name__ for f in"
        " sys.meta_path])"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert "_Finder" not in done.stdout
