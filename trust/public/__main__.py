"""`PUBLIC_KERNELS=FOLDER python -m trust.public [--device cuda] [NAME]...`: judge the public kernels
of `kernels.yaml`, and print the table of docs/data/public-kernels.md.

`--fetch` prints the commands that fill the folder, and runs none of them. A kernel whose package is
not in the folder has a row that says so.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.scenario.load import load_scenarios

HERE = Path(__file__).parent
SEED = "5"
SECONDS_OF_A_CASE = "900"
"""The interpreter takes minutes for a call with many tokens."""


@dataclass(frozen=True, slots=True)
class PublicKernel:
    """A kernel of `kernels.yaml`: `where` is FILE:FUNCTION of its adapter, `source` the package with
    its version or the repository with its commit, `reading` what a human found.
    """

    name: str
    where: str
    op: str
    what: str
    source: str
    reading: str
    needs: str = "interpreter"
    """What it runs on at least: `cpu`, Triton's `interpreter`, or `gpu`."""
    is_installed: bool = False
    """Whether the adapter imports the installed package, and not the folder's."""

    @property
    def file(self) -> Path:
        return HERE / self.where.partition(":")[0]


def public_kernels() -> list[PublicKernel]:
    """The kernels in the order of the table."""
    text = (HERE / "kernels.yaml").read_text(encoding="utf-8")
    return [PublicKernel(name=name, **row) for name, row in yaml.safe_load(text).items()]


def lines_of_adapter(one: PublicKernel) -> tuple[int, int]:
    """Lines of the adapter's function with its decorator, and of what its file shares."""
    tree = ast.parse(one.file.read_text(encoding="utf-8"))
    sizes = {}
    for statement in tree.body[1:]:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(found.lineno for found in decorators)])
        name = getattr(statement, "name", "") if isinstance(statement, ast.FunctionDef) else ""
        sizes[name] = sizes.get(name, 0) + (statement.end_lineno or first) - first + 1
    return sizes[one.where.partition(":")[2]], sizes.get("", 0)


def fetching(one: PublicKernel) -> str:
    """The command that brings the package of a kernel into the folder."""
    package, version = one.source.split(" ")
    if one.is_installed:
        return f"pip install {package}=={version}"
    if "/" in package:
        name = package.partition("/")[2]
        return f"git clone https://github.com/{package} {name} && git -C {name} checkout {version}"
    return f"pip download --no-deps {package}=={version} && unzip -qo {package.replace('-', '_')}-*.whl"


def selectors(one: PublicKernel, device: str) -> list[str]:
    """The scenarios to judge by: all, but for the interpreter, which takes hours for calls with
    many tokens or keys.
    """
    if device != "cpu" or one.needs != "interpreter":
        return []
    slow = {"limits", "conditions"} if one.op == "mla_decode" else {"limits"}
    return [
        scenario.name
        for scenario in load_scenarios()
        if scenario.system == "kernel" and scenario.op == one.op and not slow & {*scenario.tags}
    ]


def judged(one: PublicKernel, device: str) -> tuple[str, str]:
    """The verdict in words, and the cause."""
    if device == "cpu" and one.needs == "gpu":
        return "not run", "needs a GPU"
    command = ["judge", f"{one.file}:{one.where.partition(':')[2]}", *selectors(one, device)]
    options = ["--device", device, "--seed", SEED, "--timeout", SECONDS_OF_A_CASE, "--json"]
    environ = dict(os.environ) | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    found = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *command, *options],
        capture_output=True,
        text=True,
        env=environ,
    )
    if not found.stdout.startswith("{"):
        return "not run", found.stderr.strip().rpartition("\n")[2]
    summary = json.loads(found.stdout)
    told = [f"{count} {word}" for word, count in summary["totals"].items() if count]
    return ", ".join(told), causes(summary)


def causes(summary: dict[str, object]) -> str:
    """Oracle, cause and memory to blame of each kind of finding, once."""
    kinds = []
    for case in summary["cases"]:  # type: ignore[attr-defined]
        for finding in case["findings"][:1]:
            blamed = f" ({', '.join(case['blamed'])})" if case["blamed"] else ""
            kinds.append(f"{finding['oracle']}: {finding['cause']}{blamed}")
    return ", ".join(dict.fromkeys(kinds))


def main(names: list[str], device: str) -> int:
    """Print a row for each kernel. Returns the exit code: 2 if none was judged."""
    print("| kernel | op | version | adapter, lines | seconds | verdict | cause | what it is |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    num_judged = 0
    for one in public_kernels():
        if names and one.name not in names:
            continue
        started = time.monotonic()
        verdict, cause = judged(one, device)
        num_judged += verdict != "not run"
        own, shared = lines_of_adapter(one)
        cells = [
            one.what,
            f"`{one.op}`",
            one.source,
            f"{own} + {shared}",
            f"{time.monotonic() - started:.0f}",
            verdict,
            cause,
            one.reading,
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0 if num_judged else 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--fetch", action="store_true", help="print how to fill the folder")
    given = parser.parse_args()
    if given.fetch:
        print("\n".join(dict.fromkeys(map(fetching, public_kernels()))))
        sys.exit(0)
    sys.exit(main(given.names, given.device))
