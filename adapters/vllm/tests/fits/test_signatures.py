"""A call, or a declaration of ours, is checked against the parameters of a function in a
release.
"""

from __future__ import annotations

import griffe
import pytest

from adapters.vllm.tests.fits.calls import Call, declared, mismatches, parameters
from adapters.vllm.tests.fits.conftest import Maker
from tests.transcripts import Approved

FILES = {
    "vllm/ops.py": "def decode(q, cache=None, *, scale): ...\n",
    "vllm/config.py": (
        "from dataclasses import dataclass\nfrom typing import ClassVar\n\n\n@dataclass\nclass Base:\n    a: int\n\n\n"  # noqa: E501
        "@dataclass\nclass Config(Base):\n    known: ClassVar[int] = 3\n    b: int = 2\n    kind = 'gpu'\n"  # noqa: E501
        "    @property\n    def c(self) -> int: ...\n    def use(self): self.d: int = 1\n"
    ),
    "vllm/made.py": (
        "class Base:\n    def __init__(self, size): ...\n\n\nclass Made(Base):\n    kind: str\n"
        "    @staticmethod\n    def of(text): ...\n    @classmethod\n    def at(cls, text): ...\n"
    ),
    "vllm/ours.py": (
        "class Ours:\n"
        "    def same(self, q, cache, *, scale): ...\n"
        "    def wrapping(self, q, *args, **kwargs): ...\n"
        "    def renamed(self, query, cache, *, scale): ...\n"
        "    def longer(self, q, cache, table, *, scale): ...\n"
        "    def shorter(self, q): ...\n"
        "    def unknown(self, *, scale, splits): ...\n"
    ),
}


def taken(release: Maker, path: str) -> list[griffe.Parameter] | None:
    found = release(FILES).find(path)
    assert found is not None
    return parameters(found)


def test_a_call_that_suits_the_parameters_has_no_mismatch(release: Maker) -> None:
    for call in (
        Call("", ("",), ("scale",)),
        Call("", (), ("q", "cache", "scale")),
        Call("", (), (), is_open=True),
    ):
        assert mismatches(call, taken(release, "vllm.ops:decode")) == []


def test_a_call_must_suit_the_parameters(release: Maker, approved: Approved) -> None:
    for name, call in {
        "three by position": Call("", ("", "", ""), ("scale",)),
        "an unknown name": Call("", ("",), ("scale", "table")),
        "no scale": Call("", ("",), ()),
    }.items():
        assert mismatches(call, None) == []
        approved(mismatches(call, taken(release, "vllm.ops:decode")), name)


def test_a_declaration_must_have_the_names_and_places(release: Maker, approved: Approved) -> None:
    def wrong(name: str) -> list[str]:
        ours = release(FILES).find(f"vllm.ours:Ours.{name}")
        assert ours is not None
        return mismatches(declared(ours), taken(release, "vllm.ops:decode"))

    assert wrong("same") == wrong("wrapping") == []
    for name in ("renamed", "longer", "shorter", "unknown"):
        approved(wrong(name), name)


def test_fields_of_a_dataclass_are_what_its_constructor_takes(release: Maker) -> None:
    fields = taken(release, "vllm.config:Config")
    assert fields is not None and [(one.name, one.required) for one in fields] == [
        ("a", True),
        ("b", False),
    ]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("vllm.made:Made", ["size"]),
        ("vllm.made:Made.of", ["text"]),
        ("vllm.made:Made.at", ["text"]),
    ],
)
def test_self_is_not_among_the_parameters(path: str, names: list[str], release: Maker) -> None:
    assert [one.name for one in taken(release, path) or []] == names


def test_what_is_neither_a_function_nor_a_class_has_no_parameters(release: Maker) -> None:
    assert taken(release, "vllm.config:Config.c") is None
