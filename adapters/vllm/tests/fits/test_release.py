"""Names are found through imports, branches and bases, as Python would, without importing
anything.
"""

from __future__ import annotations

from pathlib import Path

import griffe
import pytest

from adapters.vllm.tests.fits.conftest import Maker
from adapters.vllm.tests.fits.release import Release
from harness.core.errors import InputError
from tests.transcripts import Approved

FILES = {
    "vllm/__init__.py": "import typing\nif typing.TYPE_CHECKING:\n    from vllm.entry.llm import LLM\n",  # noqa: E501
    "vllm/entry/llm.py": "class LLM:\n    def __init__(self, model, *, seed=0, **kwargs): ...\n",
    "vllm/ops/__init__.py": "from ._core import *\n",
    "vllm/ops/_core.py": (
        "try:\n    from vllm.compiled import decode\nexcept ImportError:\n    decode = None\n"
        "def merge(out, lse): ...\n"
    ),
    "vllm/compiled.py": "def decode(q, *, scale): ...\n",
    "vllm/runner.py": (
        "from torch import nn\nfrom . import mixin\nfrom .mixin import Mixin\n\n\nclass Runner(Mixin, nn.Module):\n"  # noqa: E501
        "    kind: str = 'gpu'\n"
        "    def load(self):\n        self.model, self.other = 1, 2\n        self.cache: dict = {}\n"  # noqa: E501
        "    class Inner:\n        size: int\n"
    ),
    "vllm/mixin.py": (
        "class Mixin:\n    def execute(self, step, *args): ...\n    def set(self):\n        self.plan = 0\n"  # noqa: E501
    ),
}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("vllm:LLM", griffe.Class),
        ("vllm.ops:merge", griffe.Function),
        ("vllm.ops:decode", griffe.Function),
        ("vllm.runner:Runner.load", griffe.Function),
        ("vllm.runner:Runner.execute", griffe.Function),
        ("vllm.runner:Runner.Inner", griffe.Class),
        ("vllm.runner:mixin.Mixin", griffe.Class),
    ],
)
def test_a_name_is_found_where_it_is_defined(path: str, kind: type, release: Maker) -> None:
    assert isinstance(release(FILES).find(path), kind)


@pytest.mark.parametrize(
    "path", ["vllm:Llm", "vllm.ops:decoder", "vllm.gone:x", "vllm.runner:Runner.gone"]
)
def test_a_name_that_is_not_there_is_not_found(path: str, release: Maker) -> None:
    assert release(FILES).find(path) is None


def test_a_name_of_another_package_is_taken_to_be_there(release: Maker) -> None:
    assert isinstance(release(FILES).find("vllm.runner:nn"), griffe.Alias)


def test_a_name_is_found_in_the_first_folder_that_has_its_package(
    release: Maker, tmp_path: Path
) -> None:
    release(FILES)
    beside = tmp_path / "beside" / "flashinfer"
    beside.mkdir(parents=True)
    (beside / "__init__.py").write_text("from vllm.ops import merge\n", encoding="utf-8")
    both = Release.at(f"{tmp_path}:{beside.parent}")
    assert both.has("flashinfer") and not Release.at(str(tmp_path)).has("flashinfer")
    assert isinstance(both.find("flashinfer:merge"), griffe.Function)


def test_objects_have_what_their_class_its_bases_and_their_methods_give_them(
    release: Maker,
) -> None:
    runner = release(FILES).find("vllm.runner:Runner")
    assert isinstance(runner, griffe.Class)
    assert set(runner.all_members) == {
        "kind",
        "load",
        "Inner",
        "model",
        "other",
        "cache",
        "execute",
        "set",
        "plan",
    }


def test_only_modules_that_are_asked_for_are_read(release: Maker) -> None:
    made = release({**FILES, "vllm/broken.py": "match = = 2\n"})
    assert made.find("vllm.runner:Runner.execute") is not None


def test_the_source_of_a_function_has_its_decorators_and_no_margin(release: Maker) -> None:
    text = "class A:\n    @staticmethod\n    def f():\n        return 1\n"
    found = release({"vllm/a.py": text}).find("vllm.a:A.f")
    assert found is not None and found.source == "@staticmethod\ndef f():\n    return 1"


def test_a_circle_of_imports_ends(release: Maker) -> None:
    files = {"vllm/a.py": "from vllm.b import x\n", "vllm/b.py": "from vllm.a import x\n"}
    assert release(files).find("vllm.a:x") is None


def test_a_folder_without_a_release_is_refused_in_one_line(
    tmp_path: Path, approved: Approved
) -> None:
    with approved.raises(InputError):
        Release.at(str(tmp_path))


def test_a_file_for_a_newer_python_is_named_in_one_line(release: Maker, approved: Approved) -> None:
    with approved.raises(InputError):
        release({"vllm/new.py": "x = 1\nmatch = = 2\n"}).find("vllm.new:x")
