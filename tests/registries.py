"""Registries for the length of a test."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from harness.core.registry import EntryT, Registry


def scoped(registry: Registry[EntryT], *entries: EntryT) -> AbstractContextManager[Any]:
    """Within the block, `entries` stand beside the others or replace entries of the same name.

    After the block the registry is as it was before.
    """
    return mock.patch.dict(registry._entries, {entry.name: entry for entry in entries})
