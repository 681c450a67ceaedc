"""What is kept from a cell: the network, the judge's memory, and the judge's own files.

A wall stands where the system allows it; `raise_walls` says which do. Without them a cell still
holds no expected value. They keep a kernel from fetching one.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NETWORK = "network"
FILES = "files of the judge"

_NEW_USER = 0x10000000
_NEW_NETWORK = 0x40000000
_NEW_MOUNTS = 0x00020000
_PRIVATE_TREE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
_READ_ONLY = 1  # MS_RDONLY
_SET_DUMPABLE = 4


def hide_memory() -> None:
    """Keep processes of the same user from reading the memory of this one."""
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def raise_walls(hidden: Path) -> tuple[str, ...]:
    """Leave the network, and see an empty folder in place of `hidden`.

    Returns the names of the walls that stand. The process goes on as the same user, without any
    right over processes outside.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NETWORK | _NEW_MOUNTS):
        # Many containers allow no user namespaces.
        return ()
    try:
        # The order is that of user_namespaces(7).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        return (NETWORK,)
    # Private first, or the mount below would be seen outside.
    is_private = not libc.mount(b"none", b"/", None, _PRIVATE_TREE, None)
    target = os.fsencode(hidden)
    # Read-only: a size of 0 would mean a folder without a limit.
    if is_private and not libc.mount(b"tmpfs", target, b"tmpfs", _READ_ONLY, b"size=4k"):
        return (NETWORK, FILES)
    return (NETWORK,)
