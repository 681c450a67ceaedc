"""Make a folder of each vLLM release from the package registry, to be judged without a GPU.

    python3 -m pip install mla-harness[vllm-host]
    tools/vllm_host_sites.py SITES 0.21.0 0.24.0 0.33.0
    mla-harness bisect vllm-host --site SITES/vllm-0.21.0 --site SITES/vllm-0.24.0 --site SITES/vllm-0.33.0

Each release is one wheel of about 0.3 GB, of which the Python files are kept (0.06 to 0.17 GB): compiled extensions do
not load without a GPU's libraries, and what the wheel depends on is not installed. A release that is there is left.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)] + ["manylinux1_x86_64"]
"""Tags that vLLM's wheels have had; asked for by name, so that any machine can fetch them."""


def main() -> None:
    """Fetch what is missing; exit code 1 with pip's words when a release cannot be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where the folders are made")
    parser.add_argument("release", nargs="+", help="such as 0.24.0")
    wanted = parser.parse_args()
    for release in wanted.release:
        site = wanted.directory / f"vllm-{release}"
        if site.is_dir():
            print(f"{site}: there already")
            continue
        with tempfile.TemporaryDirectory(dir=_made(wanted.directory)) as scratch:
            # Made whole before it gets its name: a folder that is there is complete.
            kept = Path(scratch) / "kept"
            num_files = _unpack(_fetch(release, Path(scratch)), kept)
            shutil.move(kept, site)
        print(f"{site}: {num_files} files")


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _fetch(release: str, scratch: Path) -> Path:
    """The wheel of a release."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--python-version", "3.12", "--implementation", "cp", "--abi", "abi3", "--abi", "cp312",
        *(word for tag in PLATFORMS for word in ("--platform", tag)), "--dest", str(scratch), f"vllm=={release}",
    ]  # fmt: skip
    done = subprocess.run(command, check=False)
    wheels = list(scratch.glob("vllm-*.whl"))
    if done.returncode or len(wheels) != 1:
        sys.exit(f"vllm=={release} cannot be had from the package registry; see what pip said above")
    return wheels[0]


def _unpack(wheel: Path, site: Path) -> int:
    """Everything of a wheel but its compiled extensions; returns how many files that is."""
    with zipfile.ZipFile(wheel) as archive:
        members = [item for item in archive.infolist() if not item.filename.endswith(".so")]
        archive.extractall(site, members)
    wheel.unlink()
    return len(members)


if __name__ == "__main__":
    main()
