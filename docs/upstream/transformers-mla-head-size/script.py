"""Continuous batching of a DeepSeek V2 with random weights, beside `generate` of the same.

python script.py needs torch, transformers and psutil. Ends in 1 if the two give other tokens.
"""

import sys

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    DeepseekV2Config,
    GenerationConfig,
)

torch.manual_seed(0)
config = DeepseekV2Config(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    q_lora_rank=None,
    kv_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    first_k_dense_replace=2,
    eos_token_id=0,
    pad_token_id=1,
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
prompt = list(range(20, 30))
alone = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
right = alone[0, len(prompt) :].tolist()
asked = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=0, pad_token_id=1)
# A small cache: the default takes most of the memory.
small = ContinuousBatchingConfig(num_blocks=8, page_size=64, max_batch_tokens=64)
(batched,) = model.generate_batch(
    inputs=[prompt], generation_config=asked, continuous_batching_config=small
).values()
print(f"transformers {transformers.__version__}, config.head_dim {config.head_dim}")
print(f"generate:            {right}")
print(f"continuous batching: {batched.generated_tokens}")
print(f"error: {batched.error}")
sys.exit(batched.generated_tokens != right)
