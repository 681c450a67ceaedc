"""Commands that are killed, starved of disk, or asked of hostile servers leave nothing wrong."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import disturbed  # type: ignore[import-not-found]
import hostile_servers  # type: ignore[import-not-found]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is a tmpfs, which only root may mount")


@pytest.mark.nightly
@pytest.mark.parametrize("command", disturbed.COMMANDS)
@pytest.mark.parametrize("kind", ["kill", "killed worker", pytest.param("small disk", marks=needs_root), "file limit"])
def test_a_disturbed_command_goes_on(command: str, kind: str, tmp_path: Path) -> None:
    found = disturbed.trial(command, kind, random.Random(f"{command} {kind}"), tmp_path)
    assert not found.wrong, str(found)


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["models", "answers", "metrics"])
@pytest.mark.parametrize("kind", ["deep", "harmful text", "slow loris", "metrics of text", "bomb", "many lines"])
def test_a_hostile_server_gets_a_reason(kind: str, part: str, tmp_path: Path) -> None:
    found = hostile_servers.asked(kind, part, "serve-check", tmp_path)
    assert not found.wrong, str(found)
