"""The first-NaN recorder in real CUDA graphs."""

from __future__ import annotations

import torch
from torch import nn
from torch_poison.patterns import EXPONENT, bits_view

import harness
from harness.memory.first_nan.latch import DTYPES
from harness.memory.first_nan.table import BUFFERS, Slot, Table


def test_replays_of_a_cuda_graph_record_live_rows_and_no_padding() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).cuda().requires_grad_(False)
    x, live = torch.randn(8, 64, device="cuda"), torch.tensor([6], dtype=torch.int32, device="cuda")
    x[6:] = torch.nan
    with harness.first_nan(model, live_rows=live) as recorder:
        model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
    graph.replay()
    assert recorder.report() is None
    x[5, 3] = torch.nan
    graph.replay()
    found = recorder.report()
    assert found is not None and (found.writer, found.where) == ("0", "row 5, element 0")
    live.fill_(5)
    recorder.rearm()
    graph.replay()
    assert recorder.report() is None


def test_the_scan_on_the_device_leaves_what_the_cpus_leaves() -> None:
    for dtype in DTYPES:
        value = torch.zeros(300, 777).to(dtype)
        limit = -1 if dtype.is_floating_point else 9
        if limit < 0:
            bits_view(value)[250, 3] = EXPONENT[dtype]
            bits_view(value)[7, 776] = EXPONENT[dtype] | 1
        else:
            value[250, 3] = value[7, 776] = 9
        tables = [Table(torch.device(device), 4, 3) for device in ("cpu", "cuda")]
        for table in tables:
            table.live.fill_(299)
            for step in range(3):
                table.set_clock(step, "decode")
                table.watch("x", Slot("op", "x", limit=limit), value.to(table.device))
        for name in BUFFERS:
            assert torch.equal(getattr(tables[0], name), getattr(tables[1], name).cpu()), (
                dtype,
                name,
            )


def test_two_results_of_one_op_take_one_launch_and_are_told_in_the_ops_order() -> None:
    table = Table(torch.device("cuda"), 4)
    numbers = [table.slot(name, Slot("op", name, call=0)) for name in ("out", "lse")]
    out, lse = (
        torch.zeros(300, 777, device="cuda", dtype=torch.bfloat16),
        torch.zeros(300, 4, device="cuda"),
    )
    out[299, 776] = lse[2, 1] = torch.nan
    table.scan_together([number for number in numbers if number is not None], [out, lse])
    assert [(hit.slot.tensor, hit.index) for hit in table.hits()] == [
        ("out", (299, 776)),
        ("lse", (2, 1)),
    ]
