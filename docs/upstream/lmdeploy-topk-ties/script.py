"""LMDeploy's `bitonic_topk`: of two positions with one score it gives one twice, and loses the other.

Needs torch and lmdeploy alone, and one GPU: `python script.py`. An indexer adds up ReLUs, so many
of its scores are exactly 0. The second part has rows that lie apart, as DeepGEMM returns its
scores; it ends in a process of its own, as it writes behind a buffer.
"""

import subprocess
import sys

import lmdeploy
import torch
from lmdeploy.pytorch.kernels.cuda.bitonic_topk import bitonic_topk

torch.manual_seed(0)
torch.set_default_device("cuda")


def chosen(scores, length, k):
    """The positions of each row as the indexer asks for them."""
    rows = len(scores)
    lengths = torch.full((rows,), length, dtype=torch.int32)
    return bitonic_topk(scores, torch.ones_like(lengths), lengths, k, fill=-1, descending=True)


def ties(k):
    """Rows of k + k / 2 and of k / 2 positions, half of whose scores are 0."""
    wrong = 0
    for length in (k + k // 2, k // 2):
        scores = torch.randn(4, 2 * k).relu()
        found = chosen(scores, length, k)
        for row, positions in zip(scores, found.tolist(), strict=True):
            kept = {position for position in positions if position >= 0}
            expected = min(k, length)
            # Any choice among equal scores is right, if each position is there once.
            values = row[:length][sorted(kept)].sum()
            best = row[:length].topk(expected).values.sum()
            wrong += len(kept) != expected or not torch.isclose(values, best)
        print(
            f"topk={k}, {length} positions: expected {expected} different ones, "
            f"got {len(kept)} (last row)"
        )
    return wrong


def rows_apart(k):
    """The same scores once packed, and once as the columns of a wider buffer."""
    wide = torch.full((64, 2 * k + 256), 9.0)
    wide[:, : 2 * k] = torch.randn(64, 2 * k)
    packed = wide[:, : 2 * k].contiguous()
    right = packed.topk(k).indices.sort().values
    for name, scores in (("packed", packed), ("apart ", wide[:, : 2 * k])):
        found = chosen(scores, 2 * k, k).long().sort().values
        torch.cuda.synchronize()
        rows = int((found == right).all(dim=1).sum())
        print(f"rows {name}: expected 64 right rows of 64, got {rows}", flush=True)
    return rows != 64


if __name__ == "__main__":
    if sys.argv[1:] == ["apart"]:
        raise SystemExit(rows_apart(1024))
    name = torch.cuda.get_device_name()
    print(f"lmdeploy {lmdeploy.__version__}, torch {torch.__version__}, {name}")
    wrong = ties(64) + ties(1024)
    done = subprocess.run([sys.executable, __file__, "apart"], capture_output=True, text=True)
    print(done.stdout, end="")
    if done.returncode not in (0, 1):
        print(f"rows apart: ended by {done.returncode}: {done.stderr.strip().splitlines()[-1][:150]}")
    raise SystemExit(bool(wrong or done.returncode))
