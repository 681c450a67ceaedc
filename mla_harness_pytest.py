"""pytest plug-in: collects scenario files, with one test item for each case.

A YAML file is a scenario if it is named on the command line (or in `testpaths`), or if its folder is named there and is
called `scenarios`: `pytest scenarios/`, `pytest my/own.yaml`. Other YAML files are left alone. Cases run in a worker
process: a crash fails one item, and pytest itself imports no torch.

This file is loaded in each session of pytest where the harness is installed. So it imports nothing of the harness until
an option or a file asks for it, and it finds the harness by its own path: the project under test may have a `harness`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from mla_harness_loader import own_names


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of scenario items and of poisoned runs."""
    add = parser.getgroup("mla", "MLA harness").addoption
    add("--mla-device", default="cpu", choices=("cpu", "cuda"), help="device that scenario cases run on")
    add("--mla-seed", type=int, default=0, metavar="N", help="seed of scenario cases (default 0)")
    timeout_help = "time limit of one scenario case (default 60)"
    add("--mla-timeout", type=float, default=60.0, metavar="SECONDS", help=timeout_help)
    plugin_help = "a Python file with kernels, for each scenario that uses their op, beside the kernels that it names"
    add("--mla-plugin", action="append", default=[], metavar="FILE", help=plugin_help)
    shrink_help = "time for shrinking a failing case; 0 shrinks none (default 10)"
    add("--mla-shrink", type=float, default=10.0, metavar="SECONDS", help=shrink_help)
    add = parser.getgroup("poison", "MLA harness: any suite under poison").addoption
    poison_help = "fill unwritten memory in any test suite with one or more of nan,max,inf,random,zeros, or off"
    add("--poison", metavar="PATTERNS", help=poison_help)
    add("--poison-sites", metavar="SITES", help="memory to fill: code,tests,free (default: all three)")
    diff_help = "run each test under two patterns, and compare its asserted tensors"
    add("--poison-diff", action="store_true", help=diff_help)
    parser.addini("poison", "as --poison, for every run; --poison off leaves it out", default="")
    parser.addini("poison_sites", "as --poison-sites", default="")
    parser.addini("poison_diff", "as --poison-diff", type="bool", default=False)
    parser.addini("poison_allow", "code that may leave memory unwritten: path or path:function", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks of a poisoned run if an option asks for one, and the marks."""
    names = ("poison", "poison_sites", "poison_diff")
    if any(getattr(config.option, name) or config.getini(name) for name in names):
        with own_names():
            importlib.import_module("harness.pytest.poison.hooks").register(config, config.option)
    config.addinivalue_line("markers", "poison_ok(reason): run without poison; say why")
    config.addinivalue_line("markers", "gpu: a scenario that needs a CUDA device")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """Collect a YAML file that the command line names."""
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    session, folder = parent.session, file_path.parent
    if not (session.isinitpath(file_path) or (folder.name == "scenarios" and session.isinitpath(folder))):
        return None
    with own_names():
        items = importlib.import_module("harness.pytest.items")
        collected: pytest.File = items.ScenarioFile.from_parent(parent, path=file_path)
        return collected
