"""What the first-NaN recorder costs in a decode step on this GPU, as one JSON object.

The step of gpu_decode_step.py (16 layers of absorbed MLA at batch 64 and 4,096 tokens) is captured twice, without and
with a scan behind each op: of the query, of the decode's output and lse, and of the layer's result. Both graphs are
replayed in turns in one process. Then a NaN is put into one live row, and into one row of padding, and the recorder is
asked.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
from gpu_decode_step import BATCH, INPUTS, captured_step, milliseconds

from harness.memory.first_nan.report import describe
from harness.memory.first_nan.table import Slot, Table

TARGET = 1.05
LIVE = 48
"""Rows of requests among the 64 of the graph, for the test of what is found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    recorder = Table(torch.device("cuda"))

    def watch(layer: int, op: str, results: dict[str, torch.Tensor]) -> None:
        numbers = [
            recorder.slot((layer, name), Slot(op, name, layer=layer, call=(layer, op))) for name in results
        ]  # fmt: skip
        recorder.scan_together([number for number in numbers if number is not None], list(results.values()))

    recorder.live.fill_(BATCH)
    plain = captured_step(options.layers, options.tokens)
    recorded = captured_step(options.layers, options.tokens, watch)
    times: dict[str, list[float]] = {"plain": [], "recorded": []}
    for _ in range(options.rounds):
        times["plain"].append(milliseconds(plain.replay, options.repeats))
        times["recorded"].append(milliseconds(recorded.replay, options.repeats))
    clean = describe(recorder)
    ratio = statistics.median(times["recorded"]) / statistics.median(times["plain"])

    recorder.live.fill_(LIVE)
    hidden = INPUTS[-1]
    hidden[LIVE + 3, 5] = torch.nan
    recorder.set_clock(1, "decode")
    recorded.replay()
    padding = describe(recorder)
    hidden[7, 5] = torch.nan
    recorder.set_clock(2, "decode")
    recorded.replay()
    found = describe(recorder)
    answer = {
        "layers": options.layers, "tokens": options.tokens, "batch": BATCH, "tensors": len(recorder.slots),
        "scans": len({slot.call for slot in recorder.slots}),
        "step_ms": statistics.median(times["plain"]), "recorded_ms": statistics.median(times["recorded"]),
        "ratio": round(ratio, 4), "ratios": [round(b / a, 4) for a, b in zip(*times.values(), strict=True)],
        "target": TARGET, "within": ratio < TARGET, "clean_is_silent": clean is None,
        "padding_is_silent": padding is None, "found": found.statement if found else "",
    }  # fmt: skip
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
