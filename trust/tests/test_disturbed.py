"""Commands that are killed, starved of disk, or asked of hostile servers leave nothing wrong."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from trust.disturbances import disturbed, hostile_servers
from trust.disturbances.disturbed import COMMANDS, KINDS, SMALL_DISKS, fits

TRIALS = [
    (command, kind) for command in COMMANDS for kind in KINDS if fits(COMMANDS[command], kind)
]


@pytest.fixture(scope="module")
def clean(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, Callable[[str], disturbed.Clean]]]:
    """What the commands read, and a clean run of each."""
    folder = tmp_path_factory.mktemp("prepared")
    disturbed.prepare(folder, list(COMMANDS))
    yield folder, cache(partial(disturbed.clean_run, prepared=folder))


@pytest.mark.nightly
@pytest.mark.parametrize(("command", "kind"), TRIALS)
def test_a_disturbed_command_goes_on(
    command: str, kind: str, clean: tuple[Path, Callable[[str], disturbed.Clean]]
) -> None:
    if kind in SMALL_DISKS and os.geteuid() != 0:
        pytest.skip("a small disk is a tmpfs, which only root may mount")
    prepared, run = clean
    found = disturbed.trial(
        command, kind, random.Random(f"{command} {kind}"), prepared, run(command)
    )
    assert not found.wrong, str(found)


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["models", "answers", "metrics"])
@pytest.mark.parametrize(
    "kind", ["deep", "harmful text", "slow loris", "metrics of text", "bomb", "many lines"]
)
def test_a_hostile_server_gets_a_reason(kind: str, part: str, tmp_path: Path) -> None:
    found = hostile_servers.asked(kind, part, "serve-check", tmp_path)
    assert not found.wrong, str(found)
