# FlashMLA's dense bf16 decode begins before the kernel in front of it has written the query.
# See https://github.com/lightseekorg/tokenspeed/pull/1000, the same kind in another project.
#
# The kernel in front allows an early start at once (griddepcontrol.launch_dependents), waits 200
# us, then copies the query. A kernel launched with programmatic stream serialization has to wait
# for it (griddepcontrol.wait). It needs vLLM and a Hopper GPU. It ends in an error; without the
# line marked BUG it passes.
import torch
import triton
import triton.language as tl
import vllm
from triton.language.extra import cuda
from vllm.v1.attention.ops import flashmla

B, HEADS, RANK, ROPE, PAGE = 4, 128, 512, 64, 64
LENGTHS = (200, 64, 1, 130)


@triton.jit
def copy_late(source, target, size, early: tl.constexpr, BLOCK: tl.constexpr):
    if early:
        cuda.gdc_launch_dependents()
    start = cuda.globaltimer()
    while cuda.globaltimer() - start < 200_000:
        pass
    for begin in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        offsets = begin + tl.arange(0, BLOCK)
        tl.store(
            target + offsets, tl.load(source + offsets, mask=offsets < size), mask=offsets < size
        )


torch.manual_seed(0)
pages = -(-max(LENGTHS) // PAGE)
cache = torch.randn(B * pages + 1, PAGE, 1, RANK + ROPE, dtype=torch.bfloat16, device="cuda")
table = 1 + torch.arange(B * pages, dtype=torch.int32, device="cuda").view(B, pages)
lengths = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
query = torch.randn(B, 1, HEADS, RANK + ROPE, dtype=torch.bfloat16, device="cuda")


def decode(q, metadata):
    return flashmla.flash_mla_with_kvcache(
        q=q,
        k_cache=cache,
        block_table=table,
        cache_seqlens=lengths,
        head_dim_v=RANK,
        tile_scheduler_metadata=metadata,
        softmax_scale=(RANK + ROPE) ** -0.5,
        causal=True,
        is_fp8_kvcache=False,
    )[0]


def behind(early, concat=False):
    """The output of a decode whose query is written late; `concat`: by torch.cat in between, as in
    vLLM's FLASHMLA.
    """
    late = torch.full_like(query, float("nan"))
    torch.cuda.synchronize()
    copy_late[(16,)](query, late, query.numel(), early, BLOCK=1024)
    out = decode(
        torch.cat((late[..., :RANK], late[..., RANK:]), dim=-1) if concat else late, metadata
    )
    torch.cuda.synchronize()
    return out


metadata = flashmla.get_mla_metadata(lengths, HEADS, 1, is_fp8_kvcache=False)[0]
want = decode(query, metadata)
behind(early=False), behind(early=True)  # compiles
print(f"vLLM {vllm.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
out = behind(early=False)
print(f"behind a kernel that allows no early start: {int((out != want).sum())} elements differ")
out = behind(early=True, concat=True)
print(f"behind torch.cat behind one that does: {int((out != want).sum())} elements differ")
out = behind(early=True)  # BUG: remove this line and it passes
differing = int((out != want).sum())
print(
    f"behind one that does: {differing} of {out.numel()} elements differ, {int(out.isnan().sum())}"
    " are NaN"
)
assert not differing, f"{differing} elements are those of a query that was not yet written"
