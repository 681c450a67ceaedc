"""Each file of `malformed/` is refused with one line: `approved/malformed.txt` holds them all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.scenario.load import load_scenario
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

MALFORMED = Path(__file__).parent / "malformed"


def test_malformed_scenarios_are_refused_with_place_reason_and_mending(approved: Approved) -> None:
    files = sorted(MALFORMED.glob("*.yaml"))
    assert len(files) >= 80
    for path in files:
        with pytest.raises(InputError) as caught:
            load_scenario(path)
        told = str(caught.value)
        assert told.startswith(f"{path}:") and "\n" not in told
        assert caught.value.exit_code == 2
        approved(told.removeprefix(f"{path}:"), path.name)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "name", ["unknown-key.yaml", "alias-bomb.yaml", "kernel-unknown.yaml", "empty.yaml"]
)
@pytest.mark.parametrize("command", ["list", "run"])
def test_command_line_answers_a_malformed_scenario_with_one_line_and_exit_code_2(
    tmp_path: Path, name: str, command: str, approved: Approved
) -> None:
    shutil.copy(MALFORMED / name, tmp_path / name)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from harness.cli.main import main; main()",
            command,
            "--scenarios",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=tmp_path,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    approved(done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
