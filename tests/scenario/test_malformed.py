"""Each file of `malformed/` is refused with the one line that `malformed/messages.txt` holds for
it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.scenario.load import load_scenario
from tests.waiting import HANG_SECONDS

MALFORMED = Path(__file__).parent / "malformed"
MESSAGES = dict(
    line.split(":", 1)
    for line in (MALFORMED / "messages.txt").read_text(encoding="utf-8").splitlines()
    if line
)


def test_every_malformed_file_has_its_message() -> None:
    assert sorted(path.name for path in MALFORMED.glob("*.yaml")) == sorted(MESSAGES)
    assert len(MESSAGES) >= 25


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_malformed_scenario_is_refused_with_place_reason_and_mending(name: str) -> None:
    path = MALFORMED / name
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert str(caught.value) == f"{path}:{MESSAGES[name]}"
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "name", ["unknown-key.yaml", "alias-bomb.yaml", "kernel-unknown.yaml", "empty.yaml"]
)
@pytest.mark.parametrize("command", ["list", "run"])
def test_command_line_answers_a_malformed_scenario_with_one_line_and_exit_code_2(
    tmp_path: Path, name: str, command: str
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
    assert MESSAGES[name] in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
