"""The child that checks a server: `python -m harness.run.serve_check ORDER`, started by `mla-harness serve-check`."""

from __future__ import annotations

import json
import os
import sys

from harness.accuracy.serve_check import Check, check_server
from harness.core.errors import HarnessError


def main() -> None:
    """Ask everything, and say on standard output what became of it, or in one line why nothing did."""
    order = json.loads(sys.argv[1])
    # What lm-eval prints must not stand between the parent and the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        found = check_server(Check(**order))
        json.dump({"found": found.as_dict(), "lines": found.lines()}, answer)
    except HarnessError as error:
        json.dump({"error": " ".join(str(error).split()), "code": error.exit_code}, answer)
    answer.close()


if __name__ == "__main__":
    main()
