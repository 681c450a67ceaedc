"""The actor on a node of a Ray cluster: it unpacks the driver's copy of the harness, and owns one
worker process.

Ray sends this module by value, so until the driver's code is unpacked it can use the standard
library alone. The same :class:`harness.run.runner.WorkerPool` as on one machine contains crashes
and hangs. Only the loss of its node can end the actor.
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
"""After this time without use, copies of code and fixtures are deleted."""

Plugin = tuple[str, bytes]
"""A plug-in file: its path on the driver, and its content."""


class NodeWorker:
    """One worker process of a node. The driver sends it one request at a time."""

    def __init__(
        self, digest: str, code: bytes, execute: str, environ: dict[str, str], start_seconds: float
    ) -> None:
        self._root = _own_folder() / digest
        unpack(code, self._root)
        # The age of a folder is the time since its last use, as an existing one is not unpacked
        # again.
        os.utime(self._root)
        _delete_old(self._root.parent)
        self._options: dict[str, Any] = dict(
            execute=execute, environ=environ, start_seconds=start_seconds
        )
        self._pool: Any = None

    def start(self) -> dict[str, Any]:
        """The environment of this node as `ready`, or as `failed` one sentence about why no case
        can run here.
        """
        # Before a harness that the node has installed: all nodes run the driver's code.
        sys.path.insert(0, str(self._root))
        try:
            from harness.run.runner import WorkerError, WorkerPool
        except ImportError as error:
            return {"failed": f"{error}; install mla-harness there"}
        self._pool = WorkerPool(1, **self._options)
        try:
            return {"ready": self._pool.start().model_dump(mode="json")}
        except WorkerError as error:
            return {"failed": f"{error}; install mla-harness there"}

    def describe(self, plugins: list[Plugin]) -> dict[str, Any]:
        """What kernels declare as `described`, or as `refused` one sentence about a file that does
        not load.
        """
        from harness.core.errors import InputError

        here = {path: self._placed(path, content) for path, content in plugins}
        try:
            found: dict[str, Any] = {"described": self._pool.describe_kernels(list(here.values()))}
        except InputError as error:
            found = {"refused": str(error)}
        return dict(json.loads(_on_driver(json.dumps(found), here)))

    def run(
        self, job: str, plugins: list[Plugin], fixtures: bytes | None, notes: dict[str, bytes]
    ) -> tuple[str, dict[str, bytes]]:
        """Run one job, given as JSON.

        Returns the result as JSON, and the files of the job's directory by name.

        A directory that this node can see is the driver's own: its files stay there and are not
        returned. Otherwise the job gets a directory here, with the files that an interrupted run
        left (`notes`).
        """
        from harness.core.cases import Job

        if fixtures is not None and unpack(fixtures, self._root / "fixtures"):
            # A worker looks for fixtures when it starts.
            self._pool.close()
        planned = Job.model_validate_json(job)
        here = {path: self._placed(path, content) for path, content in plugins}
        changes: dict[str, Any] = {"plugins": tuple(here[path] for path in planned.plugins)}
        with tempfile.TemporaryDirectory(prefix="mla-harness-notes-") as scratch:
            is_elsewhere = planned.directory is not None and not Path(planned.directory).is_dir()
            if is_elsewhere:
                changes["directory"] = scratch
                for name, content in notes.items():
                    write(Path(scratch) / name, content)
            (result,) = self._pool.run([planned.but(**changes)])
            made = read_files(Path(scratch)) if is_elsewhere else {}
        return _on_driver(result.model_dump_json(), here), made

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _placed(self, path: str, content: bytes) -> str:
        """Write a plug-in file to a folder named by its content. Returns its path on this node."""
        place = (
            self._root.parent
            / f"plugin-{hashlib.sha256(content).hexdigest()[:16]}"
            / Path(path).name
        )
        write(place, content)
        return str(place)


def unpack(archive: bytes, folder: Path) -> bool:
    """Unpack a zip archive to `folder` unless it exists. Returns whether this process made it."""
    if folder.is_dir():
        return False
    # The actors of a node unpack at the same time. The first to rename its folder wins.
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
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def write(path: Path, content: bytes) -> None:
    """Write a file so that another process reads the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_bytes() == content:
        return
    handle, making = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
    os.replace(making, path)


def _own_folder() -> Path:
    """A temporary folder of this user. Its owner is checked, because code in it is executed."""
    folder = Path(tempfile.gettempdir()) / f"mla-harness-ray-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _delete_old(folder: Path) -> None:
    for path in folder.iterdir():
        try:
            is_old = time.time() - path.stat().st_mtime > KEPT_SECONDS
        # Another actor of this node has deleted it.
        except OSError:
            continue
        if is_old:
            shutil.rmtree(path, ignore_errors=True)


def _on_driver(text: str, here: dict[str, str]) -> str:
    """JSON with the driver's paths of plug-in files."""
    # Results name the driver's files: the copy here says nothing to the user. The slice cuts the
    # quotes of JSON off, so that the escapes stay as they are in the text.
    for path, placed in here.items():
        text = text.replace(json.dumps(placed)[1:-1], json.dumps(path)[1:-1])
    return text
