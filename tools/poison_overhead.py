"""What `--poison nan` costs a suite: `python3 tools/poison_overhead.py [--repeats 5] [PYTEST ARGUMENT…]`.

Runs the suite in turns without and with poison. Prints the least processor seconds of its tests and their ratio; other
load on the machine adds less to processor seconds than to seconds of a clock. Start-up and collection do not count.
Without arguments it measures a suite of its own: small layers on a CPU, in the style of a model's unit tests, and tests
that mostly allocate. Not with `-n`: it measures one process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = """
import pytest
import torch


@pytest.fixture
def cache():
    made = torch.empty(8, 64, 256)
    made.copy_(torch.randn(8, 64, 256))
    return made


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("seed", range(20))
def test_layer(batch, seed, cache):
    torch.manual_seed(seed)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True).eval()
    x = torch.randn(batch, 32, 128)
    with torch.no_grad():
        got = layer(x)
        torch.testing.assert_close(torch.cat([layer(row[None]) for row in x]), got, atol=1e-4, rtol=1e-4)
        out = torch.empty(batch, 32, 256)
        torch.matmul(x, torch.randn(128, 256), out=out)
    assert out.shape == (batch, 32, 256)
    assert cache.isfinite().all()


@pytest.mark.parametrize("seed", range(60))
def test_small_operations(seed):
    x = torch.randn(16, 16)
    for _ in range(20):
        y = torch.empty_like(x)
        torch.add(x, 1, out=y)
        x = torch.zeros(16, 16) + y.softmax(-1)
    assert torch.allclose(x.sum(-1), torch.ones(16))
"""


CLOCK = """
import time

STARTED = 0.0


def pytest_collection_finish():
    global STARTED
    STARTED = time.process_time()


def pytest_sessionfinish(session):
    with open(session.config.getoption("--basetemp") + ".seconds", "w") as file:
        file.write(str(time.process_time() - STARTED))
"""


def seconds(arguments: list[str], folder: Path) -> float:
    """Processor seconds of all tests of one run. Exits where the run broke off."""
    base = folder / "base"
    options = ["-q", "-p", "poison_clock", "-p", "no:cacheprovider", f"--basetemp={base}"]
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    if done.returncode not in (0, 1):
        raise SystemExit(f"poison_overhead: {' '.join(command)} ended with {done.returncode}\n{done.stdout[-2000:]}")
    return float(base.with_suffix(".seconds").read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    known, arguments = parser.parse_known_args()
    turns = []
    with tempfile.TemporaryDirectory(prefix="poison-overhead-") as made:
        folder = Path(made)
        (folder / "poison_clock.py").write_text(CLOCK, encoding="utf-8")
        if not arguments:
            (folder / "test_layers.py").write_text(SUITE, encoding="utf-8")
            arguments = ["-c", "/dev/null", "--rootdir", made, made]
        for turn in range(known.repeats + 1):
            poisoned = ["-p", "harness.pytest.plugin", "--poison", "nan", *arguments]
            turns.append((seconds(arguments, folder), seconds(poisoned, folder)))
            print("{}: {:.2f} s, with poison {:.2f} s".format(f"turn {turn}" if turn else "warm-up", *turns[-1]))
    before, after = map(min, zip(*turns[1:], strict=True))
    print(f"least {before:.2f} s, with poison {after:.2f} s: ratio {after / before:.3f}")


if __name__ == "__main__":
    main()
