"""What runs on a node of a Ray cluster: it unpacks the harness as the driver has it, and owns one worker process.

Ray sends this module by value, so a node needs no copy of it: until the driver's code is unpacked and imported, it can
use the standard library alone. Crashes and hangs are contained by the same :class:`harness.run.runner.WorkerPool` as
on one machine; what can still end this process is the end of its node.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

KEPT_SECONDS = 7 * 86_400.0
"""Copies of code and fixtures that no run used for so long are deleted."""

Plugin = tuple[str, bytes]
"""A plug-in file: its path on the driver, and its content."""


class NodeWorker:
    """One case process of a node. The driver gives it one thing to do at a time."""

    def __init__(self, digest: str, code: bytes, execute: str, environ: dict[str, str], start_seconds: float) -> None:
        self._root = _own_folder() / digest
        unpack(code, self._root)
        os.utime(self._root)
        _delete_old(self._root.parent)
        self._options: dict[str, Any] = {
            "execute": execute,
            "environ": environ,
            "start_timeout_seconds": start_seconds,
        }
        self._pool: Any = None

    def start(self) -> dict[str, Any]:
        """What this machine is, as `ready`; or `failed`, one sentence on why no case can run here."""
        sys.path.insert(0, str(self._root))
        try:
            from harness.run.runner import WorkerPool
        except ImportError as error:
            return {"failed": f"{error}; install mla-harness there"}
        from harness.core.errors import HarnessError

        self._pool = WorkerPool(1, **self._options)
        try:
            return {"ready": self._pool.start().model_dump(mode="json")}
        except HarnessError as error:
            return {"failed": f"{error}; install mla-harness there"}

    def describe(self, plugins: list[Plugin]) -> dict[str, Any]:
        """What kernels declare, as `described`; or `refused`, one sentence about a file that does not load."""
        from harness.core.errors import InputError

        here = {path: self._placed(path, content) for path, content in plugins}
        try:
            found: dict[str, Any] = {"described": self._pool.describe_kernels(list(here.values()))}
        except InputError as error:
            found = {"refused": str(error)}
        told: dict[str, Any] = json.loads(_on_driver(json.dumps(found), here))
        return told

    def run(
        self, job: str, plugins: list[Plugin], fixtures: bytes | None, notes: dict[str, bytes]
    ) -> tuple[str, dict[str, bytes]]:
        """Run one job, given as JSON; its result as JSON, and what it noted in its directory.

        `notes` are those of an interrupted run. A directory that this node sees is the driver's own, and its files stay
        where they are; otherwise the job gets one here.
        """
        from harness.core.cases import Job

        if fixtures is not None and unpack(fixtures, self._root / "fixtures"):
            # Where fixtures lie is decided when the worker starts.
            self._pool.close()
        asked = Job.model_validate_json(job)
        here = {path: self._placed(path, content) for path, content in plugins}
        changes: dict[str, Any] = {"plugins": tuple(here[path] for path in asked.plugins)}
        with tempfile.TemporaryDirectory(prefix="mla-harness-notes-") as scratch:
            is_elsewhere = asked.directory is not None and not Path(asked.directory).is_dir()
            if is_elsewhere:
                changes["directory"] = scratch
                for name, content in notes.items():
                    _write(Path(scratch) / name, content)
            (result,) = self._pool.run([asked.model_copy(update=changes)])
            made = read_files(Path(scratch)) if is_elsewhere else {}
        return _on_driver(result.model_dump_json(), here), made

    def close(self) -> None:
        """End the case process and whatever it started."""
        if self._pool is not None:
            self._pool.close()

    def _placed(self, path: str, content: bytes) -> str:
        """Where the plug-in file lies on this node; its folder is named by its content."""
        folder = self._root.parent / f"plugin-{hashlib.sha256(content).hexdigest()[:16]}"
        _write(folder / Path(path).name, content)
        return str(folder / Path(path).name)


def unpack(archive: bytes, folder: Path) -> bool:
    """Make `folder` from a zip archive, unless it is there, perhaps by another process; returns whether it was made."""
    if folder.is_dir():
        return False
    making = tempfile.mkdtemp(dir=folder.parent)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        opened.extractall(making)
    try:
        os.rename(making, folder)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not folder.is_dir():
            raise
    return True


def read_files(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def _write(path: Path, content: bytes) -> None:
    """Write a file at once: another process reads the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_bytes() == content:
        return
    handle, making = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
    os.replace(making, path)


def _own_folder() -> Path:
    """A folder below the temporary one that belongs to this user: code in it is executed."""
    folder = Path(tempfile.gettempdir()) / f"mla-harness-ray-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _delete_old(folder: Path) -> None:
    for path in folder.iterdir():
        try:
            is_old = time.time() - path.stat().st_mtime > KEPT_SECONDS
        except OSError:
            continue
        if is_old:
            shutil.rmtree(path, ignore_errors=True)


def _on_driver(text: str, here: dict[str, str]) -> str:
    """JSON in which plug-in files have the paths that their owner gave."""
    for path, placed in here.items():
        text = text.replace(json.dumps(placed)[1:-1], json.dumps(path)[1:-1])
    return text
