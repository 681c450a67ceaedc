# DeepGEMM's paged fp8 index logits are wrong for a short request behind one without keys, on
# Hopper. See https://github.com/deepseek-ai/DeepGEMM/pull/353, which mended the plan of batches
# without keys.
#
# It needs vLLM and a Hopper GPU. It ends in an error; with 1 in place of 0 in the line marked BUG
# it passes.
import torch
import vllm
from vllm.utils.deep_gemm import fp8_fp4_paged_mqa_logits, get_paged_mqa_logits_metadata

HEADS, DIM, PAGE = 64, 128, 64


def wrong_logits(lengths):
    """For each request: how many of its logits differ from a float32 reference by over a thousandth
    of their scale.
    """
    torch.manual_seed(0)
    requests, pages = len(lengths), -(-max(lengths) // PAGE)
    query = torch.randn(requests, 1, HEADS, DIM, device="cuda").to(torch.float8_e4m3fn)
    keys = torch.randn(requests * pages, PAGE, DIM, device="cuda").to(torch.float8_e4m3fn)
    scales = torch.rand(requests * pages, PAGE, device="cuda") + 0.5
    weights = torch.randn(requests, HEADS, device="cuda")
    # A page holds the keys of its tokens, then their scales.
    halves = keys.view(torch.uint8).flatten(1), scales.view(torch.uint8).view(requests * pages, -1)
    cache = torch.cat(halves, dim=1).view(requests * pages, PAGE, 1, DIM + 4)
    table = torch.arange(requests * pages, dtype=torch.int32, device="cuda").view(requests, pages)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")[:, None]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    plan = get_paged_mqa_logits_metadata(seq_lens, PAGE, sms)
    logits = fp8_fp4_paged_mqa_logits(
        (query, None), cache, weights, seq_lens, table, plan, pages * PAGE
    )
    wrong = []
    for request, length in enumerate(lengths):
        mine = keys.float().view(requests, -1, DIM)[request, :length]
        scores = (query[request, 0].float() @ mine.T).relu() * scales.view(requests, -1)[
            request, :length
        ]
        want = weights[request] @ scores
        far = (logits[request, :length] - want).abs() > 1e-3 * scores.abs().sum(0)
        wrong.append(int((far | logits[request, :length].isnan()).sum()))
    return wrong


torch.backends.cuda.matmul.allow_tf32 = False
print(f"vLLM {vllm.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
for lengths in [(19647, 0, 43), (19647, 19647, 1, 43), (19647, 19647, 43, 0)]:
    print(f"lengths {lengths}: wrong logits by request {wrong_logits(lengths)}")
lengths = (19647, 19647, 0, 43)  # BUG: with 1 in place of 0 it passes
found = wrong_logits(lengths)
print(f"lengths {lengths}: wrong logits by request {found}")
assert not any(found), "the request behind the empty one has the logits of another query"
