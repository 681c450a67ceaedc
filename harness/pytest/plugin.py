"""pytest plug-in: each scenario file is collected, each of its cases is a test item, its id is the case id.

A YAML file is taken for a scenario when it is named on the command line (or in `testpaths`), or when a folder called
`scenarios` that holds it is: `pytest scenarios/`, `pytest my/own.yaml`. Any other YAML file is left alone, because
this plug-in is loaded wherever the harness is installed. Cases run in a worker process, so a
crash is one item's failure and torch is never imported by pytest itself.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import HarnessError

DEVICE_OPTION = "--mla-device"
SEED_OPTION = "--mla-seed"
TIMEOUT_OPTION = "--mla-timeout"
POISON_OPTION = "--poison"
POISON_SITES_OPTION = "--poison-sites"
POISON_DIFF_OPTION = "--poison-diff"
SHRINK_OPTION = "--mla-shrink"
PLUGIN_OPTION = "--mla-plugin"
POISON_HOOKS = "harness.pytest.poison.hooks"
ITEMS = "harness.pytest.items"
"""Both are loaded by their names when they are needed: this file is loaded wherever the harness is installed."""

POOL: pytest.StashKey[Any] = pytest.StashKey()
POISONED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of scenario items; without scenario items they do nothing."""
    group = parser.getgroup("mla", "MLA harness")
    group.addoption(DEVICE_OPTION, default="cpu", choices=("cpu", "cuda"), help="device that scenario cases run on")
    group.addoption(SEED_OPTION, type=int, default=0, metavar="N", help="seed of scenario cases (default 0)")
    group.addoption(
        TIMEOUT_OPTION, type=float, default=60.0, metavar="SECONDS", help="time limit of one scenario case (default 60)"
    )
    group.addoption(
        PLUGIN_OPTION,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with kernels that scenarios name",
    )
    group.addoption(
        SHRINK_OPTION, type=float, default=10.0, metavar="SECONDS",
        help="how long the smallest case of a failure is sought; 0 seeks none (default 10)",
    )  # fmt: skip
    own = parser.getgroup("poison", "MLA harness: any suite under poison")
    own.addoption(
        POISON_OPTION, metavar="PATTERNS",
        help="run the tests of any suite with unwritten memory filled: nan,max,inf,random,zeros, one or several",
    )  # fmt: skip
    own.addoption(POISON_SITES_OPTION, metavar="SITES", help="memory to fill: code,tests,free (default: all three)")
    own.addoption(
        POISON_DIFF_OPTION, action="store_true",
        help="run each test under two patterns, and compare the tensors it asserts on",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the poison before the first conftest.py imports torch's comparing functions."""
    _start_poison(early_config, early_config.known_args_namespace)


def _start_poison(config: pytest.Config, options: Any) -> None:
    """Register the hooks of a poisoned run, once, if an option asks for one."""
    if not (options.poison or options.poison_sites or options.poison_diff) or config.stash.get(POISONED, False):
        return
    config.stash[POISONED] = True
    try:
        importlib.import_module(POISON_HOOKS).register(config, options)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the tag that selects cases for a GPU, so that `-m gpu` is understood where no case has it."""
    _start_poison(config, config.option)  # where a conftest.py loads this plug-in, this is its first hook
    config.addinivalue_line("markers", "gpu: a scenario that needs a CUDA device")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """Collect a YAML file that was asked for."""
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    session, folder = parent.session, file_path.parent
    if not (session.isinitpath(file_path) or (folder.name == "scenarios" and session.isinitpath(folder))):
        return None
    collected: pytest.File = importlib.import_module(ITEMS).ScenarioFile.from_parent(parent, path=file_path)
    return collected


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker process, if any case started one."""
    pool = config.stash.get(POOL, None)
    if pool is not None:
        pool.close()
