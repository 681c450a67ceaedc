"""pytest plug-in: `--poison` fills unwritten memory in any test suite.

This file is loaded in each session of pytest where the package is installed. So it imports nothing
else of the package, and no torch, until an option asks for it.
"""

from __future__ import annotations

import importlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of poisoned runs."""
    add = parser.getgroup("poison", "torch-poison: any suite under poison").addoption
    poison_help = (
        "fill unwritten memory in any test suite with one or more of nan,max,inf,random,zeros,"
        " or off"
    )
    add("--poison", metavar="PATTERNS", help=poison_help)
    add(
        "--poison-sites",
        metavar="SITES",
        help="memory to fill: code,tests,free (default: all three)",
    )
    diff_help = "run each test under two patterns, and compare its asserted tensors"
    add("--poison-diff", action="store_true", help=diff_help)
    parser.addini("poison", "as --poison, for every run; --poison off leaves it out", default="")
    parser.addini("poison_sites", "as --poison-sites", default="")
    parser.addini("poison_diff", "as --poison-diff", type="bool", default=False)
    parser.addini(
        "poison_allow",
        "code that may leave memory unwritten: path or path:function",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks of a poisoned run if an option asks for one, and the marks."""
    names = ("poison", "poison_sites", "poison_diff")
    if any(getattr(config.option, name) or config.getini(name) for name in names):
        importlib.import_module("torch_poison.suite.hooks").register(config, config.option)
    config.addinivalue_line("markers", "poison_ok(reason): run without poison; say why")
