"""Download releases of vLLM into folders, to judge them without a GPU.

    python3 -m pip install -c constraints.txt '.[vllm-host]'
    python -m harness.engines.vllm.download SITES 0.21.0 0.24.0 0.33.0
    mla-harness bisect vllm-host --site SITES/vllm-0.21.0 --site SITES/vllm-0.24.0 --site SITES/vllm-0.33.0

Each release is one wheel of about 0.3 GB. Its Python files are kept (0.06 to 0.17 GB) without its compiled extensions,
which need a GPU's libraries. Its dependencies are not installed. A folder that exists is left as it is.
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
"""Tags of vLLM's wheels. They are given to pip so that any machine can download the wheels."""


def main() -> None:
    """The command line. Exit code 1, after pip's message, if a release cannot be downloaded."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.engines.vllm.download", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("directory", type=Path, help="where the folders are made")
    parser.add_argument("release", nargs="+", help="such as 0.24.0")
    wanted = parser.parse_args()
    wanted.directory.mkdir(parents=True, exist_ok=True)
    for release in wanted.release:
        site = wanted.directory / f"vllm-{release}"
        if site.is_dir():
            print(f"{site}: there already")
            continue
        with tempfile.TemporaryDirectory(dir=wanted.directory) as scratch:
            # The folder gets its name when it is complete.
            kept = Path(scratch) / "kept"
            num_files = unpack(_download(release, Path(scratch)), kept)
            shutil.move(kept, site)
        print(f"{site}: {num_files} files")


def _download(release: str, scratch: Path) -> Path:
    """The wheel of a release."""
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    python = ["--python-version", "3.12", "--implementation", "cp", "--abi", "abi3", "--abi", "cp312"]
    platforms = [word for tag in PLATFORMS for word in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", "download", *options, *python, *platforms, f"vllm=={release}"]
    done = subprocess.run(command, check=False)
    wheels = list(scratch.glob("vllm-*.whl"))
    if done.returncode or len(wheels) != 1:
        sys.exit(f"vllm=={release} cannot be downloaded from the package registry; see pip's message above")
    return wheels[0]


def unpack(wheel: Path, site: Path) -> int:
    """Move all files of a wheel but its compiled extensions to the folder `site`. Returns the number of files."""
    with zipfile.ZipFile(wheel) as archive:
        members = [item for item in archive.infolist() if not item.filename.endswith(".so")]
        archive.extractall(site, members)
    wheel.unlink()
    return len(members)


if __name__ == "__main__":
    main()
