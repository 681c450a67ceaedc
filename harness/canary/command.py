"""The child of `mla-harness canary train`, which starts it with the eight values of `main`."""

from __future__ import annotations

import sys

from harness.canary.train import train
from harness.core.errors import InputError


def main() -> None:
    """Train; progress goes to standard output line by line, one line about bad input to standard error."""
    task, out, architecture, minutes, device, seed, experts, limit = sys.argv[1:]
    try:
        train(
            task, out, architecture, float(minutes), device, int(seed), num_experts=int(experts),
            limit=int(limit) or None, progress=lambda line: print(line, flush=True),
        )  # fmt: skip
    except ValueError as error:
        print(f"canary train: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(InputError.exit_code)


if __name__ == "__main__":
    main()
