"""What the first-NaN recorder costs in a decode step on this GPU, as one JSON object.

The step of gpu_decode_step.py is captured twice, without and with a scan behind each op: of the query, of the decode's
output and lse, and of the layer's result. Both graphs are replayed in turns in one process. Then a NaN is written into
a row of padding, and into a live row, to see what the recorder reports.
"""

from __future__ import annotations

import json
import statistics

import torch
from gpu_decode_step import BATCH, LAYERS, TOKENS, captured_step, milliseconds

from harness.memory.first_nan.recorder import describe
from harness.memory.first_nan.table import Slot, Table

TARGET = 1.05
LIVE = 48
"""Live rows among the rows of the graph, while a NaN is looked for."""
ROUNDS = 7


def main() -> None:
    recorder = Table(torch.device("cuda"))

    def watch(layer: int, op: str, results: dict[str, torch.Tensor]) -> None:
        slots = [recorder.slot((layer, name), Slot(op, name, layer=layer, call=(layer, op))) for name in results]
        recorder.scan_together([slot for slot in slots if slot is not None], list(results.values()))

    recorder.live.fill_(BATCH)
    plain, _ = captured_step()
    recorded, hidden = captured_step(watch=watch)
    rounds = [(milliseconds(plain.replay), milliseconds(recorded.replay)) for _ in range(ROUNDS)]
    step_ms, recorded_ms = (statistics.median(times) for times in zip(*rounds, strict=True))
    clean = describe(recorder)

    recorder.live.fill_(LIVE)
    reports = []
    for clock, row in enumerate((LIVE + 3, 7), start=1):
        hidden[row, 5] = torch.nan
        recorder.set_clock(clock, "decode")
        recorded.replay()
        reports.append(describe(recorder))
    padding, found = reports
    answer = {
        "layers": LAYERS,
        "tokens": TOKENS,
        "batch": BATCH,
        "tensors": len(recorder.slots),
        "scans": len({slot.call for slot in recorder.slots}),
        "step_ms": step_ms,
        "recorded_ms": recorded_ms,
        "ratio": round(recorded_ms / step_ms, 4),
        "ratios": [round(after / before, 4) for before, after in rounds],
        "target": TARGET,
        "within": recorded_ms / step_ms < TARGET,
        "clean_is_silent": clean is None,
        "padding_is_silent": padding is None,
        "found": found.statement if found else "",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
