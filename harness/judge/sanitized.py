"""What compute-sanitizer watches: one job from a file, executed in this process, its result written to another file."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.core.cases import Job
from harness.judge.run_case import run_case


def main() -> None:
    """Execute the job of the first file and write its result to the second."""
    job = Job.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(run_case(job).model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
