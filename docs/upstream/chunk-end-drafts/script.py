# Behind a chunk of a prompt the first runner's drafter reads the last token of the prompt, not the
# next one. See https://github.com/sgl-project/sglang/pull/26800, the same kind in another engine.
#
# A prompt of six tokens is computed in chunks of two. What the target samples behind a chunk is
# discarded, and the drafter reads a "backup" token there. The drafter's cache keeps that row for
# the life of the request. It needs vLLM alone, and no GPU. It ends in an error; with the line
# marked BUG left out it passes.
import os

os.environ["TRITON_INTERPRET"] = "1"
from types import SimpleNamespace

import numpy as np
import torch
import vllm
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu_input_batch import CachedRequestState

PROMPT, CHUNK, SAMPLED = [10, 11, 12, 13, 14, 15], 2, 99

drafter = object.__new__(SpecDecodeBaseProposer)  # without a model
drafter.input_ids = torch.zeros(8, dtype=torch.int32)
backup = torch.zeros(1, dtype=torch.int32)
drafter.backup_next_token_ids = SimpleNamespace(
    np=backup.numpy(), gpu=backup, copy_to_gpu=lambda count: None
)


def following(computed, padded):
    """What the drafter reads behind the chunk that starts at `computed`."""
    request = CachedRequestState(
        req_id="a",
        prompt_token_ids=PROMPT,
        mm_features=[],
        sampling_params=None,
        generator=None,
        block_ids=([0],),
        num_computed_tokens=computed,
        output_token_ids=[],
    )
    known = np.array([len(PROMPT)], dtype=np.int32)
    batch = SimpleNamespace(req_ids=["a"], num_reqs=1, num_tokens_no_spec=known, vocab_size=100)
    if padded:
        sampled = torch.tensor([[SAMPLED, -1]], dtype=torch.int32)
        return int(
            drafter.prepare_next_token_ids_padded(
                sampled, {"a": request}, batch, torch.tensor([True])
            )[0]
        )
    return int(drafter.prepare_next_token_ids_cpu([[]], {"a": request}, batch, {"a": CHUNK}))


print(f"vLLM {vllm.__version__}, torch {torch.__version__}")
wrong = 0
for computed in range(0, len(PROMPT) - CHUNK, CHUNK):
    wanted = PROMPT[computed + CHUNK]
    read = following(computed, padded=False)
    read = following(computed, padded=True)  # BUG: remove this line and it passes
    print(
        f"behind tokens {computed} to {computed + CHUNK - 1}: the prompt goes on with {wanted}, the"
        f" drafter reads {read}"
    )
    wrong += read != wanted
assert not wrong, f"behind {wrong} chunks the drafter reads another token"
