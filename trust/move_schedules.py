"""Count false alarms: clean moves of all shapes, each in many seeded schedules.

python -m trust.move_schedules --each 50
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

from harness.core.move_params import MoveParams
from harness.judge.targets.moves import scheduled

GROUPS: tuple[tuple[Any, ...], ...] = (
    ("latent",),
    ("heads",),
    ("latent", "index"),
    ("latent", "window", "state"),
)
BLOCKS: dict[int, dict[str, Any]] = {
    16: {"num_blocks": 14},
    64: {"kernel_block": 64, "num_blocks": 12, "requests": ((60, 12), (100, 40), (90, 45))},
    768: {
        "kernel_block": 64,
        "chunk": 512,
        "num_blocks": 12,
        "requests": ((760, 12), (750, 20), (500, 10)),
    },
}


def shapes() -> Iterator[MoveParams]:
    """Each move, group, number of ranks and size of blocks; the host tier of one group has fewer
    blocks.
    """
    for move, groups, ranks, (size, more) in itertools.product(
        ("host", "handoff"), GROUPS, (1, 2, 4), BLOCKS.items()
    ):
        given = more | {
            "move": move,
            "groups": groups,
            "tensor_parallel": ranks,
            "block_size": size,
        }
        if move == "host" and len(groups) < 3:
            given |= {"num_blocks": {16: 7, 64: 6, 768: 5}[size], "unit": "token"}
        if move == "handoff":
            given |= {"decode_ranks": {1: 2, 2: 2, 4: 2}[ranks], "failing": (0,), "aborted": (1,)}
        yield MoveParams(**given)


def main() -> int:
    """Print one line for all shapes, and one for each alarm.

    Returns the number of schedules with an alarm.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=50, help="schedules of each shape")
    each = parser.parse_args().each
    started, num_bytes, num_pairs, alarms = time.perf_counter(), 0, 0, 0
    all_shapes = list(shapes())
    for params, seed in itertools.product(all_shapes, range(each)):
        moved = scheduled(params, seed, None, f"schedule {seed}")
        num_bytes, num_pairs = num_bytes + moved.num_bytes, num_pairs + moved.num_pairs
        if moved.misplaced or moved.races:
            alarms += 1
            print(f"alarm: {params}, seed {seed}: {[*moved.misplaced, *moved.races][0]}")
    print(
        f"{len(all_shapes)} shapes, {len(all_shapes) * each} schedules, {num_bytes:,} bytes read,"
        f" {num_pairs:,} pairs of accesses compared, {alarms} false alarms,"
        f" {time.perf_counter() - started:.0f} s"
    )
    return alarms


if __name__ == "__main__":
    sys.exit(main() > 0)
