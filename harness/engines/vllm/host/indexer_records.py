"""vLLM's Triton writer and reader of the sparse indexer's cache, which ROCm uses: do both hold to the shuffled format?

Both run under Triton's interpreter. The writer's bytes are decoded by the reference of the format, and the reader gets
bytes that the reference encoded, so that a mistake which both share shows too (vllm-project/vllm#52109).
"""

from __future__ import annotations

from torch import Tensor

from harness.core.ops import ReadRecordsParams, WriteRecordsParams
from harness.engines.vllm.params import VllmHostParams
from harness.engines.vllm.record_kernels import read_indexer_shuffled, write_indexer_shuffled
from harness.judge.run_records import Guard, Run
from harness.judge.targets import record_calls
from harness.judge.targets.kernel_call import KernelCall, Setting
from harness.kernels.plugins import find_kernel
from harness.memory.poison.patterns import Poison

FORMAT = "indexer_shuffled"
NAME = "vllm-indexer-shuffled"
LENGTHS = (1, 0, 63, 65)
LAYERS = 2
"""The blocks of two layers lie side by side, as since 0.29."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Store tokens, then read requests from other bytes."""
    found = Run(poison.pattern)
    writing = WriteRecordsParams(kernel=NAME, kv=FORMAT, layers=LAYERS, num_tokens=70, num_padded=2)
    call = record_calls.write_records(writing, _setting("write_records", poison))
    # The interpreter has no arithmetic of bfloat16.
    write_indexer_shuffled(call.args[0].float(), *call.args[1:], **call.kwargs)
    _judge(found, call, ())
    reading = ReadRecordsParams(kernel=NAME, kv=FORMAT, layers=LAYERS, seq_lens=LENGTHS)
    call = record_calls.read_records(reading, _setting("read_records", poison))
    _judge(found, call, (read_indexer_shuffled(*call.args, **call.kwargs),))
    return found


def _setting(op: str, poison: Poison) -> Setting:
    return Setting(find_kernel(op, NAME), poison, poison.seed, "cpu")


def _judge(found: Run, call: KernelCall, outputs: tuple[Tensor, ...]) -> None:
    found.observed += call.observe(outputs)
    found.guards += [Guard(item.name, item.site, item.before, item.watched()) for item in call.guarded]
