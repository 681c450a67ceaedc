"""`python -m trust.mutants`: the command `mutants`, with one line and an exit code for each
error.
"""

from __future__ import annotations

import sys

from harness.cli.main import exit_code_of

sys.exit(exit_code_of(["mutants", *sys.argv[1:]]))
