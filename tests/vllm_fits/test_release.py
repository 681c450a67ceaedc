"""Names are found through imports, branches and bases, as Python would, without importing anything."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.engines.vllm.fits.release import Release
from harness.engines.vllm.fits.signatures import parameters
from tests.vllm_fits.conftest import Maker

FILES = {
    "vllm/__init__.py": "import typing\nif typing.TYPE_CHECKING:\n    from vllm.entry.llm import LLM\n",
    "vllm/entry/llm.py": "class LLM:\n    def __init__(self, model, *, seed=0, **kwargs): ...\n",
    "vllm/ops/__init__.py": "from ._core import *\n",
    "vllm/ops/_core.py": (
        "try:\n    from vllm.compiled import decode\nexcept ImportError:\n    decode = None\n"
        "def merge(out, lse): ...\n"
    ),
    "vllm/compiled.py": "def decode(q, *, scale): ...\n",
    "vllm/runner.py": (
        "from torch import nn\nfrom .mixin import Mixin\n\n\nclass Runner(Mixin, nn.Module):\n"
        "    kind: str = 'gpu'\n"
        "    def load(self):\n        self.model, self.other = 1, 2\n        self.cache: dict = {}\n"
        "    class Inner:\n        size: int\n"
    ),
    "vllm/mixin.py": (
        "class Mixin:\n    def execute(self, step, *args): ...\n    def set(self):\n        self.plan = 0\n"
    ),
    "vllm/config.py": (
        "from dataclasses import dataclass\nfrom typing import ClassVar\n\n\n@dataclass\nclass Base:\n    a: int\n\n\n"
        "@dataclass\nclass Config(Base):\n    known: ClassVar[int] = 3\n    b: int = 2\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("vllm:LLM", ast.ClassDef),
        ("vllm.ops:merge", ast.FunctionDef),
        ("vllm.ops:decode", ast.FunctionDef),
        ("vllm.runner:Runner.load", ast.FunctionDef),
        ("vllm.runner:Runner.execute", ast.FunctionDef),
        ("vllm.runner:Runner.Inner", ast.ClassDef),
    ],
)
def test_a_name_is_found_where_it_is_defined(path: str, kind: type, release: Maker) -> None:
    found = release(FILES).find(path)
    assert found is not None and isinstance(found.node, kind)


@pytest.mark.parametrize("path", ["vllm:Llm", "vllm.ops:decoder", "vllm.gone:x", "vllm.runner:Runner.gone"])
def test_a_name_that_is_not_there_is_not_found(path: str, release: Maker) -> None:
    assert release(FILES).find(path) is None


def test_what_another_package_has_is_there_and_not_looked_into(release: Maker) -> None:
    found = release(FILES).find("vllm.runner:nn")
    assert found is not None and found.node is None


def test_objects_have_what_their_class_its_bases_and_their_methods_give_them(release: Maker) -> None:
    made = release(FILES)
    runner = made.find("vllm.runner:Runner")
    assert runner is not None
    assert made.attributes(runner) == {"kind", "load", "Inner", "model", "other", "cache", "execute", "set", "plan"}


def test_fields_of_a_dataclass_are_what_its_constructor_takes(release: Maker) -> None:
    made = release(FILES)
    config = made.find("vllm.config:Config")
    assert config is not None
    taken = parameters(made, config)
    assert taken is not None and taken.positional == ("a", "b") and taken.required == {"a"}


def test_a_circle_of_imports_ends(release: Maker) -> None:
    files = {"vllm/a.py": "from vllm.b import x\n", "vllm/b.py": "from vllm.a import x\n"}
    assert release(files).find("vllm.a:x") is None


def test_a_folder_without_a_release_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no vllm-\*\.dist-info .*vllm_host_sites"):
        Release.at(str(tmp_path))


def test_a_file_for_a_newer_python_is_named_in_one_line(release: Maker) -> None:
    with pytest.raises(InputError, match=r"new\.py: this Python cannot read line 2"):
        release({"vllm/new.py": "x = 1\nmatch = = 2\n"}).find("vllm.new:x")
