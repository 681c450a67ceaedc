"""Do rows that SGLang's activation skips change the rows that its Triton experts compute? Needs one
GPU and SGLang.

With expert parallelism a choice of an expert on another rank is -1. `silu_and_mul` skips its row,
so that `intermediate_cache2` keeps what `torch.empty` found there. One dynamic FP8 scale is a
maximum over all rows. Here free memory is filled before the experts run; the output must not depend
on it. No second GPU is needed: -1 is enough.
"""

import sys

import sglang
import torch
from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts_impl
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

TOKENS, EXPERTS, HIDDEN, INTERMEDIATE = 2048, 8, 512, 512
PER_TOKEN = True
PER_TOKEN = False  # BUG: one scale for all rows

set_global_server_args_for_scheduler(
    ServerArgs(model_path="none", device="cpu", attention_backend="triton")
)
random = torch.Generator().manual_seed(0)


def weights(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of all experts in e4m3, and their scale: of each expert, or of each of its rows."""
    drawn = torch.randn(EXPERTS, rows, columns, generator=random) * columns**-0.5
    scale = drawn.abs().amax(dim=(1, 2), keepdim=True) / 448
    held = scale.expand(-1, rows, 1).contiguous() if PER_TOKEN else scale.flatten()
    return (drawn / scale).to(torch.float8_e4m3fn).cuda(), held.cuda()


def fill_free_memory(number: float) -> None:
    """Write a number into all that torch's allocator holds and nobody uses, and into 256 MiB more.
    """
    torch.cuda.empty_cache()
    reserved, held = torch.cuda.memory_reserved(), []
    while torch.cuda.memory_reserved() == reserved:
        held.append(torch.full((1 << 20,), number, dtype=torch.bfloat16, device="cuda"))
    held.append(torch.full((128 << 20,), number, dtype=torch.bfloat16, device="cuda"))


x = torch.randn(TOKENS, HIDDEN, generator=random).bfloat16().cuda()
w1, w1_scale = weights(2 * INTERMEDIATE, HIDDEN)
w2, w2_scale = weights(HIDDEN, INTERMEDIATE)
ids = torch.randint(0, EXPERTS, (TOKENS, 2), generator=random, dtype=torch.int32)
ids[::2, 1] = -1  # an expert on another rank
ids = ids.cuda()
shares = torch.full((TOKENS, 2), 0.5, device="cuda")


def experts(number: float) -> torch.Tensor:
    """The output of the experts [tokens, hidden] after free memory was filled."""
    out = x.clone()
    fill_free_memory(number)
    fused_experts_impl(
        out,
        w1,
        w2,
        shares,
        ids,
        inplace=True,
        use_fp8_w8a8=True,
        per_channel_quant=PER_TOKEN,
        w1_scale=w1_scale,
        w2_scale=w2_scale,
        filter_expert=True,
    )
    return out.float()


print(f"SGLang {sglang.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
experts(0.0)  # compiles the kernels, which uses memory
expected = experts(0.0)
is_wrong = False
for number in (0.0, 100.0, 1e4, float("inf")):
    found = experts(number)
    error = (found - expected).norm() / expected.norm()
    print(
        f"memory held {number:g}: {int(found.isnan().sum())} of {found.numel()} are NaN, relative"
        f" error {error:.4f}"
    )
    is_wrong |= not torch.equal(found, expected)
sys.exit("the output depends on memory that nobody wrote" if is_wrong else 0)
